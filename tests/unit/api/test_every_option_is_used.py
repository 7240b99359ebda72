"""Each option of a declaration changes what is declared, or is refused: none is passed over in silence.

The walks try every parameter of a pipeline, a stream, a target, a source, a lookup and a workflow in every
situation of their tables; a new parameter fails them until it is added. The others hold combinations in
which one option hides another.
"""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import json
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from ematix_flow import (
    CDC,
    Aggregation,
    BigInt,
    Join,
    Lookup,
    ManagedTable,
    Source,
    StateStore,
    Target,
    Text,
    TimestampTZ,
    Watermark,
    Window,
    ematix,
    natural_key,
    nullable,
    pk,
    udaf,
    udf,
)
from ematix_flow.api.stream_declaration import StreamOptions
from ematix_flow.api.streaming import stream_spec
from ematix_flow.api.unknown_class_names import TABLE_SETTINGS
from ematix_flow.errors import DeclarationError
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.normalize import derive, trim
from ematix_flow.spec.connections import (
    KafkaConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
)
from ematix_flow.spec.retry_policy import RetryPolicy
from ematix_flow.transforms import limit


class Orders(ManagedTable):
    order_id: Annotated[BigInt, pk()]
    email: Text | None
    total: Annotated[BigInt, derive("a + b")]
    updated_at: TimestampTZ


@udf(args=("Int64",), returns="Int64")
def same(values: Any) -> Any:
    return values


@udaf(args=("Int64",), state=("Int64",), returns="Int64")
class Nothing:
    def update_batch(self, values: Any) -> None: ...
    def merge_batch(self, values: Any) -> None: ...
    def evaluate(self) -> None: ...
    def state(self) -> None: ...


# --- pipelines -------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "target_connection": "elsewhere",
    "source_connection": "elsewhere",
    "schedule": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "catchup": "all",
    "mode": "truncate",
    "name": "another",
    "source_table": "raw.orders",
    "column_map": {"email": "mail"},
    "keys": ["email"],
    "update_columns": ["email"],
    "compare_columns": ["email"],
    "event_timestamp_column": "updated_at",
    "handle_deletes": "soft",
    "incremental": True,
    "watermark_column": "updated_at",
    "incremental_column": "updated_at",
    "lag": 5,
    "on_drift": "warn",
    "force_path": "copy",
    "guarantee": "at_least_once",
    "max_shrink": 0.1,
    "allow_empty": True,
    "continue_on_target_failure": True,
    "continue_on_failure": True,
    "transforms_pre": [limit(5)],
    "transforms_post": ["ANALYZE"],
    "continue_on_failure_post": True,
    "ttl_seconds": 60,
    "ttl": dt.timedelta(seconds=60),
    "tags": ["nightly"],
    "depends_on": ["before"],
    "upstream_freshness_secs": 60,
    "freshness_sla": "1h",
    "freshness_column": "updated_at",
    "retry": {"max_attempts": 3},
    "csv_read_options": {"has_header": False},
    "json_read_options": {"batch_size": 10},
    "udfs": [same],
    "aggregate_udfs": [Nothing],
    "expectations": [ematix.expect_or_drop("positive", "order_id > 0")],
    "on_fail": "quarantine",
    "on_quality_failure": "warn",
    "alert_on_quality_warn": True,
    "quarantine": "bad_orders",
}
# limits and permissions: they hold in every mode, and where nothing is deleted they hold by themselves
VACUOUS = {"max_shrink", "allow_empty"}
SITUATIONS: dict[str, dict[str, Any]] = {
    "append": {"target": Orders},
    "truncate": {"target": Orders, "mode": "truncate"},
    "merge": {"target": Orders, "mode": "merge"},
    "scd2": {"target": Orders, "mode": "scd2"},
    "incremental": {"target": Orders, "incremental": True, "watermark_column": "updated_at"},
    "scheduled": {"target": Orders, "schedule": "@daily"},
    "read as a table": {"target": Orders, "source_table": "raw.orders"},
    "one of several": {"targets": [Target(connection="db", table=Orders, mode="append", keys=None)]},
    "all said by the targets": {
        "targets": [
            Target(
                connection="db",
                table=Orders,
                mode="merge",
                keys=["order_id"],
                update_columns=["email"],
                compare_columns=["email"],
            )
        ]
    },
    "a prefix": {"targets": [Target(connection="lake", prefix="orders")]},
}


