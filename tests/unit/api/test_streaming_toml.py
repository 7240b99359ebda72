"""A stream in TOML: what each key means, and errors that point at the very line."""

from __future__ import annotations

import datetime as dt
import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from ematix_flow import KafkaConnection, PostgresConnection, SchemaRegistryConnection, Target, run_pipeline
from ematix_flow.api.stream_declaration import StreamOptions
from ematix_flow.api.stream_toml import KEYS, stream_from_text, stream_from_toml
from ematix_flow.api.stream_toml_endpoints import TARGET_KEYS
from ematix_flow.errors import CannotConnect, ConfigError, DeclarationError, FlowError, MissingSecret
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.streams import running_stream
from ematix_flow.streams.run_options import StreamRunOptions

SEED = """\
# pipeline.toml
pipeline_name = "events-to-pg"
source_query  = "events"
idle_pause_ms = 500

[source]
kind = "kafka"
bootstrap_servers = "localhost:9092"
group_id = "ematix-flow"

[target]
kind = "postgres"
url  = "postgres://localhost/mydb"

[target.table]
schema = "public"
name   = "events"
"""
RIGHT = """\
pipeline_name = "events"
source_query = "events"
[source]
kind = "kafka"
bootstrap_servers = "localhost:9092"
[target]
kind = "postgres"
url = "postgres://localhost/db"
table = "public.events"
"""


def edited(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


# ------------------------------------------------------------------ what is right


def test_the_file_of_the_readme_loads_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(SEED)
    spec = stream_from_toml(path)
    assert spec.name == "events-to-pg"
    assert spec.sources[0].connection == KafkaConnection(
        name="source", bootstrap_servers="localhost:9092", group_id="ematix-flow"
    )
    assert spec.sources[0].query == "events"
    assert spec.targets[0].connection == PostgresConnection(name="target", url="postgres://localhost/mydb")
    assert spec.targets[0].table_name == ("public", "events")
    assert spec.idle_pause_ms == 500
    assert str(spec.where) == "pipeline.toml:2"


def test_the_file_of_the_readme_is_what_run_pipeline_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[StreamSpec, StreamRunOptions]] = []
    monkeypatch.setattr(
        running_stream, "run_stream", lambda spec, registry, options: ran.append((spec, options))
    )
    (tmp_path / "pipeline.toml").write_text(SEED)
    run_pipeline(config="pipeline.toml", metrics_port=9100)
    run_pipeline(config_str=SEED, pipeline_name="other", once=True)
    assert [spec.name for spec, _ in ran] == ["events-to-pg", "other"]
    assert [options for _, options in ran] == [
        StreamRunOptions(metrics_port=9100),
        StreamRunOptions(once=True),
    ]


def test_every_option_of_a_stream_has_its_key() -> None:
    assert set(inspect.signature(StreamOptions).parameters) - set(KEYS) == set()


def test_every_option_of_a_target_has_its_key() -> None:
    of_batches = {"column_map"}
    assert {field.name for field in fields(Target)} - {"connection", "where"} - of_batches == set(TARGET_KEYS)


