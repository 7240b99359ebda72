"""Iceberg tables in a plain folder: one snapshot a load, evolution, partitions, names, and as a source."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import IcebergConnection
from ematix_flow.backends.base import SparkSource
from ematix_flow.backends.iceberg.catalog_settings import catalog_name
from ematix_flow.backends.iceberg.table_format import IcebergFormat
from ematix_flow.backends.iceberg.target import IcebergTarget
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.row_changes import ACTION_COLUMN, RowAction, RowChanges
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import PlanError, SchemaMismatch, SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.matched_loads import load_matched, table_of
from tests.iceberg_reading import rows_of, static_table
from tests.lakes import lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIG, TEXT, INTEGER = DataType("big_int"), DataType("text"), DataType("integer")
PEOPLE = replace(table_of("people", {"id": BIG}, {"name": TEXT}), schema="hr")


class Lake:
    """A folder of tables and its readers."""

    def __init__(self, folder: Path, spark: SparkSession, namespace: str = "") -> None:
        self.folder, self.spark = folder, spark
        self.connection = IcebergConnection(
            name="lake", catalog_type="hadoop", warehouse=str(folder), namespace=namespace
        )
        backend = open_backend(self.connection)
        target, source = lake_target(backend, spark), backend.source()
        assert isinstance(target, IcebergTarget)
        assert isinstance(source, SparkSource)
        self.target, self.source = target, source

    def load(self, table: TableSpec, rows: list[dict[str, Any]], mode: str = "append", **more: Any) -> None:
        """The load makes and changes the table itself, as a run does."""
        changes = self.target.plan_table(table, self.target.inspect(table))
        load_rows(self.target, new_load(table, mode, table_plan=changes, **more), rows, change=False)

    def stored(self, table: TableSpec, *namespace: str) -> Any:
        found = static_table(self.folder, *namespace, *filter(None, (table.schema, table.name)))
        assert found is not None
        return found

    def rows(self, table: TableSpec, *namespace: str) -> list[dict[str, Any]]:
        return sorted(rows_of(self.stored(table, *namespace).scan().to_arrow(), table), key=str)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """As a source, in its own session."""
        return [tuple(row) for row in self.source.frame(self.spark.newSession(), sql).collect()]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Another program's statement: ``lake`` is the catalog."""
        named = statement.replace("lake.", f"{catalog_name(self.connection)}.")
        return [tuple(row) for row in self.target.spark().sql(named).collect()]


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path / "a lake", spark)


def people(*names: str) -> list[dict[str, Any]]:
    return [{"id": number, "name": name} for number, name in enumerate(names, start=1)]


def test_each_load_is_one_snapshot_that_carries_its_number_and_token(lake: Lake) -> None:
    lake.load(PEOPLE, people("Ada", "Ben"))
    load_matched(lake.target, PEOPLE, "merge", people("Ada", "Bob", "Cy"))
    lake.load(PEOPLE, people("Dan"), "truncate", max_shrink=1.0)
    summaries = [s.summary.additional_properties for s in lake.stored(PEOPLE).snapshots()]
    assert [s["ematix_flow.number"] for s in summaries] == ["1", "2", "3"]
    assert len({s["ematix_flow.token"] for s in summaries}) == 3
    assert lake.rows(PEOPLE) == people("Dan")