@pytest.fixture(autouse=True)
def warnings_of_keys_aside() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def spec_of(**options: Any) -> dict[str, Any]:
    ematix_lake = ObjectStoreLocalConnection(name="lake", path="lake", format="csv")
    with use_registry(Registry()) as inside:
        inside.add_connection(ematix_lake, None)
        inside.add_connection(SQLiteConnection(name="db", path="db.sqlite"), None)

        @ematix.pipeline(**options)
        def load() -> str:
            return "SELECT 1"

        return json.loads(json.dumps(load.spec.to_json()))


def test_every_parameter_of_a_pipeline_has_a_sample() -> None:
    from ematix_flow.api.pipeline import pipeline

    assert set(inspect.signature(pipeline).parameters) - {"target", "targets"} == set(SAMPLES)


def differs_or_is_refused(plain: dict[str, Any], **options: Any) -> str:
    try:
        changed = spec_of(**options)
    except DeclarationError as error:
        assert error.where is not None and error.where.file == __file__, error
        return "refused"
    return "used" if changed != plain else "ignored"


@pytest.mark.parametrize("situation", SITUATIONS)
def test_an_option_of_a_pipeline_is_used_or_refused(situation: str) -> None:
    base = SITUATIONS[situation]
    plain = spec_of(**base)
    found = {
        option: differs_or_is_refused(plain, **{**base, option: sample})
        for option, sample in SAMPLES.items()
        if base.get(option) != sample
    }
    assert "used" in found.values()
    assert {option for option, outcome in found.items() if outcome == "ignored"} == set()
    matching = {option for option in ("update_columns", "compare_columns") if found.get(option) == "used"}
    expected = {"merge": {"update_columns", "compare_columns"}, "scd2": {"compare_columns"}}
    assert matching == expected.get(situation, set())


def test_two_options_of_a_pipeline_are_both_used_or_one_is_refused() -> None:
    """Given a, b changes something or is refused; VACUOUS ones hold in every mode."""
    hidden = []
    for first, second in itertools.permutations(SAMPLES, 2):
        if second in VACUOUS:
            continue
        try:
            before = spec_of(target=Orders, **{first: SAMPLES[first]})
        except DeclarationError:
            continue
        both = {first: SAMPLES[first], second: SAMPLES[second]}
        if differs_or_is_refused(before, target=Orders, **both) == "ignored":
            hidden.append((first, second))
    same = {"continue_on_target_failure", "continue_on_failure"}
    already = {("incremental_column", "incremental")}  # which says it too
    assert [pair for pair in hidden if set(pair) != same and pair not in already] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"column_map": {"nmae": "name"}, "source_table": "t"}, "column_map= names 'nmae'"),
        ({"column_map": {"emial": "mail"}}, "Did you mean 'email'"),
        ({"column_map": {"mail": "email"}}, "the declared column comes first: column_map={'email': 'mail'}"),
        ({"column_map": {"total": "sum"}}, "both define where 'total' comes from"),
        ({"column_map": {"email": 3}}, "takes {declared column: source column}"),
        ({"keys": [], "mode": "merge"}, "keys= names no column"),
        ({"column_map": ["email"]}, "column_map= takes names and values"),
        ({"target": "orders"}, "'orders' is not a table"),
        ({"target": Target(table=Orders)}, "write targets=[Target(…)]"),
        ({"transforms_post": "ANALYZE"}, "transforms_post= takes a list"),
        ({"name": ""}, "a pipeline needs a name"),
        ({"name": 5}, "a pipeline needs a name"),
        ({"max_shrink": "half"}, "max_shrink= takes a fraction from 0 to 1"),
        ({"allow_empty": "no"}, "allow_empty= takes True or False"),
        ({"source_table": 5}, "source_table= takes text"),
        ({"schedule": "@daily", "timezone": 1}, "timezone= takes the name of a time zone"),
        ({"retry": {"backoff_seconds": 5}}, "no retry to wait for"),
        ({"retry": {"max_attempts": 3, "backoff_seconds": 5, "base_secs": 6}}, "mean the same"),
        ({"retry": {"max_attempts": 3, "backoff_seconds": "5"}}, "backoff_seconds takes a number"),
        (
            {"retry": {"max_attempts": 3, "backoff": "linear", "backoff_factor": 2}},
            "works with backoff='exponential'",
        ),
        ({"retry": {"max_attempts": True}}, "takes a whole number"),
    ],
)
def test_what_would_be_passed_over_is_refused_at_its_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        spec_of(**{"target": Orders, **options})
    assert said in str(refused.value)
    assert refused.value.where is not None and refused.value.where.file == __file__


def test_a_renaming_next_to_a_prefix_is_refused() -> None:
    with pytest.raises(DeclarationError, match="lake:orders declares none"):
        spec_of(targets=[Target(connection="lake", prefix="orders")], column_map={"a": "b"}, source_table="t")


