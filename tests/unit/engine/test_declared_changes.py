"""A stream whose declaration changed: what its checkpoint continues, and what is refused with words."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import CDC, Aggregation, Join, Lookup, StateStore, Target, Watermark, Window
from ematix_flow.api.streaming import stream_spec
from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.declaration_record import (
    RECORD_FILE,
    DeclarationRecord,
    LoadedTarget,
    declared_record,
    read_record,
    write_record,
)
from ematix_flow.engine.streams.declaration_store import DeclarationStore
from ematix_flow.engine.streams.declared_changes import check_state_file, refuse_declared_changes
from ematix_flow.engine.streams.kept_targets import known_targets
from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.state.status import StateStatus
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.errors import EngineError, Unsupported
from ematix_flow.spec.connections import KafkaConnection, SQLiteConnection
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.streaming import Source

BROKER = KafkaConnection(name="broker", bootstrap_servers="localhost:9092")
LITE = SQLiteConnection(name="lite", path="lite.db")


def window(**changes: Any) -> Window:
    count = Aggregation(agg="count", as_="n")
    usual: dict[str, Any] = {"kind": "tumbling", "duration_ms": 10_000, "event_time_column": "at"}
    return Window(**{**usual, "group_by": ("user",), "aggregations": [count], **changes})


def session(**changes: Any) -> Window:
    usual = {"kind": "session", "gap_ms": 5_000, "max_session_duration_ms": 60_000, "duration_ms": 0}
    return window(**{**usual, **changes})


def join(**changes: Any) -> Join:
    sides: dict[str, Any] = {"left_source": "left", "right_source": "right"}
    keys: dict[str, Any] = {"left_keys": ("id",), "right_keys": ("id",)}
    return Join(**{**sides, **keys, "time_window_ms": 60_000, **changes})


def declared(**options: Any) -> StreamSpec:
    if "sources" not in options:
        options = {"source": BROKER, "source_query": "events", **options}
    if "targets" not in options:
        options = {"target": LITE, "target_table": "out", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a state in memory
        return stream_spec(None, name="events", **options)


def topics(*names: str, **options: Any) -> dict[str, Any]:
    return {"sources": [Source(BROKER, name) for name in names], **options}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """The checkpoint of a query that has committed a batch."""
    found = Checkpoint(tmp_path / "checkpoints" / "all")
    for log in ("offsets", "commits"):
        (found.folder / log).mkdir(parents=True)
        (found.folder / log / "0").write_text("v1")
    return found


def has_run(spec: StreamSpec, checkpoint: Checkpoint, kinds: tuple[str, ...] = ()) -> None:
    """Leave what a run of this stream leaves."""
    record = declared_record(spec, kinds)
    if spec.is_stateful and record.store != "in_memory":
        file = StateFile(checkpoint.state_folder)
        record = replace(record, state_id=file.id())
        file.close()
    write_record(checkpoint.folder, record)


TWO = topics("left", "right")
MARKED = CDC(delete_mode="soft", soft_delete_column="gone")
SUM = Aggregation(agg="sum", column="amount", as_="total")
POSTGRES = StateStore(kind="postgres", url="postgres://state")

KEPT = [
    ("nothing", {"window": window()}, {"window": window()}),
    ("late rows", {"window": window()}, {"window": window(late_data="reopen", allowed_lateness_ms=5)}),
    ("the limit of groups", {"window": window()}, {"window": window(max_groups_per_window=5)}),
    ("the watermark", {"window": window()}, {"window": window(), "watermark": Watermark(lateness_ms=5)}),
    (
        "the name of a result",
        {"window": window()},
        {"window": window(aggregations=[Aggregation(agg="count", as_="m")])},
    ),
    ("the longest session", {"window": session()}, {"window": session(max_session_duration_ms=90_000)}),
    ("SQL before a window", {"window": window()}, {"window": window(), "transform_sql": "SELECT 1"}),
    ("a state in Postgres too", {"window": window()}, {"window": window(), "state_store": POSTGRES}),
    ("a state no longer in Postgres", {"window": window(), "state_store": POSTGRES}, {"window": window()}),
    (
        "a state that was in memory",
        {"window": window(), "state_store": StateStore(kind="in_memory")},
        {"window": window()},
    ),
    (
        "no window, whose state was in memory",
        {"window": window(), "state_store": StateStore(kind="in_memory")},
        {},
    ),
    ("prefixes of a join", {**TWO, "join": join()}, {**TWO, "join": join(left_column_prefix="l_")}),
    ("the limit of rows", {**TWO, "join": join()}, {**TWO, "join": join(max_state_rows=5)}),
    ("SQL", {"transform_sql": "SELECT a FROM source"}, {"transform_sql": "SELECT b FROM source"}),
    ("lookups", {"transform_sql": "x"}, {"transform_sql": "x", "lookups": {"u": Lookup(LITE, table="u")}}),
    ("the start", {}, {"starting": "latest"}),
    ("the topic", {}, {"source_query": "others"}),
    ("one of two topics", TWO, topics("left", "third")),
    ("new fields of changes", {"cdc": CDC()}, {"cdc": CDC(schema_evolution="evolve")}),
]


@pytest.mark.parametrize(("before", "after"), [row[1:] for row in KEPT], ids=[row[0] for row in KEPT])
def test_a_change_that_keeps_checkpoint_and_state(
    checkpoint: Checkpoint, before: dict[str, Any], after: dict[str, Any]
) -> None:
    has_run(declared(**before), checkpoint, ("kafka",))
    refuse_declared_changes(declared(**after), checkpoint, ("kafka",))


REFUSED = [
    ({"window": window()}, {"window": window(duration_ms=5_000)}, "duration_ms was 10000 and is 5000"),
    (
        {"window": window()},
        {"window": window(kind="hopping", hop_ms=5)},
        "window was tumbling and is hopping",
    ),
    ({"window": window()}, {"window": session()}, "window was tumbling and is session"),
    ({"window": session()}, {"window": session(gap_ms=9_000)}, "gap_ms was 5000 and is 9000"),
    (
        {"window": window(kind="hopping", hop_ms=5_000)},
        {"window": window(kind="hopping", hop_ms=2_000)},
        "hop_ms was 5000 and is 2000",
    ),
    ({"window": window()}, {"window": window(group_by=("shop",))}, r"group_by was \(user\) and is \(shop\)"),
    (
        {"window": window()},
        {"window": window(aggregations=[SUM])},
        r"aggregations was \(count\) and is \(sum of amount\)",
    ),
    (
        {"window": window()},
        {"window": window(event_time_column="sent")},
        "event_time_column was at and is sent",
    ),
    ({"window": window()}, {}, r"has run with window= \(tumbling\) and is declared without"),
    ({}, {"window": window()}, "has run without window="),
    (
        {"window": window()},
        {"window": window(), "state_store": StateStore(kind="in_memory")},
        "has a state on disk, and state_store= is now in memory",
    ),
    ({**TWO, "join": join()}, {**TWO, "join": join(kind="left_outer")}, "join was inner and is left_outer"),
    (
        {**TWO, "join": join()},
        {**TWO, "join": join(left_keys=("n",))},
        r"left_keys was \(id\) and is \(n\)",
    ),
    ({**TWO, "join": join()}, {**TWO, "join": join(min_delta_ms=0)}, "min_delta_ms was -60000 and is 0"),
    (
        {**TWO, "join": join()},
        {**TWO, "join": join(left_source="right", right_source="left")},
        "left_source was left and is right",
    ),
    ({**TWO, "join": join()}, TWO, r"has run with join= \(inner\) and is declared without"),
    (TWO, {**TWO, "join": join()}, "has run without join="),
    (TWO, topics("right", "left"), r"has its sources in another order \(right, left\)"),
    ({}, {"cdc": CDC()}, "has run without cdc= and is declared with it"),
    ({"cdc": CDC()}, {}, "has run with cdc= and is declared without"),
    ({"cdc": CDC()}, {"cdc": CDC(envelope="maxwell")}, "envelope was debezium and is maxwell"),
    ({"cdc": CDC()}, {"cdc": CDC(ts_field="ts_ms")}, r"ts_field is new \(ts_ms\)"),
    (
        {"cdc": MARKED},
        {"cdc": CDC()},
        r"delete_mode was soft and is hard; soft_delete_column \(gone\) is gone; rows that are marked",
    ),
    ({"cdc": CDC()}, {"cdc": MARKED}, "delete_mode was hard and is soft; .*rows that were deleted so far"),
    (
        {"cdc": MARKED},
        {"cdc": CDC(delete_mode="soft", soft_delete_column="left")},
        "soft_delete_column was gone and is left",
    ),
]


@pytest.mark.parametrize(("before", "after", "says"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_change_that_is_refused_with_words(
    checkpoint: Checkpoint, before: dict[str, Any], after: dict[str, Any], says: str
) -> None:
    has_run(declared(**before), checkpoint)
    with pytest.raises(Unsupported, match=says) as refused:
        refuse_declared_changes(declared(**after), checkpoint)
    assert "nothing was loaded" in (refused.value.state or "")
    assert refused.value.next_step


def test_a_record_of_changes_without_deletes_takes_those_that_are_declared(checkpoint: Checkpoint) -> None:
    """As an earlier version has written it."""
    before = {"envelope": "debezium", "ts_field": None}
    write_record(checkpoint.folder, DeclarationRecord(cdc=before))
    refuse_declared_changes(declared(cdc=MARKED), checkpoint)
    with pytest.raises(Unsupported, match="envelope was debezium and is maxwell"):
        refuse_declared_changes(declared(cdc=CDC(envelope="maxwell")), checkpoint)


def test_a_table_of_versions_takes_no_other_mode(checkpoint: Checkpoint) -> None:
    record = DeclarationRecord(targets={"lite:out": LoadedTarget("scd2", ("id",))})
    write_record(checkpoint.folder, record)
    with pytest.raises(Unsupported, match="mode= of lite:out was 'scd2' and is 'append'"):
        refuse_declared_changes(declared(), checkpoint)


def test_another_kind_of_source_is_refused(checkpoint: Checkpoint) -> None:
    has_run(declared(), checkpoint, ("object_store_local",))
    refuse_declared_changes(declared(), checkpoint, ("object_store_s3",))
    with pytest.raises(Unsupported, match="has read object_store and is declared with a source of kafka"):
        refuse_declared_changes(declared(), checkpoint, ("kafka",))


def test_a_stream_that_has_loaded_nothing_takes_every_change(checkpoint: Checkpoint) -> None:
    has_run(declared(window=window()), checkpoint)
    (checkpoint.folder / "commits" / "0").unlink()
    refuse_declared_changes(declared(), checkpoint)


def test_a_checkpoint_without_a_record_still_knows_that_it_had_a_window(checkpoint: Checkpoint) -> None:
    """As an earlier version has written it."""
    has_run(declared(window=window()), checkpoint)
    (checkpoint.folder / RECORD_FILE).unlink()
    refuse_declared_changes(declared(window=window(duration_ms=1)), checkpoint)  # the state refuses it
    with pytest.raises(Unsupported, match="rows of open windows would never be loaded"):
        refuse_declared_changes(declared(), checkpoint)


def test_a_state_file_that_is_gone_is_refused(checkpoint: Checkpoint) -> None:
    has_run(declared(window=window()), checkpoint)
    (checkpoint.state_folder / "state.duckdb").unlink()
    with pytest.raises(Unsupported, match=r"is gone from .*: the windows that were open would miss"):
        refuse_declared_changes(declared(window=window()), checkpoint)


def status(version: int, store: str = "checkpoint") -> StateStatus:
    return StateStatus("events", "all", store, "window", 2, version, 0, 0, None, None, None, 0.0)


def test_a_state_of_another_stream_or_of_an_older_time_is_refused(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state")
    with file.transaction(7, ()):
        file.store_progress(7, Progress())
    own = DeclarationRecord(state_id=file.id())
    check_state_file(file, own, status(7))
    check_state_file(file, own, status(6))  # the process died before it wrote the status
    check_state_file(file, own, status(9, "in_memory"))
    with pytest.raises(EngineError, match="is not the one of the stream's checkpoint"):
        check_state_file(file, DeclarationRecord(state_id="another"), None)
    with pytest.raises(EngineError, match="is older than the stream's checkpoint: it has come to version 7"):
        check_state_file(file, own, status(8))
    file.close()


def test_a_record_is_read_as_it_was_written_and_a_damaged_one_is_refused(checkpoint: Checkpoint) -> None:
    spec = declared(**TWO, join=join())
    loaded = {"lite:out": LoadedTarget("merge", ("id",))}
    record = replace(declared_record(spec, ("kafka", "kafka")), state_id="x", targets=loaded)
    write_record(checkpoint.folder, record)
    assert read_record(checkpoint.folder) == record
    (checkpoint.folder / RECORD_FILE).write_text(json.dumps({"format": 1}))
    with pytest.raises(EngineError, match="is damaged"):
        read_record(checkpoint.folder)


def test_a_target_that_is_new_is_named_when_the_stream_starts(tmp_path: Path) -> None:
    folder, notes = StreamFolder(tmp_path), list[str]()
    spec = declared(targets=[Target(LITE, table=name) for name in ("out", "more")])
    own, other = (Checkpoint(folder.checkpoint(name)) for name in ("all", "other"))
    other.folder.mkdir(parents=True)
    write_record(other.folder, DeclarationRecord(targets={"lite:out": LoadedTarget("append")}))
    known = known_targets(folder)
    DeclarationStore(spec, own, spec.targets, known, ("kafka",), notes.append).check()
    assert notes == ["lite:more is a new target: it gets what the stream reads from now on"]
    assert known_targets(folder).new_among(spec.targets) == ["lite:more"]  # until it is loaded


def test_a_target_that_was_never_reached_is_not_new(tmp_path: Path) -> None:
    """Both were declared at the first start, and only one of them could be loaded."""
    folder, notes = StreamFolder(tmp_path), list[str]()
    spec = declared(targets=[Target(LITE, table=name) for name in ("out", "more")])
    first = Checkpoint(folder.checkpoint("lite:out"))
    kept = DeclarationStore(spec, first, spec.targets[:1], known_targets(folder), (), notes.append)
    kept.check()
    record = read_record(first.folder)
    assert record is not None
    write_record(first.folder, replace(record, targets={"lite:out": LoadedTarget("append")}))
    assert known_targets(folder).new_among(spec.targets) == [] == notes
