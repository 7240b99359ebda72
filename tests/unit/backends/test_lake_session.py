"""The session in which a lake table is loaded."""

from __future__ import annotations

import pytest

from ematix_flow import DeltaLocalConnection
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import Unsupported


class WithoutOthers:
    """As a session of Spark Connect is."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(name)


def test_a_session_that_cannot_have_a_second_one_is_refused() -> None:
    target = open_backend(DeltaLocalConnection(name="lake", path="lake")).target()
    assert isinstance(target, LakeTarget)
    target.use_spark(WithoutOthers, lambda what: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(Unsupported, match="cannot be loaded through Spark Connect"):
        target.spark()