def test_a_retry_of_one_attempt_is_what_no_retry_is() -> None:
    assert RetryPolicy.from_mapping({"max_attempts": 1}) == RetryPolicy()


# --- workflows, transforms --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"triggered_by": "a", "catchup": "all"}, {"triggered_by": "a", "timezone": "UTC"}]
)
def test_what_a_workflow_without_schedule_would_pass_over_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="schedule="):
        ematix.workflow("nightly", ["a"], **options)


@pytest.mark.parametrize("options", [{"schedule": "@daily"}, {"name": ""}, {"nmae": "x"}])
def test_what_a_transform_would_pass_over_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as refused:
        ematix.transform(**options)(lambda conn: None)
    assert refused.value.where is not None and refused.value.where.file == __file__


# --- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"__table_name__": "t"}, "Did you mean __tablename__"),
        ({"__tabelname__": "t"}, "Did you mean __tablename__"),
        ({"__shema__": "s"}, "Did you mean __schema__"),
        ({"__primary_key__": ("id",)}, "Did you mean pk()"),
        ({"__retention__": 5}, "not a setting of a table"),
        ({"email": Text}, "write  email: Text"),
        ({"email": Text | None}, "declares no column"),
        ({"email": Annotated[Text, trim()]}, "write  email: Annotated[Text, trim()]"),
        ({"email": (Text, natural_key("a"), nullable())}, "Annotated[Text, natural_key('a'), nullable()]"),
    ],
)
def test_a_name_in_a_table_that_nobody_reads_is_refused(body: dict[str, Any], said: str) -> None:
    for make in (
        lambda: type(ManagedTable)("T", (ManagedTable,), {"__annotations__": {"id": BigInt}, **body}),
        lambda: ematix.table(type("T", (), {"__annotations__": {"id": BigInt}, **body})),
    ):
        with pytest.raises(DeclarationError) as refused:
            make()
        assert said in str(refused.value)
        assert refused.value.where is not None and refused.value.where.file == __file__


def test_a_table_may_have_methods_and_constants() -> None:
    class T(ManagedTable):
        id: Annotated[BigInt, pk()]
        RETENTION_DAYS = 30
        _note = Text

        @property
        def shown(self) -> str:
            return "t"

        def __len__(self) -> int:
            return 1

    assert T.spec.column_names == ("id",)


def test_every_setting_of_a_table_is_known() -> None:
    assert {name for name in TABLE_SETTINGS if name not in ("__tablename__",)} <= set(vars(ManagedTable))


def test_an_option_of_a_class_statement_is_refused() -> None:
    with pytest.raises(DeclarationError, match="a table class has no option"):

        class T(ManagedTable, schema="s"):
            id: BigInt


# --- streams ---------------------------------------------------------------------------------------

KAFKA = KafkaConnection(name="k", bootstrap_servers="localhost:9092")
DB = SQLiteConnection(name="db", path="db.sqlite")


def stream(**options: Any) -> Any:
    given = {"source": KAFKA, "source_query": "t", "target": DB, "target_table": "orders", **options}
    return stream_spec(None, name="s", **{key: value for key, value in given.items() if value is not None})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_table": Orders, "keys": ["order_id"]}, "keys= works with mode="),
        ({"target_table": Orders, "target_primary_key": ["order_id"]}, "a declared table has pk()"),
        ({"keys": ["a"], "target_primary_key": ["a"], "mode": "merge"}, None),
        ({"update_columns": ["a"]}, "update_columns= works with mode="),
        ({"compare_columns": ["a"]}, "compare_columns= works with mode="),
        ({"event_timestamp_column": "a"}, "event_timestamp_column= works with mode="),
        ({"update_columns": ["a"], "keys": ["b"], "mode": "merge"}, None),
        ({"keys": ["b"]}, None),  # the key of a table that is only named
        ({"dialect": "duckdb"}, "dialect= works with transform_sql="),
        ({"target": Orders, "target_connection": DB}, "both target= and target_table= name the table"),
        (
            {
                "target": None,
                "target_table": None,
                "targets": [Target(connection=DB, table="a", keys=["x"], primary_key=["x"])],
            },
            "mean the same",
        ),
        (
            {
                "target": None,
                "target_table": None,
                "targets": [Target(connection=DB, table="a", update_columns=["x"])],
            },
            "update_columns= works with mode=",
        ),
    ],
)
def test_an_option_of_a_stream_is_used_or_refused(options: dict[str, Any], said: str | None) -> None:
    if said is None:
        assert stream(**options).name == "s"
        return
    with pytest.raises(DeclarationError) as refused:
        stream(**options)
    assert said in str(refused.value)


