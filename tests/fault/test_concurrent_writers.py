"""Several writers at one table at once, ours and others: every row is there once, every batch in the ledger.

The rows of the table at the end are known before, for every order of the writers: they append
different rows, and merge the same keys to the same values.
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ematix_flow import ObjectStoreLocalConnection, fault_points
from ematix_flow.backends.base import BatchTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import FlowError
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.matched_loads import table_and_matching, table_of
from tests.contract.s3_files import S3Lake
from tests.fault.lake_tables import DeltaFolder, FilesInBucket, IcebergFolder, LocalFiles
from tests.lakes import lake_backend, lake_target
from tests.services.s3 import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.fault

TABLE = table_of("shared", {"id": DataType("big_int")}, {"name": DataType("text")})
ROUNDS, ROUNDS_LONG = 2, 12
RoundWriter = Callable[[int], None]  # what it does in a round


def write_at_once(writers: Sequence[RoundWriter], rounds: int) -> None:
    """Each writer in its own thread; they begin each round together."""
    together = threading.Barrier(len(writers))
    failures: list[BaseException] = []

    def work(writer: RoundWriter) -> None:
        try:
            for number in range(rounds):
                together.wait()
                writer(number)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in failures if not isinstance(error, threading.BrokenBarrierError)]
    if real:
        raise real[0]


def appending(target: BatchTarget, name: str) -> RoundWriter:
    """A pipeline that appends rows that no other writer has."""

    def write(number: int) -> None:
        rows = [{"id": number * 10 + n, "name": name} for n in range(10)]
        load_rows(target, new_load(TABLE, pipeline=name, batch_key=f"{name}:{number}"), rows, change=False)

    return write


def merging(target: BatchTarget, name: str) -> RoundWriter:
    """A pipeline that merges the same keys in each round; each key has one row."""
    stored, matching = table_and_matching(TABLE, "merge")

    def write(number: int) -> None:
        rows = [{"id": -1 - n, "name": f"round {number}"} for n in range(10)]
        load = new_load(stored, "merge", matching=matching, pipeline=name, batch_key=f"{name}:{number}")
        load_rows(target, load, rows, change=False)

    return write


def appended(rounds: int, *names: str) -> list[tuple[int, str]]:
    return [(n, name) for name in names for n in range(rounds * 10)]


def merged(rounds: int) -> list[tuple[int, str]]:
    return [(-1 - n, f"round {rounds - 1}") for n in range(10)]


# ------------------------------------------------------------------ folders and buckets of files


@pytest.mark.parametrize("kind", ["local", "s3"])
@pytest.mark.parametrize("rounds", [ROUNDS + 2, pytest.param(ROUNDS_LONG, marks=pytest.mark.long)])
def test_pipelines_that_append_to_one_folder_of_files_at_once_lose_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, rounds: int
) -> None:
    """The first loads of all of them too, one of which makes the table."""
    names = ("one", "two", "three")
    store: LocalFiles | FilesInBucket
    targets: list[Any]
    if kind == "local":
        store = LocalFiles(where=str(tmp_path / "lake"))
        connection = ObjectStoreLocalConnection(name="lake", path=store.where, format="parquet")
        targets = [open_backend(connection).target() for _ in names]
    else:
        server: S3Server = request.getfixturevalue("s3")
        lake = S3Lake(server, request.getfixturevalue("s3_bucket"), prefix=f"lake-{uuid.uuid4().hex[:8]}")
        store = FilesInBucket(where=lake.prefix, server=server, bucket=lake.bucket)
        targets = [lake.backend().target() for _ in names]
    write_at_once([appending(target, name) for target, name in zip(targets, names, strict=True)], rounds)
    batches, rows = store.look("contract", "shared", "id, name")
    assert sorted(rows or []) == sorted(appended(rounds, *names))
    assert batches == rounds * len(names)
    assert store.left_behind("contract", "shared") == []


# ------------------------------------------------------------------ lakes


def stamped(rows: Sequence[tuple[int, str]]) -> pa.Table:
    """Rows as another program writes them into a table of ours."""
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    return pa.table(
        {
            "id": pa.array([key for key, _ in rows], pa.int64()),
            "name": pa.array([name for _, name in rows], pa.string()),
            "_loaded_at": pa.array([moment] * len(rows), pa.timestamp("us", "UTC")),
            "_batch_id": pa.array(["by hand"] * len(rows), pa.string()),
        }
    )


def by_delta_rs(folder: Path) -> RoundWriter:
    """Another program, which does not take our lock: it appends, and merges into the keys of our merge."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import CommitFailedError

    def write(number: int) -> None:
        rows = [(number * 10 + n, "theirs") for n in range(10)]
        write_deltalake(str(folder), stamped(rows), mode="append")
        for _ in range(100):  # it is overtaken as we are, and tries again as we do
            try:
                found = DeltaTable(str(folder)).merge(
                    stamped([(-1 - n, f"round {number}") for n in range(10)]),
                    "t.id = s.id AND t.id < 0",
                    source_alias="s",
                    target_alias="t",
                )
                found.when_matched_update({"name": "s.name"}).execute()
                return
            except CommitFailedError:
                continue
        raise AssertionError("delta-rs was overtaken a hundred times")

    return write


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_LONG, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_two_pipelines_and_another_program_write_one_delta_table_at_once(
    tmp_path: Path, spark: SparkSession, rounds: int
) -> None:
    store = DeltaFolder(where=str(tmp_path / "lake"))
    targets = [lake_target(lake_backend("delta", tmp_path / "lake"), spark) for _ in range(2)]
    merging(targets[1], "two")(0)  # the other program finds a table
    folder = tmp_path / "lake" / "contract" / "shared"
    write_at_once(
        [
            appending(targets[0], "one"),
            lambda number: merging(targets[1], "two")(number + 1),
            lambda number: by_delta_rs(folder)(number + 1),
        ],
        rounds,
    )
    batches, rows = store.look("contract", "shared", "id, name")
    theirs = [(n, "theirs") for n in range(10, (rounds + 1) * 10)]
    assert sorted(rows or []) == sorted([*appended(rounds, "one"), *merged(rounds + 1), *theirs])
    assert batches == 2 * rounds + 1
    for target, name, expected in zip(targets, ("one", "two"), (rounds, rounds + 1), strict=True):
        assert len(target.ledger(name, "contract:target")) == expected


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_LONG, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_two_pipelines_write_one_iceberg_table_at_once(
    tmp_path: Path, spark: SparkSession, rounds: int
) -> None:
    """Their first loads too, one of which makes the table."""
    store = IcebergFolder(where=str(tmp_path / "lake"))
    targets = [lake_target(lake_backend("iceberg", tmp_path / "lake"), spark) for _ in range(2)]
    spark_namespace(targets[0])
    write_at_once([appending(targets[0], "one"), merging(targets[1], "two")], rounds)
    batches, rows = store.look("contract", "shared", "id, name")
    assert sorted(rows or []) == sorted([*appended(rounds, "one"), *merged(rounds)])
    assert batches == 2 * rounds


