"""What the tests of connections share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ematix_flow.spec import redaction


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """Secrets that one test made known are not masked in the next."""
    before = set(redaction._known)
    yield
    redaction._known.clear()
    redaction._known.update(before)
