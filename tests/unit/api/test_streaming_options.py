"""What a stream may be declared as, by decorator and by call, and what is refused, at the user's line."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

import ematix_flow
from ematix_flow import (
    BigInt,
    DeltaLocalConnection,
    KafkaConnection,
    KinesisConnection,
    Lookup,
    ObjectStoreLocalConnection,
    PostgresConnection,
    RabbitMQConnection,
    Source,
    StreamingPipeline,
    Target,
    Text,
    ematix,
    pk,
    run_pipeline,
    run_streaming_pipeline,
)
from ematix_flow.api.streaming import stream_spec
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.stream_targets import check_capabilities
from ematix_flow.errors import DeclarationError, DuplicateName, UnknownName, UsageError
from ematix_flow.graph.registry import current_registry
from ematix_flow.spec.streams import StreamSpec

KAFKA = KafkaConnection(name="kafka_prod", bootstrap_servers="localhost:9092")
WAREHOUSE = PostgresConnection(name="warehouse", url="postgres://localhost/db")
RABBIT = RabbitMQConnection(name="rabbit", amqp_url="amqp://localhost")
KINESIS = KinesisConnection(name="kinesis", stream_name="events", region="eu-west-1")
DELTA = DeltaLocalConnection(name="delta", path="lake")
LAKE = ObjectStoreLocalConnection(name="lake", path="lake", format="parquet")


@ematix.table(schema="shop")
class Orders:
    order_id: Annotated[BigInt, pk()]
    note: Text | None


def declare(**options: Any) -> StreamSpec:
    """A valid stream with these options changed; None removes one."""
    right = {
        "name": "events",
        "source": KAFKA,
        "source_query": "events",
        "target": WAREHOUSE,
        "target_table": ("public", "events"),
    }
    given = {key: value for key, value in {**right, **options}.items() if value is not None}

    @ematix.streaming_pipeline(**given)
    def stream() -> None:
        """Events, as they come."""

    return stream.spec


# ------------------------------------------------------------------ what is right


def test_the_plainest_stream_appends_and_fails_on_an_error() -> None:
    spec = declare()
    assert (spec.name, spec.description) == ("events", "Events, as they come.")
    assert [s.label for s in spec.sources] == ["kafka_prod:events"]
    assert [(t.label, t.mode) for t in spec.targets] == [("warehouse:public.events", "append")]
    assert (spec.on_error, spec.delivery, spec.idle_pause_ms) == ("fail", "auto", 500)
    assert spec.where is not None and Path(spec.where.file).name == Path(__file__).name


def test_a_decorator_that_is_used_twice_describes_both_streams() -> None:
    declare = ematix.streaming_pipeline(
        source="events", source_query="orders", target="warehouse", target_table="orders", description="All."
    )

    def one() -> None: ...

    def two() -> None: ...

    assert [declare(function).spec.description for function in (one, two)] == ["All.", "All."]


def test_a_stream_is_called_as_its_function_and_registered() -> None:
    @ematix.streaming_pipeline(source=KAFKA, source_query="a", target=WAREHOUSE, target_table="b")
    def clicks() -> None:
        raise AssertionError("never called")

    assert isinstance(clicks, StreamingPipeline)
    assert current_registry().stream("clicks").handle is clicks
    assert repr(clicks) == "<StreamingPipeline clicks: kafka_prod:a → append into warehouse:b>"


def test_several_sources_and_targets_keep_their_order_and_their_own_options() -> None:
    spec = declare(
        source=None,
        source_query=None,
        sources=[Source(KAFKA, "a", starting="latest"), Source(RABBIT, "b", options={"prefetch": 10})],
        target=None,
        target_table=None,
        targets=[
            Target(connection=WAREHOUSE, table=Orders, mode="merge"),
            Target(connection=LAKE, prefix="raw", parquet_compression="zstd", partition_by=["day"]),
            Target(connection=KAFKA, topic="out", message_key_column="id"),
            Target(connection=RABBIT, queue="work"),
        ],
    )
    assert [s.label for s in spec.sources] == ["kafka_prod:a", "rabbit:b"]
    assert spec.sources[1].options == (("prefetch", "10"),)
    assert [t.destination for t in spec.targets] == ["shop.orders", "raw", "out", "work"]
    assert spec.targets[0].keys == ("order_id",)
    assert spec.targets[1].files.parquet_compression == "zstd"
    assert [t.is_broker for t in spec.targets] == [False, False, True, True]


def test_modes_and_keys_of_the_stream_are_taken_where_a_target_is_silent() -> None:
    spec = declare(
        mode="scd1",
        keys=["id"],
        target=None,
        target_table=None,
        targets=[
            Target(connection=WAREHOUSE, table="a"),
            Target(connection=WAREHOUSE, table="b", mode="append"),
        ],
    )
    assert [(t.mode, t.keys) for t in spec.targets] == [("merge", ("id",)), ("append", ("id",))]


def test_a_kinesis_target_needs_no_separate_place() -> None:
    assert declare(target=KINESIS, target_table=None).targets[0].label == "kinesis:"


def test_a_target_connection_may_be_given_with_a_declared_table() -> None:
    assert declare(target=Orders, target_table=None, target_connection="later").targets[0].table is not None


def test_a_moment_is_where_reading_begins() -> None:
    (source,) = declare(starting="2026-01-31T00:00:00Z").sources
    assert source.starting == dt.datetime(2026, 1, 31, tzinfo=dt.timezone.utc)


def test_a_place_for_dead_letters_means_that_they_go_there() -> None:
    assert declare(dead_letter_topic="bad").on_error == "dlq"
    assert declare(dead_letter_table="bad").on_error == "dlq"
    assert declare(dead_letter_table="bad", transform_on_error="fail").on_error == "fail"  # for flow dlq
    letters = declare(dead_letter_table="bad", dlq_max_attempts=5, dead_letter_connection=WAREHOUSE)
    assert letters.dead_letters.max_attempts == 5
    both = declare(dead_letter_topic="bad", dead_letter_table="ops.bad").dead_letters
    assert (both.topic, both.table) == ("bad", "ops.bad")


def test_dead_letters_of_a_connection_that_is_declared_later_are_checked_in_the_plan() -> None:
    no_spark: Any = None
    topic = declare(source=RABBIT, dead_letter_topic="bad", dead_letter_connection="later")
    broker = declare(name="b", source="later", transform_on_error="dlq", dlq_store="broker")
    current_registry().add_connection(replace(KAFKA, name="later"), None)
    check_capabilities(topic, Connections(no_spark, no_spark, no_spark))
    with pytest.raises(DeclarationError, match="works with RabbitMQ"):
        check_capabilities(broker, Connections(no_spark, no_spark, no_spark))
    current_registry().add_connection(replace(WAREHOUSE, name="later"), None)
    with pytest.raises(DeclarationError, match="dead_letter_connection= is of kind postgres"):
        check_capabilities(topic, Connections(no_spark, no_spark, no_spark))


def test_an_empty_transform_is_none() -> None:
    assert declare(transform_sql="  \n ").transform_sql is None


@pytest.mark.parametrize("dialect", ["spark", "datafusion", "duckdb", "postgres", None])
def test_sql_may_be_written_in_a_dialect_that_can_be_read(dialect: str | None) -> None:
    assert declare(transform_sql="SELECT * FROM source", dialect=dialect).dialect == dialect


@pytest.mark.parametrize("source", [KAFKA, RABBIT, KINESIS, "later"])
def test_the_rows_of_a_batch_can_be_limited_where_messages_come(source: Any) -> None:
    assert declare(source=source, max_rows_per_batch=5).max_rows_per_batch == 5


def test_a_source_of_files_names_its_own_limit() -> None:
    for source, option in ((LAKE, "max_files"), (DELTA, "max_bytes_per_trigger")):
        with pytest.raises(DeclarationError) as caught:
            declare(source=source, max_rows_per_batch=5)
        assert option in (caught.value.next_step or "")


def test_guarantee_is_another_word_for_delivery() -> None:
    assert declare(guarantee="exactly_once").delivery == "exactly_once"


def test_lookups_name_a_table_or_a_query() -> None:
    spec = declare(
        transform_sql="SELECT * FROM source JOIN users USING (id)",
        lookups={
            "users": Lookup(WAREHOUSE, table=("crm", "users"), refresh_interval_ms=1000),
            "tiers": Lookup(WAREHOUSE, query="SELECT 1"),
            "plans": Lookup(WAREHOUSE, table="plans", schema="crm"),
            "orders": Lookup(WAREHOUSE, table=Orders),
        },
    )
    assert [(x.name, x.table, x.query) for x in spec.lookups] == [
        ("users", "crm.users", None),
        ("tiers", None, "SELECT 1"),
        ("plans", "crm.plans", None),
        ("orders", "shop.orders", None),
    ]


# ------------------------------------------------------------------ what is refused

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": " "}, "needs a name"),
    ({"source": None}, "takes source= with source_query=, or sources="),
    ({"sources": [Source(KAFKA, "a")]}, "takes source= with source_query=, or sources="),
    ({"source": None, "sources": []}, "sources= is empty"),
    ({"source": None, "sources": Source(KAFKA, "a")}, "sources= takes a list"),
    ({"source": None, "sources": [KAFKA]}, "takes Source(…)"),
    ({"source_query": " "}, "needs source_query="),
    ({"source_query": None}, "needs source_query="),
    ({"starting": "soon"}, "neither earliest nor latest nor a time"),
    ({"starting": dt.datetime(2026, 1, 1)}, "has no time zone"),
    ({"starting": 5}, "neither earliest nor latest nor a time"),
    ({"source_options": "x"}, "source_options= takes names and values"),
    ({"csv_read_options": {"delimiter": ";"}}, "holds no files"),
    ({"target": None}, "takes target= or targets="),
    ({"targets": [Target(connection=WAREHOUSE, table="a")]}, "takes target= or targets="),
    ({"target": None, "target_table": None, "targets": []}, "targets= is empty"),
    ({"target": None, "target_table": None, "targets": [WAREHOUSE]}, "targets= takes Target(…)"),
    ({"target_table": None}, "a target of kind postgres needs target_table="),
    (
        {"target_topic": "x"},
        "a target of kind postgres needs target_table=, not target_topic=",
    ),
    ({"target": KAFKA}, "a target of kind kafka needs target_topic=, not target_table="),
    ({"target": RABBIT, "target_table": None, "target_topic": "x"}, "needs target_queue="),
    ({"target": LAKE, "target_table": None}, "a target of kind object_store_local needs target_prefix="),
    ({"target": "later", "target_table": None}, "needs target_table=, target_topic= or another destination"),
    ({"target_table": ("a", "b", "c")}, "takes (schema, name) or a declared table"),
    ({"target_table": ("a", "")}, "takes (schema, name) or a declared table"),
    ({"target_table": "events."}, "names no table"),
    ({"target_table": 5}, "5"),
    ({"target": KAFKA, "target_table": None, "target_topic": 7}, "topic= takes text"),
    ({"target_message_key_column": "id"}, "message_key_column= is for brokers"),
    ({"target_headers_column": "id"}, "headers_column= is for brokers"),
    (
        {"target": KAFKA, "target_table": None, "target_topic": "x", "mode": "merge", "keys": ["id"]},
        "a broker only takes mode='append'",
    ),
    ({"mode": "truncate"}, "never has all rows"),
    ({"mode": "mrege"}, "Did you mean 'merge'?"),
    ({"mode": "merge"}, "has none"),
    ({"mode": "scd2", "keys": ["id"]}, "needs event_timestamp_column="),
    ({"keys": 5}, "keys= takes column names"),
    ({"keys": [5]}, "keys= takes column names"),
    (
        {
            "target": None,
            "target_table": None,
            "targets": [Target(connection=WAREHOUSE, table="a"), Target(connection=WAREHOUSE, table="a")],
        },
        "are the same",
    ),
    (
        {
            "target": None,
            "target_table": None,
            "targets": [Target(connection=WAREHOUSE, table="a", handle_deletes="hard")],
        },
        "a stream never has all rows",
    ),
    ({"transform_sql": 5}, "transform_sql= takes text"),
    ({"transform_on_error": "dql"}, "Did you mean 'dlq'?"),
    ({"lookups": {"users": Lookup(WAREHOUSE, table="u")}}, "lookups= works with transform_sql="),
    ({"lookups": [1], "transform_sql": "SELECT 1"}, "takes Lookup(…) by name"),
    ({"lookups": {"users": WAREHOUSE}, "transform_sql": "SELECT 1"}, "takes Lookup(…) by name"),
    (
        {"lookups": {"source": Lookup(WAREHOUSE, table="u")}, "transform_sql": "x"},
        "cannot be called 'source'",
    ),
    ({"lookups": {"a b": Lookup(WAREHOUSE, table="u")}, "transform_sql": "x"}, "cannot be called 'a b'"),
    ({"lookups": {"u": Lookup(WAREHOUSE)}, "transform_sql": "x"}, "query= or table=, exactly one"),
    (
        {"lookups": {"SOURCE": Lookup(WAREHOUSE, table="u")}, "transform_sql": "x"},
        "cannot be called 'SOURCE'",
    ),
    ({"lookups": {5: Lookup(WAREHOUSE, table="u")}, "transform_sql": "x"}, "cannot be called 5"),
    (
        {
            "lookups": {"u": Lookup(WAREHOUSE, table="u"), "U": Lookup(WAREHOUSE, table="v")},
            "transform_sql": "x",
        },
        "one name in SQL",
    ),
    ({"lookups": {"u": Lookup(WAREHOUSE, table=5)}, "transform_sql": "x"}, "(schema, name) or a declared"),  # type: ignore[arg-type]
    ({"lookups": {"u": Lookup(WAREHOUSE, table="")}, "transform_sql": "x"}, "(schema, name) or a declared"),
    ({"lookups": {"u": Lookup(WAREHOUSE, query=5)}, "transform_sql": "x"}, "query= takes text"),  # type: ignore[arg-type]
    (
        {"lookups": {"u": Lookup(WAREHOUSE, table="u", refresh_interval_ms=0)}, "transform_sql": "x"},
        "refresh_interval_ms= takes a whole number from 1 up",
    ),
    ({"dlq_store": "topic"}, "needs dead_letter_topic="),
    ({"dead_letter_connection": WAREHOUSE}, "dead_letter_connection= is not used: without transform_on_err"),
    ({"dlq_store": "table"}, "dlq_store='table' is not used: without transform_on_error="),
    ({"dlq_max_attempts": 5}, "dlq_max_attempts= is not used: without transform_on_error="),
    (
        {"dead_letter_topic": "a", "transform_on_error": "fail"},
        "dead_letter_topic= is not used with transform_on_error='fail'",
    ),
    (
        {"dead_letter_topic": "a", "transform_on_error": "drop"},
        "dead_letter_topic= is not used with transform_on_error='drop'",
    ),
    (
        {"source": RABBIT, "dlq_store": "broker", "transform_on_error": "drop"},
        "dlq_store='broker' is not used with transform_on_error='drop'",
    ),
    (
        {"dead_letter_topic": "a", "dlq_store": "table"},
        "dead_letter_topic= is not used with dlq_store='table'",
    ),
    *(
        (
            {"source": RABBIT, "transform_on_error": "dlq", "dlq_store": "broker", option: value},
            f"{option}= is not used with dlq_store='broker'",
        )
        for option, value in (
            ("dead_letter_topic", "a"),
            ("dead_letter_table", "a"),
            ("dead_letter_connection", WAREHOUSE),
            ("dlq_max_attempts", 5),
        )
    ),
    ({"dlq_store": "tpoic"}, "Did you mean 'topic'?"),
    ({"dlq_max_attempts": 0}, "dlq_max_attempts= takes a whole number from 1 up"),
    (
        {"source": RABBIT, "dead_letter_topic": "a"},
        "needs a Kafka connection, but the source is of kind rabbitmq",
    ),
    (
        {"source": RABBIT, "dead_letter_topic": "a", "dead_letter_connection": WAREHOUSE},
        "but the source is of kind rabbitmq and dead_letter_connection= is of kind postgres",
    ),
    ({"transform_on_error": "dlq", "dlq_store": "broker"}, "works with RabbitMQ"),
    ({"idle_pause_ms": -1}, "idle_pause_ms= takes a whole number from 0 up"),
    ({"idle_pause_ms": True}, "idle_pause_ms= takes a whole number"),
    ({"max_rows_per_batch": 0}, "max_rows_per_batch= takes a whole number from 1 up"),
    ({"dialect": "postgress"}, "dialect='postgress' is unknown. Did you mean 'postgres'?"),
    ({"dialect": "esperanto"}, "dialect='esperanto' is unknown."),
    ({"dialect": ""}, "dialect='' is unknown."),
    ({"source": LAKE, "max_rows_per_batch": 5}, "max_rows_per_batch= counts messages, and a source of kind"),
    (
        {"source": LAKE, "transform_on_error": "dlq"},
        "is for messages, and a source of kind",
    ),
    ({"source": DELTA, "max_rows_per_batch": 5}, "delta_local brings versions of a table"),
    ({"delivery": "exactly-once"}, "Did you mean 'exactly_once'?"),
    ({"delivery": "auto", "guarantee": "auto"}, "mean the same"),
    ({"on_drift": "ignore"}, "on_drift='ignore' is unknown"),
    ({"continue_on_target_failure": "yes"}, "continue_on_target_failure= takes True or False"),
    ({"fail_on_data_loss": 1}, "fail_on_data_loss= takes True or False"),
    ({"checkpoint": 3}, "checkpoint= takes text"),
    ({"source_columns": 3}, "3"),
    ({"traget": 1}, "no option 'traget'. Did you mean 'target'?"),
    ({"once": True}, "is an option of a run, not of the declaration"),
    ({"max_restarts": 1}, "is an option of a run, not of the declaration"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_makes_no_sense_is_refused_at_the_users_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**options)
    assert words in caught.value.what
    assert caught.value.where is not None
    assert Path(caught.value.where.file).name == Path(__file__).name
    assert current_registry().streams == {}


def test_a_call_knows_the_same_options_as_the_decorator() -> None:
    with pytest.raises(DeclarationError, match="Did you mean 'restart_on_error'") as caught:
        run_streaming_pipeline(restart_on_eror=True)
    assert caught.value.where is not None and Path(caught.value.where.file).name == Path(__file__).name
    with pytest.raises(DeclarationError, match="needs a name"):
        run_streaming_pipeline(source=KAFKA, source_query="a", target=WAREHOUSE, target_table="b")


def test_one_name_is_declared_once() -> None:
    declare()
    with pytest.raises(DuplicateName, match="declared twice"):
        ematix.streaming_pipeline(
            name="events", source=KAFKA, source_query="a", target=WAREHOUSE, target_table="b"
        )(lambda: None)


def test_an_unknown_stream_gets_a_suggestion() -> None:
    declare()
    with pytest.raises(UnknownName, match="Did you mean 'events'"):
        ematix_flow.streaming.get_streaming_pipeline("evnets")


@pytest.mark.parametrize("given", [{}, {"config": "a.toml", "config_str": "x"}])
def test_a_pipeline_is_run_from_a_file_or_from_a_text(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="exactly one of them"):
        run_pipeline(**given)  # type: ignore[arg-type]


def test_the_public_names_of_streams_are_all_there() -> None:
    from ematix_flow import streaming

    assert {"Source", "Lookup", "StreamingPipeline", "run_pipeline", "streaming"} <= set(ematix_flow.__all__)
    assert all(getattr(ematix_flow, name) is not None for name in ematix_flow.__all__)
    assert all(getattr(streaming, name) is not None for name in streaming.__all__)
    assert "streaming_pipeline" in repr(ematix)


@pytest.mark.parametrize(
    ("several", "option"),
    [
        ({"sources": [Source("k", "t")], "target": "w", "target_table": "t"}, {"starting": "latest"}),
        ({"source": "k", "source_query": "t", "targets": [Target("w", "t")]}, {"target_topic": "x"}),
    ],
)
def test_options_of_one_target_are_refused_with_several(
    several: dict[str, object], option: dict[str, object]
) -> None:
    with pytest.raises(DeclarationError, match=f"{next(iter(option))}=") as raised:
        stream_spec(None, name="s", **several, **option)  # type: ignore[arg-type]
    assert "each" in str(raised.value)


@pytest.mark.parametrize("declared", [Source, Lookup, Target])
def test_the_place_of_a_declaration_is_not_an_option(declared: Any) -> None:
    with pytest.raises(DeclarationError, match="where= is not an option"):
        declared("k", "t", where=True)
