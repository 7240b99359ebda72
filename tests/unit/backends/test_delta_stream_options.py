"""What a stream over a Delta table takes as options, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.backends.delta.stream import DeltaStream
from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.errors import DeclarationError, SourceFailed


@pytest.fixture
def stream(tmp_path: Path) -> DeltaStream:
    (tmp_path / "sales" / "orders" / "_delta_log").mkdir(parents=True)
    (tmp_path / "sales" / "orders" / "_delta_log" / f"{0:020d}.json").touch()
    return DeltaStream(LocalStore(str(tmp_path)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"skip_changes": "true"}, "no option 'skip_changes'"),
        ({"change_feed": "perhaps"}, "true or false, not 'perhaps'"),
        ({"change_feed": "true", "ignoreChanges": "true"}, "cannot be combined with it"),
        ({"max_files_per_trigger": "-1"}, "whole number, 1 or more"),
        ({"maxBytesPerTrigger": "much"}, "is a size, as in 512m, not 'much'"),
        ({"starting_version": "first"}, "a version's number, not 'first'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    stream: DeltaStream, options: dict[str, str], said: str
) -> None:
    with pytest.raises(DeclarationError, match=said):
        stream.check(ReadRequest("sales.orders", options=options))


@pytest.mark.parametrize(
    "options",
    [
        {"skipChangeCommits": "true", "max_bytes_per_trigger": "512m"},
        {"readChangeFeed": "true", "maxFilesPerTrigger": "5"},
        {"starting_version": "0", "ignore_deletes": "false"},
    ],
)
def test_options_are_known_by_our_names_and_by_deltas(stream: DeltaStream, options: dict[str, str]) -> None:
    stream.check(ReadRequest("sales/orders", options=options))


@pytest.mark.parametrize("query", ["../orders", ".hidden.orders", "sales..orders"])
def test_names_that_lead_elsewhere_are_refused(stream: DeltaStream, query: str) -> None:
    with pytest.raises(SourceFailed):
        stream.check(ReadRequest(query))


def test_what_is_not_deltas_is_left_to_others(stream: DeltaStream) -> None:
    assert (
        stream.explain_failure(ReadRequest("sales.orders"), "java.lang.OutOfMemoryError: Java heap space")
        is None
    )
    other = stream.explain_failure(
        ReadRequest("sales.orders"), "[DELTA_SOMETHING_NEW] It is\nodd. SQLSTATE: XXKST\n==="
    )
    assert isinstance(other, SourceFailed)
    assert other.what == "the stream of 'sales.orders' failed: It is odd"