def test_everything_that_a_file_may_say() -> None:
    spec = stream_from_text(
        """
        name = "all"
        mode = "merge"
        keys = ["id"]
        on_drift = "evolve"
        delivery = "exactly_once"
        continue_on_target_failure = true
        fail_on_data_loss = false
        checkpoint = "/tmp/here"
        dead_letter_table = "bad"
        dlq_store = "table"
        dlq_max_attempts = 5
        description = "all of it"

        [dead_letter_connection]
        kind = "sqlite"
        path = "bad.db"

        [source_columns]
        id = "BigInt"
        price = "Numeric[10, 2] | None"
        name = "string[20]"

        [transform]
        sql = "SELECT * FROM source JOIN users USING (id)"
        on_error = "fail"
        dialect = "duckdb"

        [transform.lookups.users]
        connection = "warehouse"
        query = "SELECT id, ${x} FROM users"
        refresh_interval_ms = 60000

        [transform.lookups.tiers]
        kind = "duckdb"
        path = "tiers.duckdb"
        schema = "main"
        table = "tiers"

        [[sources]]
        connection = "kafka_prod"
        query = "a"
        starting = 2026-01-31T00:00:00Z
        options = { maxOffsetsPerTrigger = 10, x = true }

        [[sources]]
        kind = "object_store_local"
        path = "in"
        format = "csv"
        query = "b"
        starting = "latest"
        csv_read_options = { delimiter = ";" }

        [[targets]]
        url = "postgres://localhost/db"
        table = "public.events"

        [[targets]]
        name = "archive"
        kind = "object_store_s3"
        bucket = "b"
        prefix = "raw"
        mode = "append"
        partition_by = ["day"]
        parquet_compression = "zstd"

        [[targets]]
        kind = "kafka"
        bootstrap_servers = ["a:1", "b:2"]
        topic = "out"
        message_key_column = "id"
        mode = "append"
        payload_format = "avro"
        [targets.schema_registry]
        kind = "schema_registry"
        url = "http://localhost:8081"

        [[targets]]
        kind = "delta_s3"
        bucket = "b"
        prefix = "lake"
        [targets.table]
        name = "events"
        primary_key = ["event_id"]
        """
    )
    assert [s.label for s in spec.sources] == ["kafka_prod:a", "source_2:b"]
    assert spec.sources[0].starting == dt.datetime(2026, 1, 31, tzinfo=dt.timezone.utc)
    assert spec.sources[0].options == (("maxOffsetsPerTrigger", "10"), ("x", "true"))
    assert spec.sources[1].files.csv_read_options == (("delimiter", ";"),)
    assert [t.label for t in spec.targets] == [
        "target:public.events",
        "archive:raw",
        "target_3:out",
        "target_4:events",
    ]
    assert [(t.mode, t.keys) for t in spec.targets] == [
        ("merge", ("id",)),
        ("append", ("id",)),
        ("append", ("id",)),
        ("merge", ("event_id",)),
    ]
    kafka = spec.targets[2].connection
    assert isinstance(kafka, KafkaConnection) and kafka.bootstrap_servers == "a:1,b:2"
    assert isinstance(kafka.schema_registry, SchemaRegistryConnection)
    assert getattr(spec.targets[3].connection, "prefix", None) == "lake"
    assert spec.targets[3].prefix is None
    assert spec.columns is not None
    assert [(c.name, str(c.type), c.nullable) for c in spec.columns.columns] == [
        ("id", "BigInt", False),
        ("price", "Numeric[10, 2]", True),
        ("name", "String[20]", False),
    ]
    assert [(x.name, x.table, x.query) for x in spec.lookups] == [
        ("users", None, "SELECT id, ${x} FROM users"),
        ("tiers", "main.tiers", None),
    ]
    assert (spec.on_error, spec.dialect, spec.on_drift) == ("fail", "duckdb", "evolve")
    assert (spec.dead_letters.store, spec.dead_letters.max_attempts) == ("table", 5)


def test_short_forms_at_the_top_of_a_file() -> None:
    spec = stream_from_text(
        'pipeline_name = "a"\nsource = "kafka_prod"\nsource_query = "x"\nstarting = "latest"\n'
        'target_connection = "warehouse"\ntarget_table = ["public", "events"]\n'
    )
    assert spec.sources[0].label == "kafka_prod:x"
    assert spec.sources[0].starting == "latest"
    assert spec.targets[0].label == "warehouse:public.events"


def test_a_declared_table_has_its_columns_in_the_file() -> None:
    spec = stream_from_text(
        edited('table = "public.events"\n', "")
        + '[target.table]\nname = "events"\nprimary_key = ["id"]\nunique = [["a"]]\n'
        + '[target.table.columns]\nid = "BigInt"\na = "Text | None"\n'
    )
    table = spec.targets[0].table
    assert table is not None
    assert (table.primary_key, table.unique, table.column_names) == (("id",), (("a",),), ("id", "a"))


