"""The journal of a lake table: what it knows stays the same, however old entries are folded."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import LedgerEntry
from ematix_flow.backends.lake import journal, journal_segments
from ematix_flow.backends.lake.journal import Journal, open_journal
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark

MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
PIPELINES = ("orders", "refunds")


READ: list[str] = []  # the files that were read


class ReadingStore(LocalStore):
    def read(self, path: str) -> str:
        READ.append(path)
        return super().read(path)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def opened(store: LocalStore) -> Journal:
    """Without marks an entry's table is asked: here it knows none of them."""
    return open_journal(store, "sales/orders", lambda token: False)


def load(store: LocalStore, number: int) -> None:
    """The ``number``th load, of the two pipelines in turn."""
    found = opened(store)
    pipeline = PIPELINES[number % 2]
    entry = LedgerEntry(
        pipeline,
        "lake:sales.orders",
        f"slot:{number}",
        f"run {number}",
        None,
        None,
        RowCounts(read=number, inserted=number),
        MOMENT,
    )
    mark = Watermark("id", DataType("big_int"), number)
    commit = found.next_commit()
    found.write_entry(commit, entry, mark)
    found.mark_committed(commit, entry, mark)


def known(store: LocalStore, last: int) -> tuple[object, ...]:
    """Everything that a journal is asked."""
    found = opened(store)
    target = "lake:sales.orders"
    return (
        found.last_number,
        [[entry.run_id for entry in found.entries(pipeline, target)] for pipeline in PIPELINES],
        [found.has_batch(PIPELINES[n % 2], target, f"slot:{n}") for n in range(last + 2)],
        [found.has_batch(PIPELINES[(n + 1) % 2], target, f"slot:{n}") for n in range(last + 2)],
        [found.watermark(pipeline, target, "id") for pipeline in PIPELINES],
    )


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "sales/orders/_ematix_flow").rglob("*") if path.is_file())


def test_folding_changes_nothing_that_is_known_and_leaves_few_files(
    store: LocalStore, tmp_path: Path
) -> None:
    for number in range(1, 31):
        load(store, number)
    before = known(store, 30)
    assert before[0] == 30
    assert before[1] == [[f"run {n}" for n in range(30, 0, -2)], [f"run {n}" for n in range(29, 0, -2)]]
    assert opened(store).fold(keep=5) == 25
    assert known(store, 30) == before
    assert len(files(tmp_path)) == 2 * 5 + 2
    assert opened(store).fold(keep=5) == 0
    for number in range(31, 41):
        load(store, number)
    before = known(store, 40)
    assert opened(store).fold(keep=5) == 10
    assert known(store, 40) == before
    assert len(files(tmp_path)) == 2 * 5 + 2


def test_the_newest_entry_is_never_folded_because_it_has_the_positions(store: LocalStore) -> None:
    for number in range(1, 4):
        load(store, number)
    before = known(store, 3)
    assert opened(store).fold(keep=0) == 2
    assert known(store, 3) == before


def test_a_full_segment_is_left_alone(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_segments, "FULL_SEGMENT_ENTRIES", 4)
    for number in range(1, 15):
        load(store, number)
        if number % 3 == 0:
            opened(store).fold(keep=2)
    before = known(store, 14)
    assert opened(store).fold(keep=2) > 0
    assert known(store, 14) == before
    segments = [name for name in files(tmp_path) if name.endswith(".batches")]
    assert len(segments) > 1