def test_columns_are_added_widened_and_relaxed_by_changes_of_the_table(lake: Lake) -> None:
    narrow = {
        "small": DataType("small_int"),
        "whole": INTEGER,
        "real": DataType("float"),
        "money": DataType("numeric", precision=8, scale=2),
    }
    needed = ColumnSpec("needed", TEXT)
    first = table_of("grown", {"id": BIG}, narrow)
    first = replace(first, columns=(*first.columns, needed))
    row = {"id": 1, "small": 2, "whole": 3, "real": 0.5, "money": 4, "needed": "x"}
    lake.load(first, [row])
    live = lake.target.inspect(first)
    assert live is not None
    assert live.native["small"] == "INT", "Iceberg has no smaller one"
    plan = lake.target.plan_table(first, live)
    assert (plan.changes, plan.differences) == ((), ())
    wide = {
        "small": INTEGER,
        "whole": BIG,
        "real": DataType("double"),
        "money": DataType("numeric", precision=20, scale=2),
        "more": TEXT,
    }
    second = table_of("grown", {"id": BIG}, wide)
    second = replace(second, columns=(*second.columns, replace(needed, nullable=True)))
    plan = lake.target.plan_table(second, lake.target.inspect(second))
    assert [(c.action, c.subject.rpartition(".")[2]) for c in plan.changes] == [
        ("add_column", "more"),
        ("widen_column", "whole"),
        ("widen_column", "real"),
        ("widen_column", "money"),
        ("relax_null", "needed"),
    ]
    lake.load(second, [{"id": 2, "small": 70_000, "whole": 2**40, "real": 0.1, "money": 10**15, "more": "m"}])
    old, new = lake.rows(second)
    assert (old["whole"], old["real"], old["more"]) == (3, 0.5, None)
    assert (new["whole"], new["real"], new["needed"]) == (2**40, 0.1, None)
    assert int(new["money"]) == 10**15


def test_a_type_that_iceberg_cannot_change_is_refused_with_what_to_do(lake: Lake) -> None:
    lake.load(table_of("fixed", {"id": BIG}, {"n": INTEGER}), [{"id": 1, "n": 2}])
    wanted = table_of("fixed", {"id": BIG}, {"n": DataType("numeric", precision=20, scale=2)})
    plan = lake.target.plan_table(wanted, lake.target.inspect(wanted))
    assert plan.changes == ()
    assert "Iceberg does not change column 'n'" in " ".join(plan.differences)


def test_a_table_is_divided_by_the_columns_that_partition_by_names(lake: Lake) -> None:
    table = replace(table_of("sold", {"id": BIG}, {"day": DataType("date"), "a place": TEXT}), schema="shop")
    rows = [{"id": i, "day": None, "a place": p} for i, p in enumerate(["N/S", None, "N/S", "ü"])]
    lake.load(table, rows, partition_by=("a place", "day"))
    names = [field.name for field in lake.stored(table).spec().fields]
    assert names == ["a place", "day"]
    assert lake.rows(table) == sorted(rows, key=str)
    lake.load(table, [{"id": 9, "day": None, "a place": "x"}])
    with pytest.raises(SchemaMismatch, match=r"partitioned by a place, day, and partition_by says day"):
        lake.load(table, rows, partition_by=("day",))
    with pytest.raises(SchemaMismatch, match="partition_by names 'nowhere'"):
        lake.load(table, rows, partition_by=("nowhere",))
    assert len(lake.rows(table)) == 5


def test_a_table_that_another_divides_by_a_transform_is_loaded_as_it_is(lake: Lake) -> None:
    lake.sql("CREATE NAMESPACE lake.hr")
    lake.sql(
        "CREATE TABLE lake.hr.people (id BIGINT NOT NULL, name STRING, _loaded_at TIMESTAMP NOT NULL, "
        "_batch_id STRING NOT NULL) USING iceberg PARTITIONED BY (bucket(4, id))"
    )
    load_matched(lake.target, PEOPLE, "merge", people("Ada", "Ben"))
    load_matched(lake.target, PEOPLE, "merge", people("Ada", "Bob"))
    assert lake.rows(PEOPLE) == people("Ada", "Bob")
    with pytest.raises(SchemaMismatch, match=r"partitioned by bucket\(4, id\)"):
        lake.load(PEOPLE, people("Cy"), partition_by=("id",))


