"""A stream as JSON and as TOML comes back as it was; the samples of the readme declare what they say."""

from __future__ import annotations

import datetime as dt
import json
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow import (
    BigInt,
    KafkaConnection,
    Lookup,
    ObjectStoreS3Connection,
    PostgresConnection,
    RabbitMQConnection,
    SchemaRegistryConnection,
    Source,
    Target,
    Text,
    ematix,
    natural_key,
    pk,
    run_streaming_pipeline,
)
from ematix_flow.api.stream_toml import stream_from_text
from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.api.streaming import stream_spec
from ematix_flow.errors import ConfigError, DeclarationError, DuplicateName, UnknownName
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.graph.registry import current_registry
from ematix_flow.normalize import trim
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.streaming import (
    get_streaming_pipeline,
    list_streaming_pipelines,
    register_streaming_pipeline,
    render_streaming_pipeline_toml,
)
from ematix_flow.streams import running_stream

KAFKA = KafkaConnection(
    name="kafka_prod",
    bootstrap_servers="${BOOTSTRAP}",
    payload_format="avro",
    schema_registry=SchemaRegistryConnection(name="reg", url="http://localhost:8081"),
    sasl_plain_username="u",
    sasl_plain_password="${PASSWORD}",
    properties={"client.rack": "a"},
)
WAREHOUSE = PostgresConnection(name="warehouse", url="${DSN}")
RABBIT = RabbitMQConnection(name="rabbit", amqp_url="amqp://localhost")
LAKE = ObjectStoreS3Connection(name="lake", bucket="b", prefix="base", format="csv", verify_tls=False)


@ematix.table(schema="shop")
class Events:
    """What happened."""

    __unique_constraints__ = (("code", "note"),)

    event_id: Annotated[BigInt, pk()]
    code: Annotated[Text, natural_key()]
    note: Text | None


words = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=("Cs",)), min_size=1
)
names = words.filter(lambda text: bool(text.strip()) and "${" not in text)
identifiers = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "source")
moments = st.datetimes(timezones=st.just(dt.timezone.utc))
sources = st.builds(
    Source,
    connection=st.sampled_from([KAFKA, RABBIT, "elsewhere"]),
    query=names.map(str.strip),
    starting=st.none() | st.sampled_from(["earliest", "latest"]) | moments,
    options=st.dictionaries(names, names, max_size=2),
)
keys = st.lists(identifiers, min_size=1, max_size=2, unique=True)
targets = st.one_of(
    st.builds(
        Target,
        connection=st.sampled_from([WAREHOUSE, "elsewhere"]),
        table=st.tuples(st.just("") | names, names),
        mode=st.sampled_from(["append", "merge", None]),
        keys=keys,
    ),
    st.builds(Target, connection=st.just(WAREHOUSE), table=st.just(Events), mode=st.just("append")),
    st.builds(
        Target,
        connection=st.just(LAKE),
        prefix=identifiers,
        csv_delimiter=st.sampled_from([None, ";", "\t"]),
        csv_header=st.none() | st.booleans(),
    ),
    st.builds(Target, connection=st.just(KAFKA), topic=names, message_key_column=st.none() | names),
    st.builds(Target, connection=st.just(RABBIT), queue=names),
)
streams = st.fixed_dictionaries(
    {
        "name": names,
        "sources": st.lists(sources, min_size=1, max_size=3),
        "targets": st.lists(targets, min_size=1, max_size=3),
        "transform_sql": st.just("SELECT *\nFROM source") | words,
        "lookups": st.dictionaries(
            identifiers,
            st.builds(Lookup, st.sampled_from([WAREHOUSE, "elsewhere"]), query=words)
            | st.builds(Lookup, st.just(WAREHOUSE), table=names, refresh_interval_ms=st.integers(1, 10**6)),
            max_size=2,
        ),
        "transform_on_error": st.sampled_from([None, "fail", "drop", "dlq"]),
        "dead_letter_table": st.none() | names,
        "dead_letter_connection": st.sampled_from([None, WAREHOUSE, "elsewhere"]),
        "dlq_max_attempts": st.none() | st.integers(1, 9),
        "source_columns": st.sampled_from([None, Events]),
        "idle_pause_ms": st.integers(0, 10**6),
        "max_rows_per_batch": st.none() | st.integers(1, 10**9),
        "delivery": st.sampled_from([None, "auto", "at_least_once", "exactly_once"]),
        "continue_on_target_failure": st.booleans(),
        "on_drift": st.sampled_from(["error", "warn", "evolve"]),
        "fail_on_data_loss": st.booleans(),
        "checkpoint": st.none() | names,
        "description": st.none() | words,
    }
)


def built(options: dict[str, Any]) -> StreamSpec | None:
    """The stream, or None for one that the rules refuse."""
    try:
        return stream_spec(None, **options)
    except DeclarationError:
        return None


def without_masks(spec: StreamSpec) -> dict[str, Any]:
    """As JSON, but for what TOML does not keep: the name and keys of the payload's columns."""
    value = spec.to_json()
    if value["columns"]:
        columns = value["columns"]["columns"]
        value["columns"] = [{**column, "primary_key": False} for column in columns]
    return value


@settings(max_examples=40)
@given(streams)
def test_a_stream_comes_back_from_json(options: dict[str, Any]) -> None:
    spec = built(options)
    if spec is not None:
        assert StreamSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@settings(max_examples=40)
@given(streams)
def test_a_stream_comes_back_from_toml(options: dict[str, Any]) -> None:
    spec = built(options)
    if spec is not None:
        assert without_masks(stream_from_text(stream_to_toml(spec))) == without_masks(spec)