COUNT = Aggregation(agg="count", as_="n")
STREAM_SAMPLES: dict[str, Any] = {
    "source": KafkaConnection(name="k2", bootstrap_servers="localhost:9093"),
    "source_query": "u",
    "sources": [Source(KAFKA, "u")],
    "source_columns": {"a": BigInt},
    "starting": "latest",
    "source_options": {"isolation.level": "read_uncommitted"},
    "csv_read_options": {"has_header": False},
    "json_read_options": {"batch_size": 10},
    "target": SQLiteConnection(name="db2", path="db2.sqlite"),
    "target_connection": SQLiteConnection(name="db2", path="db2.sqlite"),
    "target_table": "others",
    "target_topic": "out",
    "target_queue": "out",
    "target_partition_key_prefix": "p",
    "target_prefix": "events",
    "target_message_key_column": "a",
    "target_headers_column": "a",
    "target_partition_column": "a",
    "target_partition_by": ["a"],
    "target_primary_key": ["b"],
    "targets": [Target(connection=DB, table="others")],
    "mode": "merge",
    "keys": ["a"],
    "update_columns": ["b"],
    "compare_columns": ["b"],
    "event_timestamp_column": "b",
    "transform_sql": "SELECT a FROM source",
    "transform_on_error": "dlq",
    "dialect": "duckdb",
    "lookups": {"names": Lookup(DB, table="names")},
    "udfs": [same],
    "aggregate_udfs": [Nothing],
    "expectations": [ematix.expect_or_drop("positive", "a > 0")],
    "on_fail": "quarantine",
    "on_quality_failure": "warn",
    "alert_on_quality_warn": True,
    "quarantine": "bad_rows",
    "window": Window(kind="tumbling", duration_ms=5, aggregations=[COUNT]),
    "join": Join("orders", "payments", ("a",), ("a",)),
    "watermark": Watermark(lateness_ms=5),
    "state_store": StateStore(),
    "cdc": CDC(),
    "dead_letter_topic": "dead",
    "dead_letter_table": "dead",
    "dead_letter_connection": DB,
    "dlq_store": "table",
    "dlq_max_attempts": 7,
    "idle_pause_ms": 20,
    "max_rows_per_batch": 10,
    "delivery": "at_least_once",
    "guarantee": "at_least_once",
    "continue_on_target_failure": True,
    "on_drift": "warn",
    "fail_on_data_loss": False,
    "checkpoint": "elsewhere",
    "description": "words",
}
LAKE = ObjectStoreLocalConnection(name="lake", path="lake", format="csv")
COUNTED = Window(kind="tumbling", duration_ms=7, aggregations=[COUNT])
STREAMS: dict[str, dict[str, Any]] = {
    "windows": {"window": COUNTED},
    "a join": {
        "source": None,
        "source_query": None,
        "sources": [Source(KAFKA, "orders"), Source(KAFKA, "payments")],
        "join": Join("orders", "payments", ("b",), ("b",)),
    },
    "into a named table": {},
    "into a declared table": {"target_table": Orders},
    "merge": {"mode": "merge", "keys": ["a"]},
    "by SQL": {"transform_sql": "SELECT a FROM source"},
    "dead letters": {"transform_on_error": "dlq"},
    "into a topic": {"target": KAFKA, "target_table": None, "target_topic": "out"},
    "files": {"source": LAKE, "source_query": "orders/"},
    "into files": {"target": LAKE, "target_table": None, "target_prefix": "events"},
    "several targets": {"target": None, "target_table": None, "targets": [Target(connection=DB, table="x")]},
}


def stream_json(**options: Any) -> Any:
    with use_registry(Registry()):
        return stream(**options)


def test_every_parameter_of_a_stream_has_a_sample() -> None:
    assert set(inspect.signature(StreamOptions).parameters) - {"name"} == set(STREAM_SAMPLES)


def outcome(plain: Any, declare: Any) -> str:
    try:
        changed = declare()
    except DeclarationError:
        return "refused"
    return "used" if changed != plain else "ignored"


@pytest.mark.parametrize("situation", STREAMS)
def test_no_option_of_a_stream_is_passed_over(situation: str) -> None:
    base = STREAMS[situation]
    plain = stream_json(**base)
    assert stream_json(**base) == plain  # two declarations alike are equal
    found = {
        option: outcome(plain, lambda option=option, sample=sample: stream_json(**{**base, option: sample}))
        for option, sample in STREAM_SAMPLES.items()
        if base.get(option) != sample
    }
    assert "used" in found.values()
    assert {option for option, became in found.items() if became == "ignored"} == set()