def test_references_stay_in_connections_and_are_replaced_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC", "events-eu")
    spec = stream_from_text(
        edited('source_query = "events"', 'source_query = "${TOPIC}"').replace(
            "localhost:9092", "${BOOTSTRAP}"
        )
    )
    assert spec.sources[0].query == "events-eu"
    assert getattr(spec.sources[0].connection, "bootstrap_servers", None) == "${BOOTSTRAP}"


def test_the_kind_of_a_url_in_the_environment_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAREHOUSE", "postgres://u:hunter2secret@localhost/db")
    spec = stream_from_text(
        edited('kind = "postgres"\nurl = "postgres://localhost/db"', 'url = "${WAREHOUSE}"')
    )
    assert isinstance(spec.targets[0].connection, PostgresConnection)


# ------------------------------------------------------------------ what is refused

REFUSED: list[tuple[str, str, int]] = [
    ("pipeline_name = ", "is not valid TOML", 1),
    (edited('pipeline_name = "events"\n', ""), "it needs a name", 1),
    (edited('"events"\nsource', "5\nsource"), "pipeline_name takes text", 1),
    (edited("source_query", 'name = "x"\nsource_query'), "mean the same", 2),
    (edited("source_query", "source_qeury"), "Did you mean 'source_query'?", 2),
    (edited("source_query", "idle_pause_ms = -5\nsource_query"), "idle_pause_ms= takes a whole number", 2),
    (edited("source_query", 'delivery = "once"\nsource_query'), "delivery='once' is unknown", 2),
    (edited("source_query", 'fail_on_data_loss = "no"\nsource_query'), "takes True or False", 2),
    (edited("source_query", 'starting = "soon"\nsource_query'), "neither earliest nor latest", 2),
    (edited("source_query", 'target_topic = "x"\nsource_query'), "needs target_table=, not target_topic=", 2),
    (edited('source_query = "events"\n', ""), "needs source_query=", 2),
    (edited('source_query = "events"', "source_query = 5"), "query takes text", 2),
    (edited("[target]", 'query = "x"\n[target]'), "query and source_query mean the same", 6),
    (edited("[source]", "[soruce]"), "Did you mean 'source'?", 3),
    (edited("[source]", "[transform]\n[source]").replace("[target]", "[x]"), "no key 'x'", 7),
    (RIGHT + '[[sources]]\nconnection = "x"\nquery = "y"\n', "give [source] or [[sources]], not both", 10),
    (RIGHT + "[[targets]]\n", "give [target] or [[targets]], not both", 10),
    (RIGHT[: RIGHT.index("[target]")], "there is neither [target] nor [[targets]]", 1),
    (edited("[source]", "sources = []\n[sourcex]").replace("[sourcex]", "[transform]"), "is empty", 3),
    (edited("[source]", "sources = 5\n[transform]"), "written [[sources]]", 3),
    (edited('kind = "kafka"', 'kind = "kafak"'), "Did you mean 'kafka'?", 4),
    (edited("bootstrap_servers", "bootstrap_server"), "Did you mean 'bootstrap_servers'?", 5),
    (edited('bootstrap_servers = "localhost:9092"\n', ""), "it needs bootstrap_servers", 3),
    (edited("[target]", 'payload_format = "xml"\n[target]'), "payload_format is 'xml'", 6),
    (edited("[target]", 'sasl_plain_username = "u"\n[target]'), "given without sasl_plain_password", 6),
    (edited('kind = "kafka"', 'connection = "x"'), "bootstrap_servers does not belong here", 5),
    (edited('kind = "kafka"\nbootstrap_servers', 'connection = "x"\noptoins'), "Did you mean 'options'?", 5),
    (edited('kind = "kafka"\nbootstrap_servers = "localhost:9092"\n', ""), "it needs  connection =", 3),
    (edited("[target]", 'options = "x"\n[target]'), "takes names and values", 6),
    (edited('table = "public.events"\n', ""), "a target of kind postgres needs target_table=", 6),
    (edited("table =", "tabel ="), "Did you mean 'table'?", 9),
    (edited('"public.events"', "5"), "table is a table, and int is given", 9),
    (RIGHT + 'mode = "truncate"\n', "never has all rows", 10),
    (RIGHT + 'mode = "mrege"\n', "Did you mean 'merge'?", 10),
    (RIGHT + 'mode = "merge"\n', "has none", 10),
    (RIGHT + "keys = 5\n", "keys= takes column names", 10),
    (RIGHT + 'csv_delimiter = ";"\n', "holds no files", 10),
    (RIGHT + 'handle_deletes = "hard"\n', "a stream never has all rows", 10),
    (RIGHT + '[transform]\nsql = "x"\non_eror = "drop"\n', "Did you mean 'on_error'?", 12),
    (RIGHT + '[transform]\nsql = "x"\non_error = "dorp"\n', "Did you mean 'drop'?", 12),
    (RIGHT + "[transform]\nsql = 5\n", "transform_sql= takes text", 11),
    (RIGHT + '[transform]\nengine = "datafusion"\n', "Spark runs the SQL", 11),
    (RIGHT + '[transform.lookups.u]\nconnection = "x"\ntable = "u"\n', "which is not set", 10),
    (
        RIGHT + '[transform]\nsql = """\n[a]\nmode = 1\n"""\n[transform.lookups.u]\nconnection = "x"\n',
        "query= or table=",
        15,
    ),
    (RIGHT + '[source_columns]\na = "Text"\nb = "Txet"\n', "Did you mean 'Text'?", 12),
    (RIGHT + '[source_columns]\na = "Numeric"\n', "needs its parameters", 11),
    (RIGHT + "[source_columns]\na = 5\n", "5 is not a column type", 11),
    (RIGHT + "[source_columns]\na = \"__import__('os')\"\n", "is not a column type", 11),
    (RIGHT + '[window]\nkind = "tumbling"\n', "a window needs aggregations=", 10),
    (RIGHT + "[transform.window]\nduration_ms = 5\n", "[transform.window]: it needs  kind =", 10),
    (RIGHT + "[transform.join]\n", "[transform.join]: it needs left_source =", 10),
    (RIGHT + '[transform.cdc]\nenvelope = "x"\n', "envelope= of CDC is one of", 11),
    (RIGHT + '[state_store]\nkind = "checkpiont"\n', "Did you mean 'checkpoint'?", 10),
    (RIGHT + "[watermark]\nlateness_ms = -1\n", "lateness_ms= takes a whole number", 10),
    (
        RIGHT.replace("[target]", "[[targets]]")
        + '[[targets]]\nconnection = "lake"\nmode = "marge"\nprefix = "x"\n',
        "Did you mean 'merge'?",
        12,
    ),
    (
        RIGHT.replace("[target]", "[[targets]]") + '[[targets]]\nkind = "kafka"\ntopik = "x"\n',
        "Did you mean 'topic'?",
        12,
    ),
    (
        edited('table = "public.events"', '[target.table]\nnmae = "events"'),
        "Did you mean 'name'?",
        10,
    ),
    (edited('table = "public.events"', '[target.table]\nschema = "x"'), "it needs a name", 9),
    (
        edited(
            'table = "public.events"',
            '[target.table]\nname = "x"\nprimary_key = ["b"]\n[target.table.columns]\na = "Text"',
        ),
        "primary_key names 'b', which is not a column",
        11,
    ),
]