def test_the_text_of_a_stream_is_what_a_person_would_write() -> None:
    spec = stream_spec(
        None,
        name="clean",
        source=PLAIN,
        source_query="events",
        target="warehouse",
        target_table=("public", "events"),
        transform_sql="SELECT *\nFROM source",
    )
    assert (
        stream_to_toml(spec)
        == '''\
pipeline_name = "clean"
source_query = "events"

[transform]
sql = """SELECT *
FROM source"""

[source]
kind = "kafka"
name = "plain"
bootstrap_servers = "localhost:9092"

[target]
connection = "warehouse"

[target.table]
schema = "public"
name = "events"
'''
    )


PLAIN = KafkaConnection(name="plain", bootstrap_servers="localhost:9092")


def test_secrets_are_masked_in_the_text_and_refused_when_it_is_used(
    recwarn: pytest.WarningsRecorder,
) -> None:
    secret = "hunter2-secret"
    register_streaming_pipeline(
        "leaky",
        stream_spec(
            None,
            name="x",
            source=PLAIN,
            source_query="a",
            target=PostgresConnection(name="w", url=f"postgres://u:{secret}@h/db"),
            target_table="b",
        ),
    )
    text = render_streaming_pipeline_toml("leaky")
    assert secret not in text
    (target,) = stream_from_text(text).targets
    with pytest.raises(ConfigError, match="is masked"):
        resolve_for_use(target.connection)
    assert len(recwarn) == 0


def test_what_only_python_can_say_is_no_toml() -> None:
    @ematix.table
    class Trimmed:
        note: Annotated[Text, trim()]

    spec = stream_spec(None, name="x", source=PLAIN, source_query="a", target=WAREHOUSE, target_table=Trimmed)
    with pytest.raises(DeclarationError, match="has normalisers, which TOML cannot express"):
        stream_to_toml(spec)


def test_streams_are_registered_listed_and_found_by_name() -> None:
    spec = stream_spec(None, name="a", source=PLAIN, source_query="a", target=WAREHOUSE, target_table="b")
    first = register_streaming_pipeline("first", spec)
    second = register_streaming_pipeline("second", first)
    assert list_streaming_pipelines() == ["first", "second"]
    assert get_streaming_pipeline("second") is second
    assert second.spec.name == "second"
    with pytest.raises(DuplicateName):
        register_streaming_pipeline("first", spec)
    with pytest.raises(UnknownName, match="Did you mean 'first'"):
        render_streaming_pipeline_toml("fisrt")
    with pytest.raises(DeclarationError, match="takes a streaming pipeline, not str"):
        register_streaming_pipeline("third", "spec")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="needs a name"):
        register_streaming_pipeline("", spec)


# ------------------------------------------------------------------ the samples of the readme


@pytest.fixture
def samples() -> dict[str, Any]:
    @ematix.connection
    class kafka_prod:
        kind = "kafka"
        bootstrap_servers = "${KAFKA_BOOTSTRAP}"
        group_id = "ematix-flow"

    @ematix.connection
    class warehouse:
        kind = "postgres"
        url = "${WAREHOUSE_DSN}"

    @ematix.connection
    class lake:
        kind = "object_store_s3"
        endpoint = "https://s3.amazonaws.com"
        bucket = "ematix-archive"
        region = "us-east-1"
        access_key_id = "${AWS_ACCESS_KEY_ID}"
        secret_access_key = "${AWS_SECRET_ACCESS_KEY}"
        format = "parquet"

    return {"kafka_prod": kafka_prod, "warehouse": warehouse, "lake": lake}


def test_the_sample_of_a_decorated_stream(samples: dict[str, Any]) -> None:
    @ematix.streaming_pipeline(
        name="events_to_pg",
        source=samples["kafka_prod"],
        source_query="events",
        target=samples["warehouse"],
        target_table=("public", "events"),
    )
    def events_to_pg() -> None:
        pass

    assert current_registry().stream("events_to_pg").spec.targets[0].label == "warehouse:public.events"


def test_the_sample_of_several_targets(samples: dict[str, Any]) -> None:
    @ematix.streaming_pipeline(
        name="events_fanout",
        source=samples["kafka_prod"],
        source_query="events",
        targets=[
            Target(connection=samples["warehouse"], table=("public", "events")),
            Target(connection=samples["lake"], prefix="events/raw", parquet_compression="zstd"),
        ],
    )
    def events_fanout() -> None:
        pass

    assert [t.label for t in events_fanout.spec.targets] == ["warehouse:public.events", "lake:events/raw"]


def test_the_sample_of_a_lookup(samples: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[StreamSpec] = []
    monkeypatch.setattr(running_stream, "run_stream", lambda spec, registry, options: ran.append(spec))
    run_streaming_pipeline(
        name="events-clean",
        source=samples["kafka_prod"],
        source_query="events",
        target=samples["warehouse"],
        target_table=("public", "events_clean"),
        transform_sql="SELECT s.user_id, s._event_ts, u.tier FROM source s LEFT JOIN users u USING (user_id)",
        lookups={
            "users": Lookup(
                connection=samples["warehouse"],
                query="SELECT user_id, tier FROM dim_users",
                refresh_interval_ms=60_000,
            )
        },
    )
    assert ran[0].lookups[0].refresh_interval_ms == 60_000


def test_the_sample_of_files_that_are_followed(
    samples: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[StreamSpec] = []
    monkeypatch.setattr(running_stream, "run_stream", lambda spec, registry, options: ran.append(spec))
    run_streaming_pipeline(
        name="option-chain-snapshots",
        source=samples["lake"],
        source_query="raw/options/",
        target=samples["warehouse"],
        target_table=("marketdata", "option_chain_snapshots"),
        transform_sql="SELECT date_trunc('minute', ts) AS minute FROM source GROUP BY 1",
    )
    assert ran[0].sources[0].label == "lake:raw/options/"