def test_namespaces_are_made_below_that_of_the_connection(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(tmp_path / "lake", spark, namespace="team.raw")
    plan = lake.target.plan_table(PEOPLE, lake.target.inspect(PEOPLE))
    assert [c.action for c in plan.changes] == ["create_schema"] * 3 + ["create_table"]
    lake.load(PEOPLE, people("Ada"))
    assert lake.rows(PEOPLE, "team", "raw") == people("Ada")
    bare = replace(PEOPLE, schema=None)
    lake.load(bare, people("Ben"))
    assert lake.ask("SELECT a.name, b.name FROM hr.people a CROSS JOIN people b") == [("Ada", "Ben")]


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "new\nline", ""])
def test_names_that_would_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    target = open_backend(
        IcebergConnection(name="lake", catalog_type="hadoop", warehouse=str(tmp_path / "lake"))
    ).target()
    assert isinstance(target, IcebergTarget)
    with pytest.raises(PlanError, match="cannot be the name of an Iceberg table"):
        target.name_table(replace(PEOPLE, name=name or "/"))
    assert not (tmp_path / "lake").exists()


def test_a_table_named_like_metadata_of_another_is_a_separate_table(lake: Lake) -> None:
    bare = replace(PEOPLE, schema=None)
    lake.load(bare, people("Ada"))
    inside = replace(PEOPLE, schema="people", name="snapshots")
    with pytest.raises(PlanError, match=r"'people.snapshots' and 'people' would be one inside the other"):
        lake.target.inspect(inside)
    assert len(lake.ask("SELECT snapshot_id FROM people.snapshots")) == 1
    with pytest.raises(SourceFailed, match=r"no Iceberg table 'nobody.snapshots'"):
        lake.ask("SELECT * FROM nobody.snapshots")
    for name in ("history", "tag_x", "nobody"):
        with pytest.raises(SourceFailed, match=f"no Iceberg table '{name}'"):
            lake.ask(f"SELECT * FROM {name}")


def test_a_source_joins_tables_each_at_one_moment(lake: Lake) -> None:
    lake.load(PEOPLE, people("Ada", "Ben"))
    paid = replace(table_of("paid", {"id": BIG}, {"sum": INTEGER}), schema="pay roll")
    lake.load(paid, [{"id": 1, "sum": 5}, {"id": 2, "sum": 7}])
    joined = (
        "WITH p AS (SELECT * FROM hr.people) "
        "SELECT name, `sum` FROM p JOIN `pay roll`.paid USING (id) WHERE people_count > 1 "
        "ORDER BY id"
    ).replace("people_count", "(SELECT count(*) FROM hr.people)")
    frame = lake.source.frame(lake.spark.newSession(), joined)
    load_matched(lake.target, PEOPLE, "merge", people("Eve"))
    assert [tuple(row) for row in frame.collect()] == [("Ada", 5), ("Ben", 7)]
    assert lake.ask(joined) == [("Eve", 5), ("Ben", 7)]
    first = lake.stored(PEOPLE).snapshots()[0].snapshot_id
    then = lake.ask(f"SELECT name FROM hr.people VERSION AS OF {first} WHERE id = 1")
    assert then == [("Ada",)]
    with pytest.raises(SourceFailed, match="cannot be read at version 77"):
        lake.ask("SELECT name FROM hr.people VERSION AS OF 77")
    with pytest.raises(SourceFailed, match="Did you mean 'people'"):
        lake.ask("SELECT * FROM hr.peple")


def test_a_column_that_was_renamed_since_the_last_load_is_read_by_its_new_name(lake: Lake) -> None:
    lake.load(PEOPLE, people("Ada"))
    lake.sql("ALTER TABLE lake.hr.people RENAME COLUMN name TO called")
    assert lake.ask("SELECT called FROM hr.people") == [("Ada",)]
    renamed = replace(table_of("people", {"id": BIG}, {"called": TEXT}), schema="hr")
    applied = load_matched(lake.target, renamed, "merge", [{"id": 1, "called": "Ada"}])
    assert applied.rows.unchanged == 1


def test_a_column_that_was_added_since_the_last_load_is_read_as_null(lake: Lake) -> None:
    lake.load(PEOPLE, people("Ada"))
    lake.sql("ALTER TABLE lake.hr.people ADD COLUMN age INT")
    assert lake.ask("SELECT name, age FROM hr.people") == [("Ada", None)]