@pytest.mark.parametrize(
    ("point", "nth"),
    [("fold.entries_written", 1), ("fold.counts", 1), *[("fold.files_removed", n) for n in range(1, 13)]],
)
def test_a_fold_that_dies_anywhere_loses_nothing_and_the_next_one_clears_up(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    monkeypatch.setattr(journal, "_REMOVED_AT_ONCE", 1)
    for number in range(1, 6):
        load(store, number)
    opened(store).fold(keep=2)  # so that the next one replaces a segment
    for number in range(6, 11):
        load(store, number)
    before = known(store, 10)
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash", nth):
        opened(store).fold(keep=2)
    assert known(store, 10) == before
    load(store, 11)
    before = known(store, 11)
    opened(store).fold(keep=2)
    assert known(store, 11) == before
    assert len(files(tmp_path)) == 2 * 2 + 2


def test_a_reader_that_began_before_a_fold_ends_as_if_there_were_none(store: LocalStore) -> None:
    for number in range(1, 9):
        load(store, number)
    opened(store).fold(keep=6)
    reader = opened(store)
    runs = reader.entries("orders", "lake:sales.orders")
    seen = [next(runs).run_id]
    load(store, 9)
    opened(store).fold(keep=1)
    seen += [entry.run_id for entry in runs]
    assert seen == [f"run {n}" for n in (8, 6, 4, 2)]
    assert reader.has_batch("orders", "lake:sales.orders", "slot:2")


def test_a_process_reads_the_batches_of_a_segment_once(tmp_path: Path) -> None:
    """Each load needs all of them, and a stream that runs for weeks has many segments."""
    store = ReadingStore(str(tmp_path))
    for number in range(1, 9):
        load(store, number)
    opened(store).fold(keep=2)
    READ.clear()
    for number in range(1, 9):
        assert opened(store).has_batch(PIPELINES[number % 2], "lake:sales.orders", f"slot:{number}")
        assert not opened(store).has_batch(PIPELINES[number % 2], "lake:sales.orders", f"slot:{number + 1}")
    assert len([path for path in READ if path.endswith(".batches")]) == len(PIPELINES)


def test_an_entry_whose_load_is_under_way_is_left_alone(store: LocalStore) -> None:
    for number in range(1, 5):
        load(store, number)
    rows = RowCounts(read=1, inserted=1)
    entry = LedgerEntry("orders", "lake:sales.orders", "slot:5", "run 5", None, None, rows, MOMENT)
    running = opened(store)
    commit = running.next_commit()
    running.write_entry(commit, entry, None)
    opened(store).fold(keep=1)
    found = open_journal(store, "sales/orders", lambda token: token == commit.token)
    assert found.last_number == 5
    assert found.has_batch("orders", "lake:sales.orders", "slot:5")


def test_a_missing_or_damaged_file_is_reported_and_never_taken_for_nothing(
    store: LocalStore, tmp_path: Path
) -> None:
    for number in range(1, 9):
        load(store, number)
    opened(store).fold(keep=4)
    folder = tmp_path / "sales/orders/_ematix_flow"
    (segment,) = folder.glob("folded/*.batches")
    whole = segment.read_text()
    segment.write_text(whole[:-5])
    with pytest.raises(TargetFailed, match="is damaged"):
        opened(store).has_batch("orders", "lake:sales.orders", "slot:99")
    segment.write_text(whole.replace('"format": 1', '"format": 2'))
    with pytest.raises(TargetFailed, match="format 2"):
        opened(store).has_batch("orders", "lake:sales.orders", "slot:99")
    segment.write_text(whole)
    found = opened(store)
    next(folder.glob("000000000006-*.json")).unlink()
    with pytest.raises(TargetFailed, match="it is missing"):
        list(found.entries("orders", "lake:sales.orders"))


def test_segments_that_two_folds_wrote_for_one_range_count_once(store: LocalStore, tmp_path: Path) -> None:
    for number in range(1, 7):
        load(store, number)
    before = known(store, 6)
    opened(store).fold(keep=2)
    for path in (tmp_path / "sales/orders/_ematix_flow/folded").iterdir():
        head, _, suffix = path.name.rpartition(".")
        path.with_name(f"{head.rsplit('-', 1)[0]}-0.{suffix}").write_bytes(path.read_bytes())
    assert known(store, 6) == before
    opened(store).fold(keep=2)
    assert known(store, 6) == before
    assert len(files(tmp_path)) == 2 * 2 + 2


def test_notes_of_quarantine_tables_outlive_folding_and_tell_whether_their_load_committed(
    store: LocalStore,
) -> None:
    quarantine = TableSpec("sales", "orders__quarantine", (ColumnSpec("_", DataType("text")),))
    for number in range(1, 9):
        found = opened(store)
        if number in (1, 8):  # one that is folded later, and one that is not
            dead = found.next_commit()
            found.write_note(dead, quarantine)  # the load of this number that died
        commit = found.next_commit()
        if number in (1, 8):
            found.write_note(commit, quarantine)
        entry = LedgerEntry("orders", "t", f"slot:{number}", "run", None, None, RowCounts(), MOMENT)
        found.mark_committed(commit, entry, None)
    opened(store).fold(keep=2)
    found = opened(store)
    assert [note.number for note in found.notes] == [1, 1, 8, 8]
    assert sorted(found.has_commit(note) for note in found.notes) == [False, False, True, True]
    assert {(t.schema, t.name) for t in map(found.noted_table, found.notes)} == {
        ("sales", "orders__quarantine")
    }
    for note in found.notes:
        found.remove_note(note)
    assert opened(store).notes == ()
