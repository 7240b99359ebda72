"""What an error contains in addition to what happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.errors import FlowError, did_you_mean
from ematix_flow.spec.location import SourceLocation


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("sales.ordrs", " Did you mean 'sales.orders'?"),
        ("SALES.ORDERS", " Did you mean 'sales.orders'?"),
        ("users", " Did you mean 'Users'?"),
        ("zebra", " Known: Users, sales.orders."),
    ],
)
def test_the_nearest_name_is_reported_however_it_is_spelled(written: str, told: str) -> None:
    assert did_you_mean(written, ["sales.orders", "Users"]) == told


def test_without_names_nothing_is_reported() -> None:
    assert did_you_mean("x", []) == ""


def test_a_location_is_shown_when_the_working_directory_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "where: pipelines.py:7" in str(FlowError("it failed", where=SourceLocation("pipelines.py", 7)))
