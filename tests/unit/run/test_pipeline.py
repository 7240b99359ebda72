"""A whole run without Spark: SQLite loads from itself, and the run log records it."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import (
    BigInt,
    Pipeline,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    fault_points,
    get_connection,
    pk,
    register_connection,
)
from ematix_flow.backends.base import BatchSource
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import (
    CannotConnect,
    DeclarationError,
    FlowError,
    Interrupted,
    LoadError,
    PipelineLocked,
    PlanError,
    PostTransformFailed,
    RowRejected,
    SchemaMismatch,
    SourceFailed,
    TargetFailed,
    UnknownConnection,
    UnknownName,
)
from ematix_flow.graph.registry import current_registry
from ematix_flow.observe.listener import Listener
from ematix_flow.plan.results import RunResult
from ematix_flow.run import loading
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.dag import run_dag
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.state.local_stores import open_local_run_log
from tests.unit.run.sqlite_file import execute


@ematix.table(schema="analytics")
class People:
    id: Annotated[BigInt, pk()]
    name: Text | None


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE raw_people (id INTEGER, name TEXT)")
    execute(path, "INSERT INTO raw_people VALUES (1, 'Ada'), (2, NULL)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


def declare(name: str = "people", sql: str = "SELECT id, name FROM raw_people", **options: Any) -> Pipeline:
    @ematix.pipeline(**{"target": People, "target_connection": "shop", "name": name, **options})
    def load(conn: Any) -> str:
        return sql

    return load


def logged() -> list[Any]:
    with open_local_run_log(env=os.environ, reading=True) as log:
        return list(log.list())


def test_a_run_loads_counts_and_is_recorded(database: Path) -> None:
    result = declare().sync()
    assert (result.status, result.path, result.rows_inserted) == ("succeeded", "same_db", 2)
    assert execute(database, "SELECT id, name FROM analytics__people ORDER BY 1") == [(1, "Ada"), (2, None)]
    (record,) = logged()
    assert (record.pipeline, record.status, record.rows.inserted, record.trigger) == (
        "people",
        "succeeded",
        2,
        "sync",
    )
    assert record.run_id == result.run_id


def test_a_run_log_that_breaks_meanwhile_stops_no_run(database: Path) -> None:
    load = declare()
    with run_context() as context:
        execute(Path(context.run_log.location.removeprefix("sqlite://")), "DROP TABLE run_log")
        (outcome,) = run_dag(current_registry(), [load.name], context)
    assert outcome.status == "succeeded" and outcome.result is not None
    assert "it is not known whether an earlier run was interrupted" in outcome.result.notes[0]


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
@pytest.mark.parametrize(
    ("schema", "name", "meaning"),
    [
        ("ematix_flow", "ledger", "the ledger of committed batches"),
        ("Ematix_Flow", "Ledger", "the ledger of committed batches"),
        (None, "ematix_flow__ledger", "the ledger of committed batches"),  # its name in SQLite
        ("ematix_flow", "watermarks", "the watermarks"),
        ("ematix_flow_staging", "mine", "its own records"),
    ],
)
def test_a_table_that_the_product_keeps_for_itself_is_refused_by_what_it_is(
    database: Path, schema: str | None, name: str, meaning: str, mode: str
) -> None:
    declare().sync()  # so that ledger and watermarks are there
    table = TableSpec(schema, name, (ColumnSpec("id", DataType("big_int"), primary_key=True),))
    with pytest.raises(SchemaMismatch, match=f"ematix-flow keeps {meaning}"):
        declare("own", "SELECT id FROM raw_people", target=table, mode=mode).sync()


def test_calling_the_pipeline_runs_it(database: Path) -> None:
    assert declare(mode="truncate")().rows_inserted == 2


def test_the_plan_says_what_a_run_would_do_and_changes_nothing(database: Path) -> None:
    plan = declare().plan()
    text = str(plan)
    assert plan.has_changes
    for words in (
        "pipeline  people",
        "same_db: source and target are one database",
        "exactly_once",
        "create table",
    ):
        assert words in text
    assert execute(database, "SELECT count(*) FROM sqlite_master") == [(1,)]


def test_a_preview_shows_the_first_rows(database: Path) -> None:
    preview = declare().preview(rows=1)
    assert (preview.columns, preview.rows) == (("id", "name"), ((1, "Ada"),))
    assert preview.to_json()["sample"] == [{"id": 1, "name": "Ada"}]


def test_a_dry_run_counts_and_changes_nothing(database: Path) -> None:
    load = declare()
    assert load.dry_run().rows_inserted == 2
    assert execute(database, "SELECT count(*) FROM sqlite_master") == [(1,)]
    load.sync()
    assert declare("again", mode="truncate").dry_run().rows_deleted == 2
    assert len(execute(database, "SELECT * FROM analytics__people")) == 2


def test_a_dry_run_counts_the_rows_of_a_table_that_the_run_changes(database: Path) -> None:
    execute(database, "CREATE TABLE analytics__people (id bigint PRIMARY KEY)")
    assert declare(on_drift="evolve").dry_run().rows_inserted == 2
    assert [row[1] for row in execute(database, "PRAGMA table_info(analytics__people)")] == ["id"]


def test_validation_answers_instead_of_raising(database: Path) -> None:
    assert declare().validate().ok
    wrong = declare("wrong", sql="SELECT id, nam FROM raw_people").validate()
    assert not wrong.ok
    assert isinstance(wrong.error, SourceFailed)
    assert "nam" in wrong.error.what


def test_what_the_source_table_option_reads_can_be_renamed(database: Path) -> None:
    @ematix.table(schema="analytics")
    class Renamed:
        person: BigInt
        name: Text | None

    @ematix.pipeline(
        target=Renamed, target_connection="shop", source_table="raw_people", column_map={"person": "id"}
    )
    def renamed() -> None:
        pass

    assert renamed.sync().rows_inserted == 2
    assert execute(database, "SELECT person FROM analytics__renamed ORDER BY 1") == [(1,), (2,)]


def test_a_function_may_ask_its_connection_and_may_be_a_coroutine(database: Path) -> None:
    @ematix.pipeline(target=People, target_connection="shop")
    async def asking(conn: Any) -> str:
        highest = conn.fetch_scalar_int("SELECT max(id) FROM raw_people")
        return f"SELECT id, name FROM raw_people WHERE id = {highest}"

    assert asking.sync().rows_inserted == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"sql": "SELEC id"}, SourceFailed, "SELEC"),
        ({"sql": ""}, DeclarationError, "empty string"),
        ({"sql": 3}, DeclarationError, "returned int, not SQL"),
        ({"sql": None}, DeclarationError, "no source_table="),
        ({"sql": "SELECT id FROM raw_people"}, SchemaMismatch, "name"),
        ({"sql": "SELECT id, name, 1 AS extra FROM raw_people"}, SchemaMismatch, "extra"),
        ({"target_connection": "shp"}, UnknownConnection, "Did you mean 'shop'"),
        ({"incremental": True, "watermark_column": "nme"}, DeclarationError, "Did you mean 'name'"),
    ],
)
def test_a_pipeline_that_cannot_run_says_why_and_where_and_is_recorded(
    database: Path, options: dict[str, Any], error: type[FlowError], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        declare(**options).sync()
    assert raised.value.where is not None
    assert raised.value.where.file == __file__
    (record,) = logged()
    assert (record.status, record.error_type) == ("failed", error.__name__)
    assert execute(database, "SELECT count(*) FROM sqlite_master") == [(1,)]


def test_a_function_that_raises_is_reported_with_its_line(database: Path) -> None:
    @ematix.pipeline(target=People, target_connection="shop")
    def broken(conn: Any) -> str:
        raise RuntimeError("no luck")

    with pytest.raises(PlanError, match=r"raised RuntimeError: no luck \(line \d+\)"):
        broken.sync()


def test_post_load_transforms_run_after_the_load_each_on_its_own(database: Path) -> None:
    seen: list[tuple[str, int]] = []

    @ematix.transform(name="note")
    def note(conn: Any, parent: Any) -> None:
        seen.append((parent.pipeline_name, parent.rows_inserted))

    load = declare(
        transforms_post=[
            "CREATE TABLE mart AS SELECT count(*) AS n FROM analytics__people",
            ematix.transform_ref("note"),
            lambda conn: seen.append((conn.name, conn.scalar("SELECT n FROM mart"))),
        ]
    )
    result = load.sync()
    assert seen == [("people", 2), ("shop", 2)]
    assert [outcome for _, outcome in result.post] == ["ok", "ok", "ok"]


def test_a_failing_post_load_transform_says_that_the_load_is_committed(database: Path) -> None:
    with pytest.raises(LoadError, match="post-load transform 1") as raised:
        declare(transforms_post=["DELETE FROM nowhere"]).sync()
    assert "committed" in (raised.value.state or "")
    assert len(execute(database, "SELECT * FROM analytics__people")) == 2


def test_a_failing_post_load_transform_can_be_let_pass(database: Path) -> None:
    load = declare(
        transforms_post=["DELETE FROM nowhere", "CREATE TABLE after AS SELECT 1"],
        continue_on_failure_post=True,
    )
    first, second = load.sync().post
    assert "nowhere" in first[1]
    assert second[1] == "ok"


def test_a_failed_attempt_is_tried_again_as_the_retry_policy_says(database: Path) -> None:
    calls: list[int] = []
    waited = [0.0, 0.0]  # after the first and the second attempt

    def sleep(seconds: float) -> None:
        waited[len(calls) - 1] += seconds

    @ematix.pipeline(
        target=People,
        target_connection="shop",
        retry={"max_attempts": 3, "backoff_seconds": 2, "backoff_factor": 3},
    )
    def flaky(conn: Any) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise CannotConnect("the network is down")
        return "SELECT id, name FROM raw_people"

    import dataclasses

    from ematix_flow.run.pipeline import run_declared_pipeline

    with run_context() as context:
        context = dataclasses.replace(context, sleep=sleep)
        result = run_declared_pipeline(current_registry().pipeline("flaky"), context)
    assert result.attempts == 3
    assert [2 <= waited[0] <= 2.2, 6 <= waited[1] <= 6.6] == [True, True]  # and a little more by chance
    assert [record.status for record in logged()] == ["succeeded", "failed", "failed"]


def test_a_run_for_a_slot_that_nobody_keeps_is_tried_again_like_any_other(database: Path) -> None:
    """As a task of Airflow calls it."""
    calls: list[int] = []

    @ematix.pipeline(target=People, target_connection="shop", retry={"max_attempts": 3})
    def flaky(conn: Any) -> str:
        calls.append(1)
        if len(calls) < 3:
            raise CannotConnect("the network is down")
        return "SELECT id, name FROM raw_people"

    slot = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
    assert flaky.sync(slot=slot).attempts == 3
    assert flaky.sync(slot=slot).status == "skipped"


def test_a_slot_that_is_loaded_asks_nothing_of_its_source_any_more(database: Path) -> None:
    """A run commits and dies before it records its end; at the next attempt the source is unreachable."""

    @ematix.pipeline(target=People, target_connection="shop")
    def people(conn: Any) -> str:
        return "SELECT id, name FROM raw_people"

    slot = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
    assert people.sync(slot=slot).rows_inserted == 2
    execute(database, "DROP TABLE raw_people")
    again = people.sync(slot=slot)
    assert (again.status, again.reason) == ("skipped", "the ledger already holds this batch")
    with pytest.raises(FlowError):
        people.sync(slot=slot + dt.timedelta(days=1))


def test_a_failing_post_load_transform_does_not_make_a_retry_load_again(database: Path) -> None:
    with pytest.raises(PostTransformFailed):
        declare(retry={"max_attempts": 3}, transforms_post=["DELETE FROM nowhere"]).sync()
    assert len(execute(database, "SELECT * FROM analytics__people")) == 2


def lose_the_connection() -> None:
    raise TargetFailed("the connection was lost")


def test_a_run_that_does_not_hear_of_its_commit_asks_the_ledger(database: Path) -> None:
    with fault_points.inject("apply.after_commit", lose_the_connection):
        result = declare().sync()
    assert (result.status, result.attempts) == ("succeeded", 1)
    assert result.reason == "committed, though the answer was lost (the connection was lost)"
    assert len(execute(database, "SELECT * FROM analytics__people")) == 2


def test_a_retry_after_a_lost_commit_finds_the_batch_in_the_ledger(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> bool:
        raise TargetFailed("it is still not there")

    monkeypatch.setattr(loading, "ledger_holds", unreachable)
    with fault_points.inject("apply.after_commit", lose_the_connection):
        result = declare(retry={"max_attempts": 3}).sync()
    assert (result.status, result.attempts) == ("succeeded", 2)
    assert result.reason == "an earlier attempt of this run had committed it"
    assert len(execute(database, "SELECT * FROM analytics__people")) == 2


@pytest.mark.parametrize("how", [{}, {"incremental": True, "watermark_column": "id"}])
def test_transforms_that_a_slot_still_owes_run_without_another_load(
    database: Path, how: dict[str, Any]
) -> None:
    """As when a run is killed between its commit and the end of what follows."""
    ran: list[str] = []

    def follows(conn: Any) -> None:
        ran.append("")
        if len(ran) == 1:
            raise KeyboardInterrupt

    load = declare(transforms_post=[follows], **how)
    slot = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
    with pytest.raises(Interrupted):
        load.sync(slot=slot)
    execute(database, "DROP TABLE raw_people")
    assert (load.sync(slot=slot).status, len(ran)) == ("succeeded", 2)
    assert (load.sync(slot=slot).status, len(ran)) == ("skipped", 2)
    assert len(execute(database, "SELECT * FROM analytics__people")) == 2


@pytest.mark.parametrize("go_on", [True, False])
def test_a_failing_target_does_not_make_a_retry_load_the_other_again(database: Path, go_on: bool) -> None:
    @ematix.table(schema="analytics")
    class Strict:
        id: BigInt
        name: Text

    @ematix.pipeline(
        targets=[Target(connection="shop", table=People), Target(connection="shop", table=Strict)],
        retry={"max_attempts": 3},
        continue_on_target_failure=go_on,
    )
    def both(conn: Any) -> str:
        return "SELECT id, name FROM raw_people"

    if go_on:
        result = both.sync()
        assert [t.status for t in result.targets] == ["succeeded", "failed"]
        assert result.status == "failed"
    else:
        with pytest.raises(LoadError, match="1 of 2 targets failed"):
            both.sync()
    assert len(execute(database, "SELECT * FROM analytics__people")) == 2
    assert execute(database, "SELECT name FROM sqlite_master WHERE name = 'analytics__strict'") == []


def test_an_unforeseen_exception_stops_its_pipeline_and_not_the_others(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare("first")
    declare("second", mode="truncate")
    from ematix_flow.backends.sqlite.backend import SQLiteBackend

    real = SQLiteBackend.source
    calls: list[int] = []

    def once(self: SQLiteBackend) -> BatchSource:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("surprise")
        return real(self)

    monkeypatch.setattr(SQLiteBackend, "source", once)
    with run_context() as context:
        outcomes = run_dag(current_registry(), None, context)
    assert [o.status for o in outcomes] == ["failed", "succeeded"]
    assert "unexpected KeyError" in (outcomes[0].reason or "")


INCREMENTAL = {"incremental": True, "watermark_column": "id"}


@pytest.mark.parametrize("ending", ["", ";", "; -- done", " -- done", "\n;\n"])
def test_an_incremental_pipeline_runs_again_however_its_sql_ends(database: Path, ending: str) -> None:
    load = declare(sql=f"SELECT id, name FROM raw_people{ending}", **INCREMENTAL)
    assert load.sync().rows_inserted == 2
    execute(database, "INSERT INTO raw_people VALUES (3, 'Grace')")
    assert load.sync().rows_inserted == 1
    assert load.sync().status == "skipped"


def test_a_renamed_watermark_filters_the_source_by_its_own_name(database: Path) -> None:
    load = declare(
        sql="SELECT id AS person, name FROM raw_people", column_map={"id": "person"}, **INCREMENTAL
    )
    assert load.sync().rows_inserted == 2
    execute(database, "INSERT INTO raw_people VALUES (3, 'Grace')")
    assert load.sync().rows_inserted == 1


def test_a_query_that_answers_differently_each_time_is_asked_once(database: Path) -> None:
    sql = "SELECT id, name FROM raw_people UNION ALL SELECT 10 + abs(random() % 1000000), 'drawn'"
    result = declare(sql=sql, **INCREMENTAL).sync()
    highest = execute(database, "SELECT max(id) FROM analytics__people")[0][0]
    assert (result.rows_read, result.rows_inserted) == (3, 3)
    assert result.targets[0].source_to == str(highest)


def test_a_misspelt_source_column_is_an_error_and_not_a_text(database: Path) -> None:
    @ematix.pipeline(
        target=People, target_connection="shop", source_table="raw_people", column_map={"name": "nmae"}
    )
    def load() -> None:
        pass

    with pytest.raises(SourceFailed, match="nmae"):
        load.sync()


def test_an_incremental_refresh_is_refused_wherever_it_is_asked_for(database: Path) -> None:
    with pytest.raises(DeclarationError, match="cannot be used with incremental=True"):
        declare(**INCREMENTAL).sync(mode="truncate")
    with pytest.raises(DeclarationError, match="cannot be used with incremental=True"):
        declare(
            "fan",
            target=None,
            targets=[Target(connection="shop", table=People, mode="truncate")],
            **INCREMENTAL,
        )


def test_a_name_that_nothing_declares_is_found_before_anything_runs(database: Path) -> None:
    with pytest.raises(UnknownName, match="update_mart"):
        declare(transforms_post=[ematix.transform_ref("update_mart")]).sync()
    assert execute(database, "SELECT count(*) FROM sqlite_master") == [(1,)]


def test_what_depends_on_a_failure_is_not_run_and_the_rest_is(database: Path) -> None:
    declare("first", sql="SELECT nothing")
    declare("second", depends_on=["first"])
    declare("third", depends_on=["second"])
    declare("apart", mode="truncate")
    with run_context() as context:
        outcomes = run_dag(current_registry(), None, context)
    assert {o.pipeline: o.status for o in outcomes} == {
        "first": "failed",
        "apart": "succeeded",
        "second": "not_run",
        "third": "not_run",
    }


def test_a_load_that_fails_creates_no_table(database: Path) -> None:
    execute(database, "INSERT INTO raw_people VALUES (2, 'twice')")
    with pytest.raises(RowRejected):
        declare().sync()
    assert execute(database, "SELECT name FROM sqlite_master WHERE name = 'analytics__people'") == []


def test_a_run_that_the_lock_refuses_is_no_failure_of_the_pipeline(database: Path) -> None:
    load = declare()
    backend = open_backend(get_connection("shop"))
    target = backend.target()
    assert target is not None
    with target.lock("people", "shop:analytics.people", uuid.uuid4()), pytest.raises(PipelineLocked):
        load.sync()
    assert [record.status for record in logged()] == ["locked"]


def test_a_listener_hears_the_plan_and_the_stages(database: Path) -> None:
    heard: list[str] = []

    class Recorder(Listener):
        def planned(self, plan: Any) -> None:
            heard.append("planned")

        def stage_started(self, target: str, stage: str) -> None:
            heard.append(stage)

    declare().sync(listener=Recorder())
    assert heard == ["planned", "prepare", "apply"]


def test_a_result_is_a_value_that_prints_as_json_and_as_a_page(database: Path) -> None:
    result = declare().sync()
    assert isinstance(result, RunResult)
    assert result.to_json()["targets"][0]["seconds"].keys() == {"prepare", "apply"}
    assert "shop:analytics.people" in result._repr_html_()