def spark_namespace(target: Any) -> None:
    """A run makes the namespace as one of its changes."""
    with target.session() as session:
        for change in target.schema_changes(session, TABLE):
            session.execute(change.sql)


# ------------------------------------------------------------------ a table that another program makes


@contextmanager
def made_meanwhile(folder: Path, rows: pa.Table) -> Iterator[None]:
    """By delta-rs, when our first load has been computed and is about to commit."""
    from deltalake import write_deltalake

    with fault_points.inject("apply.before_commit", lambda: write_deltalake(str(folder), rows)):
        yield


def test_a_first_load_goes_on_in_a_delta_table_that_another_program_made_meanwhile(
    tmp_path: Path, spark: SparkSession
) -> None:
    target = lake_target(lake_backend("delta", tmp_path / "lake"), spark)
    with made_meanwhile(tmp_path / "lake" / "contract" / "shared", stamped([(1, "theirs")])):
        load_rows(target, new_load(TABLE), [{"id": 2, "name": "ours"}], change=False)
    batches, rows = DeltaFolder(where=str(tmp_path / "lake")).look("contract", "shared", "id, name")
    assert (batches, sorted(rows or [])) == (1, [(1, "theirs"), (2, "ours")])


def test_a_first_load_is_refused_by_a_table_of_other_columns_that_was_made_meanwhile(
    tmp_path: Path, spark: SparkSession
) -> None:
    target = lake_target(lake_backend("delta", tmp_path / "lake"), spark)
    live = target.inspect(TABLE)
    load = new_load(TABLE, table_plan=target.plan_table(TABLE, live))
    with (
        made_meanwhile(tmp_path / "lake" / "contract" / "shared", pa.table({"other": [1]})),
        pytest.raises(FlowError, match="changed by another process"),
    ):
        load_rows(target, load, [{"id": 2, "name": "ours"}], change=False)
    batches, rows = DeltaFolder(where=str(tmp_path / "lake")).look("contract", "shared", "other")
    assert (batches, rows) == (0, [(1,)])