@pytest.mark.parametrize(("text", "words", "line"), REFUSED)
def test_an_error_names_its_line(tmp_path: Path, text: str, words: str, line: int) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    with pytest.raises((DeclarationError, ConfigError)) as caught:
        stream_from_toml(path)
    assert words in caught.value.what
    assert str(caught.value.where) == f"pipeline.toml:{line}"


def test_a_text_is_named_in_errors() -> None:
    with pytest.raises(DeclarationError) as caught:
        stream_from_text(edited("[source]", "[soruce]"))
    assert str(caught.value.where) == "<config_str>:3"


def test_a_missing_file_names_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(RIGHT)
    with pytest.raises(ConfigError, match=r"Did you mean 'pipeline\.toml'"):
        stream_from_toml(tmp_path / "pipelin.toml")
    with pytest.raises(ConfigError, match="there is no file"):
        stream_from_toml(tmp_path / "nowhere" / "pipeline.toml")


def test_the_error_about_a_missing_variable_names_its_line() -> None:
    with pytest.raises(MissingSecret, match="TOPIC is not set") as caught:
        stream_from_text(edited('source_query = "events"', 'source_query = "${TOPIC}"'))
    assert caught.value.where is not None and caught.value.where.line == 2


# ------------------------------------------------------------------ secrets