# --- targets of a pipeline, sources and lookups of a stream, workflows ---------------------------------

TARGET_SAMPLES: dict[str, Any] = {
    "connection": "lake",
    "table": "others",
    "mode": "truncate",
    "topic": "out",
    "queue": "out",
    "partition_key_prefix": "p",
    "prefix": "events",
    "message_key_column": "email",
    "headers_column": "email",
    "partition_column": "email",
    "partition_by": ["email"],
    "keys": ["email"],
    "update_columns": ["email"],
    "compare_columns": ["email"],
    "event_timestamp_column": "updated_at",
    "handle_deletes": "soft",
    "column_map": {"email": "mail"},
    "primary_key": ["email"],
    "parquet_compression": "zstd",
    "csv_delimiter": ";",
    "csv_header": False,
    "csv_quote": "'",
    "csv_escape": "\\",
    "csv_null_value": "none",
    "csv_read_options": {"has_header": False},
    "json_read_options": {"batch_size": 10},
}
TARGETS: dict[str, dict[str, Any]] = {
    "a table": {"connection": "db", "table": Orders},
    "merge": {"connection": "db", "table": Orders, "mode": "merge"},
    "scd2": {"connection": "db", "table": Orders, "mode": "scd2"},
    "files": {"connection": "lake", "prefix": "orders"},
}


def test_every_field_of_a_target_has_a_sample() -> None:
    assert set(inspect.signature(Target).parameters) - {"where"} == set(TARGET_SAMPLES)


@pytest.mark.parametrize("situation", TARGETS)
@pytest.mark.parametrize("of", ["a pipeline", "a stream"])
def test_no_field_of_a_target_is_passed_over(situation: str, of: str) -> None:
    base = TARGETS[situation]

    def declare(**fields: Any) -> Any:
        if of == "a pipeline":
            return spec_of(targets=[Target(**fields)])
        connections = {"db": DB, "lake": LAKE}
        given = {**fields, "connection": connections[fields["connection"]]}
        return stream_json(target=None, target_table=None, targets=[Target(**given)])

    try:
        plain = declare(**base)
    except DeclarationError:
        assert of == "a stream"  # a mode that streams do not have
        return
    assert declare(**base) == plain
    found = {
        field: outcome(plain, lambda field=field, sample=sample: declare(**{**base, field: sample}))
        for field, sample in TARGET_SAMPLES.items()
        if base.get(field) != sample
    }
    assert "used" in found.values()
    assert {field for field, became in found.items() if became == "ignored"} == set()


def test_no_field_of_a_source_or_a_lookup_is_passed_over() -> None:
    sources = {
        "starting": "latest",
        "csv_read_options": {"has_header": False},
        "json_read_options": {"batch_size": 10},
        "options": {"isolation.level": "read_uncommitted"},
        "columns": Orders,
    }
    lookups = {
        "query": "SELECT 1 AS a",
        "table": "others",
        "schema": "other",
        "refresh_interval_ms": 5_000,
    }
    assert set(inspect.signature(Source).parameters) == {*sources, "connection", "query", "where"}
    assert set(inspect.signature(Lookup).parameters) == {*lookups, "connection", "where"}

    def with_source(**fields: Any) -> Any:
        return stream_json(source=None, source_query=None, sources=[Source(KAFKA, "t", **fields)])

    def with_lookup(**fields: Any) -> Any:
        sql = "SELECT source.a FROM source JOIN names USING (a)"
        return stream_json(transform_sql=sql, lookups={"names": Lookup(DB, **{"table": "names", **fields})})

    for declare, samples in ((with_source, sources), (with_lookup, lookups)):
        plain = declare()
        assert declare() == plain
        for field, sample in samples.items():
            assert outcome(plain, lambda: declare(**{field: sample})) != "ignored", field  # noqa: B023


def test_no_option_of_a_workflow_is_passed_over() -> None:
    samples = {
        "triggered_by": ["a"],
        "schedule": "@daily",
        "timezone": "Europe/Berlin",
        "on_message": "k:topic",
        "catchup": "all",
    }
    assert set(inspect.signature(ematix.workflow).parameters) == {*samples, "name", "jobs"}

    def declare(**options: Any) -> Any:
        with use_registry(Registry()):
            return ematix.workflow("nightly", ["b"], **options)

    for base in ({"schedule": "@hourly"}, {"triggered_by": ["c"]}):
        plain = declare(**base)
        assert declare(**base) == plain
        for option, sample in samples.items():
            assert outcome(plain, lambda: declare(**{**base, option: sample})) != "ignored", option  # noqa: B023
