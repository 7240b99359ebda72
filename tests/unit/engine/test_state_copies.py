"""A state as bytes and back: the same rows, and the same way back to the version before."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.state.mirror import pack_checkpoint, unpack_checkpoint
from ematix_flow.engine.streams.state.progress import Progress, SourceProgress
from ematix_flow.engine.streams.state.state_file import FORMAT, LIFETIME, StateFile
from ematix_flow.engine.streams.state.table_copies import changes, full_copy, restore_state, state_facts
from ematix_flow.errors import EngineError, Unsupported
from ematix_flow.state.stream_states import StatePart

LEFT, RIGHT = '"left ""side"', "rights"
ROWS: list[tuple[Any, ...]] = [
    (None, None, None, None, None),
    (2**62, "é\0'", Decimal("12345678901234567890123456789012345.678"), b"\0\xff", dt.date(1, 1, 1)),
    (-1, "", Decimal("0.000"), b"", dt.date(9999, 12, 31)),
]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StateFile]:
    opened = StateFile(tmp_path / "state")
    for table in (LEFT, RIGHT):
        opened.database.execute(
            f"CREATE TABLE {table} (k BIGINT, t VARCHAR, d DECIMAL(38,3), b BLOB, day DATE, {LIFETIME})"
        )
    yield opened
    opened.close()


def change(file: StateFile, version: int, chance: random.Random) -> None:
    """End some rows and make some, in both tables; some rows have the same values as others."""
    with file.transaction(version, (LEFT, RIGHT)) as database:
        for table in (LEFT, RIGHT):
            ended = f"UPDATE {table} SET until = {version} WHERE rowid IN"
            database.execute(
                f"{ended} (SELECT rowid FROM {table} WHERE until IS NULL ORDER BY hash(rowid, {version}) "
                f"LIMIT {chance.randrange(3)})"
            )
            for row in chance.choices(ROWS, k=chance.randrange(4)):
                database.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, {version}, NULL)", row)
        file.store_progress(version, Progress((SourceProgress(version),), version, None))
    file.store_fact("tick", str(version))


def contents(file: StateFile, version: int) -> dict[str, Any]:
    """The current rows, those before ``version``, the facts and the progress."""
    found: dict[str, Any] = {"facts": file.facts(), "progress": file.newest_progress(2)}
    for table in (LEFT, RIGHT):
        names = "k, t, d, b, day, since"
        current = file.database.execute(f"SELECT {names} FROM {table} WHERE until IS NULL").fetchall()
        before = file.database.execute(
            f"SELECT {names} FROM {table} WHERE since < {version} AND (until IS NULL OR until >= {version})"
        ).fetchall()
        found[table] = sorted(current, key=repr), sorted(before, key=repr)
    return found


@pytest.mark.parametrize(
    "restored_versions",
    [
        pytest.param({1, 2, 3, 11, 19, 20, 21, 22, 30, 39}, id="around the copies"),
        pytest.param(set(range(1, 40)), id="all", marks=pytest.mark.long),
    ],
)
def test_a_restored_state_has_the_same_rows_and_the_same_version_before(
    file: StateFile, tmp_path: Path, restored_versions: set[int]
) -> None:
    chance = random.Random(4)
    parts: list[StatePart] = []
    for version in range(1, 40):
        change(file, version, chance)
        is_copy = version in (1, 20)
        parts = [*([] if is_copy else parts), *(full_copy if is_copy else changes)(file, version)]
        if version not in restored_versions:
            continue
        restore_state(tmp_path / str(version), state_facts(file), iter(parts), version)
        restored = StateFile(tmp_path / str(version))
        assert contents(restored, version) == contents(file, version)
        restored.close()
    assert len(contents(file, 39)[RIGHT][0]) > 5


def test_a_state_of_a_newer_version_is_refused(file: StateFile, tmp_path: Path) -> None:
    change(file, 1, random.Random(1))
    newer = json.dumps({**json.loads(state_facts(file)), "format": 2})
    with pytest.raises(Unsupported, match="format 2, and this version knows formats up to 1"):
        restore_state(tmp_path / "restored", newer, full_copy(file, 1), 1)
    file.store_fact("definition", json.dumps({"format": FORMAT + 1, "kind": "tumbling"}))
    with pytest.raises(Unsupported, match="a newer version of ematix-flow has written it") as refused:
        file.require_definition({"kind": "tumbling"})
    assert refused.value.next_step == "run the stream with that version or a newer one"


def test_a_damaged_copy_runs_no_sql_and_writes_outside_no_folder(file: StateFile, tmp_path: Path) -> None:
    change(file, 1, random.Random(1))
    facts = json.loads(state_facts(file))
    facts["tables"]["rights"][0][1] = "BIGINT); COPY facts TO 'x'; --"
    with pytest.raises(EngineError, match="is not a type"):
        restore_state(tmp_path / "restored", json.dumps(facts), [], 1)
    with pytest.raises(EngineError, match="is not a file of a checkpoint"):
        unpack_checkpoint(json.dumps({"../x": ""}), tmp_path / "checkpoint")


def test_a_state_that_knew_one_source_is_converted(tmp_path: Path) -> None:
    """Format 1 had a column for each value of the progress."""
    (tmp_path / "state").mkdir()
    with duckdb.connect(str(tmp_path / "state" / "state.duckdb")) as database:
        database.execute("CREATE TABLE facts (name VARCHAR PRIMARY KEY, value VARCHAR)")
        database.execute(
            "CREATE TABLE progress (version BIGINT, highest BIGINT, watermark BIGINT, border BIGINT)"
        )
        database.execute("INSERT INTO progress VALUES (0, 50, 40, 30), (1000000, NULL, NULL, NULL)")
        database.execute("""INSERT INTO facts VALUES ('definition', '{"format": 1, "kind": "tumbling"}')""")
    for _ in range(2):  # the second time, it is already converted
        file = StateFile(tmp_path / "state")
        assert file.progress_before(1) == Progress((SourceProgress(50),), 40, 30)
        assert file.progress() == Progress((SourceProgress(None),))
        file.require_definition({"kind": "tumbling"})
        with pytest.raises(Unsupported, match="written with another kind"):
            file.require_definition({"kind": "hopping"})
        file.close()


def test_the_files_from_which_spark_resumes_are_packed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for name in ("offsets", "commits", "sources/0", "windows"):
        (folder / name).mkdir(parents=True)
    for number in range(12):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"t":{{"0":{number}}}}}')
        (folder / "offsets" / f".{number}.crc").write_text("x")
        if number < 11:
            (folder / "commits" / str(number)).write_text("v1\n{}")
    (folder / "metadata").write_text('{"id": "q"}')
    (folder / "sources" / "0" / "0").write_bytes(b'\0v1\n{"t":{"0":0}}')
    (folder / "windows" / "state.duckdb").write_text("large")
    unpack_checkpoint(pack_checkpoint(folder), tmp_path / "restored")
    restored = Checkpoint(tmp_path / "restored")
    assert (restored.query_id(), restored.last_planned(), restored.last_committed()) == ("q", 11, 10)
    assert restored.positions_before(11) == ('{"t":{"0":10}}',)
    assert (restored.folder / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"t":{"0":0}}'
    assert sum(1 for path in restored.folder.rglob("*") if path.is_file()) == 6


def test_a_state_in_memory_lives_while_it_is_opened_again_and_no_longer(tmp_path: Path) -> None:
    first = StateFile(tmp_path, in_memory=True)
    first.store_fact("tick", "1")
    with first.kept_in_memory():
        first.close()
        second = StateFile(tmp_path, in_memory=True)
    other = StateFile(tmp_path / "other", in_memory=True)
    assert (second.fact("tick"), other.fact("tick")) == ("1", None)
    second.close()
    other.close()
    third = StateFile(tmp_path, in_memory=True)
    assert third.fact("tick") is None
    third.close()
    assert not (tmp_path / "state.duckdb").exists()