def test_a_column_that_was_dropped_and_added_again_since_the_last_load_is_null(lake: Lake) -> None:
    lake.load(PEOPLE, people("Ada"))
    lake.sql("ALTER TABLE lake.hr.people DROP COLUMN name")
    lake.sql("ALTER TABLE lake.hr.people ADD COLUMN name STRING")
    assert lake.ask("SELECT id, name FROM hr.people") == [(1, None)]
    applied = load_matched(lake.target, PEOPLE, "merge", people("Ada"))
    assert applied.rows.updated == 1
    assert lake.rows(PEOPLE) == people("Ada")


def test_nested_fields_and_the_order_of_columns_are_those_of_the_current_table(lake: Lake) -> None:
    lake.load(PEOPLE, people("Ada"))
    lake.sql("CREATE TABLE lake.hr.places (id INT, at STRUCT<x: INT>, ways ARRAY<STRUCT<x: INT>>)")
    lake.sql("INSERT INTO lake.hr.places VALUES (1, struct(5), array(struct(7))), (2, NULL, NULL)")
    for change in ("at.y INT FIRST", "ways.element.y INT", "name STRING FIRST"):
        lake.sql(f"ALTER TABLE lake.hr.places ADD COLUMN {change}")
    assert lake.ask("SELECT * FROM hr.places ORDER BY id") == [
        (None, 1, (None, 5), [(7, None)]),
        (None, 2, None, None),
    ]


def test_a_load_adds_a_column_to_a_table_that_got_another_since_the_last_load(lake: Lake) -> None:
    lake.load(PEOPLE, people("Ada", "Ben"))
    lake.sql("ALTER TABLE lake.hr.people ADD COLUMN theirs INT")
    more = replace(table_of("people", {"id": BIG}, {"name": TEXT, "ours": INTEGER}), schema="hr")
    applied = load_matched(lake.target, more, "merge", [{"id": 1, "name": "Ada", "ours": 3}])
    assert (applied.rows.updated, applied.rows.inserted) == (1, 0)
    assert lake.ask("SELECT id, name, theirs, ours FROM hr.people ORDER BY id") == [
        (1, "Ada", None, 3),
        (2, "Ben", None, None),
    ]


def test_a_writer_that_commits_meanwhile_is_a_conflict_and_nothing_is_done(
    lake: Lake, tmp_path: Path
) -> None:
    """The merge has read the table and waits in a task while another program changes the same rows."""
    from pyspark.sql import functions as f

    lake.load(PEOPLE, people("Ada"))
    lake.sql("SELECT 1")
    format: IcebergFormat = lake.target.iceberg
    spark, gate = lake.target.spark(), str(tmp_path / "gate")

    def waiting(value: int) -> int:
        import os
        import time

        open(gate + ".reached", "w").close()
        for _ in range(600):
            if os.path.exists(gate):
                break
            time.sleep(0.1)
        return value

    slow = f.udf(lambda value: waiting(value), "bigint")  # PySpark would inspect written types
    frame = spark.createDataFrame([(1, "Eve", "update_0")], f"id bigint, name string, {ACTION_COLUMN} string")
    frame = frame.withColumn("_ematix_match_0", slow("id"))
    changes = RowChanges((RowAction("update_0", "update", ("name",)),), ("id",), frame, {"update_0": 1})
    failed: list[Exception] = []

    def merge() -> None:
        try:
            format.merge(spark, PEOPLE.with_load_columns(), changes, LakeCommit(2, "token"))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    try:
        for _ in range(600):
            if Path(gate + ".reached").exists():
                break
            thread.join(0.1)
        other = Lake(lake.folder, lake.spark)
        other.sql("UPDATE lake.hr.people SET name = 'Zoe' WHERE id = 1")
    finally:
        Path(gate).touch()
        thread.join(120)
    assert len(failed) == 1
    assert format.is_conflict(failed[0])
    assert lake.rows(PEOPLE) == people("Zoe")
    assert not format.has_commit(lambda: spark, PEOPLE, "token")