SECRET = "hunter2-secret"


def test_secrets_in_clear_text_give_one_warning_that_names_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "secrets.toml"
    path.write_text(
        edited("[target]", f'sasl_plain_username = "u"\nsasl_plain_password = "{SECRET}"\n[target]').replace(
            "postgres://localhost", f"postgres://u:{SECRET}@localhost"
        )
    )
    with pytest.warns(UserWarning, match="clear text") as caught:
        spec = stream_from_toml(path)
    (warning,) = caught
    text = str(warning.message)
    assert "[source] sasl_plain_password, [target] url" in text
    assert "${" in text
    assert SECRET not in text
    assert (Path(warning.filename).name, warning.lineno) == ("secrets.toml", 7)
    assert SECRET not in repr(spec) + str(spec.to_json())


def test_references_are_no_secrets_in_clear_text(recwarn: pytest.WarningsRecorder) -> None:
    stream_from_text(edited("postgres://localhost", "postgres://u:${PASSWORD}@localhost"))
    assert len(recwarn) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        f'sasl_plain_pasword = "{SECRET}"',
        f'sasl_plain_password = "{SECRET}"',
        f'sasl_plain_password = ["{SECRET}"]',
        f'url = "postgres://u:{SECRET}@h/db"',
        f'connection = {{ kind = "postgres", url = "mysql://u:{SECRET}@h/db" }}',
    ],
)
def test_an_error_shows_no_secret(wrong: str) -> None:
    with pytest.raises(FlowError) as caught:
        stream_from_text(edited("[target]", f"{wrong}\n[target]"))
    assert SECRET not in str(caught.value)


WITH_PLACES = """\
pipeline_name = "s"

[source]
kind = "kafka"
bootstrap_servers = "${NOT_SET}"
query = "events"

[target]
kind = "postgres"
url = "postgres://localhost/db"
table = "public.events"
"""


def test_an_error_of_a_connection_in_the_file_points_at_its_table_and_names_a_step_that_works() -> None:
    spec = stream_from_text(WITH_PLACES)
    error = CannotConnect(
        "connection 'target' cannot reach PostgreSQL", next_step="flow connections check target, then again"
    ).with_location(spec.where)
    assert str(error.where) == "<config_str>:8"
    assert error.next_step == "fix 'target' at <config_str>:8, and run it again"


def test_an_error_of_a_connection_that_has_a_name_keeps_its_next_step() -> None:
    spec = stream_from_text(WITH_PLACES)
    error = CannotConnect(
        "connection 'other' is away", next_step="flow connections check other"
    ).with_location(spec.where)
    assert (str(error.where), error.next_step) == ("<config_str>:1", "flow connections check other")


def test_a_variable_that_is_not_set_when_the_stream_starts_is_reported_with_the_line_of_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    spec = stream_from_text(WITH_PLACES)
    with pytest.raises(MissingSecret, match="NOT_SET is not set") as missing:
        resolve_for_use(spec.sources[0].connection)
    assert str(missing.value.where) == "<config_str>:5"
