"""Name resolution: which definition of a name is used, where it is, and what it hides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ematix_flow import config
from ematix_flow.api.connection import register_connection
from ematix_flow.config.connection_resolution import ConfigSources, env_variable, resolve_connection
from ematix_flow.connections import resolve, resolve_with_origin
from ematix_flow.errors import ConfigError, MissingSecret, UnknownConnection
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.spec.connections import (
    DuckDBConnection,
    KafkaConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)


@pytest.fixture
def user_file() -> Path:
    path = Path(os.environ["HOME"]) / ".ematix-flow" / "connections.toml"
    path.parent.mkdir()
    return path


@pytest.fixture
def project_file(tmp_path: Path) -> Path:
    return tmp_path / ".ematix-flow.toml"


def host(name: str) -> str:
    return resolve(name).url.removeprefix("postgres://")


def test_each_place_hides_the_ones_below_it(
    monkeypatch: pytest.MonkeyPatch, project_file: Path, user_file: Path
) -> None:
    register_connection(PostgresConnection(name="wh", url="postgres://registered"))
    assert host("wh") == "registered"
    user_file.write_text('[connections.wh]\nurl = "postgres://user"\n')
    assert host("wh") == "user"
    project_file.write_text('# here\n[connections.wh]\ndsn = "postgres://project"\n')
    assert host("wh") == "project"
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "postgres://env")
    assert host("wh") == "env"
    resolved = resolve_with_origin("wh")
    assert str(resolved.origin) == "env EMATIX_FLOW_DSN_WH"
    project, user, registered = map(str, resolved.shadowed)
    assert project == ".ematix-flow.toml:2"
    assert user == f"{user_file}:1"
    assert registered.startswith(__file__)


def test_the_plain_variable_is_for_default_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN", "postgres://one")
    assert host("default") == "one"
    with pytest.raises(UnknownConnection):
        resolve("other")
    monkeypatch.setenv("EMATIX_FLOW_DSN_DEFAULT", "postgres://two")
    assert host("default") == "two"


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN", "")
    with pytest.raises(UnknownConnection):
        resolve("default")


@pytest.mark.parametrize("name", ["raw_db", "raw-db", "Raw.DB"])
def test_a_name_is_upper_cased_for_its_variable(name: str) -> None:
    assert env_variable(name) == "EMATIX_FLOW_DSN_RAW_DB"


def test_every_kind_can_stand_in_a_file(project_file: Path) -> None:
    project_file.write_text(
        """
        [connections.events]
        kind = "kafka"
        bootstrap_servers = "${KAFKA_BOOTSTRAP}"
        group_id = "ematix-flow"

        [connections]
        short = "duckdb://w.duckdb"
        files = { url = "file:///in", format = "csv" }
        lite.path = "a.db"
        lite.kind = "sqlite"
        """
    )
    assert resolve("events") == KafkaConnection(
        name="events", bootstrap_servers="${KAFKA_BOOTSTRAP}", group_id="ematix-flow"
    )
    assert resolve("short") == DuckDBConnection(name="short", path="w.duckdb")
    assert resolve("files") == ObjectStoreLocalConnection(name="files", path="/in", format="csv")
    assert resolve("lite") == SQLiteConnection(name="lite", path="a.db")


def test_a_url_that_is_only_a_variable_has_the_kind_of_its_value(
    project_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_file.write_text('[connections.wh]\nurl = "${WH_DSN}"\n')
    with pytest.raises(MissingSecret, match="connection 'wh': the environment variable WH_DSN is not set"):
        resolve("wh")
    monkeypatch.setenv("WH_DSN", "postgres://u:pw@h/d")
    assert resolve("wh") == PostgresConnection(name="wh", url="${WH_DSN}")
    assert resolve_for_use("wh").url == "postgres://u:pw@h/d"


def test_a_url_from_a_secret_store_needs_its_kind(project_file: Path) -> None:
    project_file.write_text('[connections.wh]\nurl = "${vault:db#url}"\n')
    with pytest.raises(ConfigError, match="its url is a reference"):
        resolve("wh")


def test_an_unknown_name_says_what_was_searched_and_what_is_close(project_file: Path) -> None:
    project_file.write_text('[connections.warehouse]\nurl = "postgres://h"\n')
    with pytest.raises(UnknownConnection) as caught:
        resolve("warehose")
    text = str(caught.value)
    assert "no connection is named 'warehose'. Did you mean 'warehouse'?" in text
    assert "EMATIX_FLOW_DSN_WAREHOSE" in text
    assert ".ematix-flow.toml (1 connections)" in text
    assert "connections.toml (not there)" in text
    assert "flow connections set warehose" in text
    assert isinstance(caught.value, LookupError)


def test_a_registered_instance_stands_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = register_connection(PostgresConnection(name="wh", url="postgres://code"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "postgres://env")
    assert resolve(warehouse).url == "postgres://env"


def test_an_instance_that_is_not_registered_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "postgres://env")
    instance = PostgresConnection(name="wh", url="postgres://code")
    assert resolve_with_origin(instance).connection is instance
    register_connection(PostgresConnection(name="wh", url="postgres://other"))
    assert resolve(instance).url == "postgres://code"


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ('[connections.a]\nurl = "postgres://h"\nurl2 = \n', "not valid TOML", 3),
        ('\n[connections.wh]\nurl = "postgres://h"\nuser_name = "x"\n', "no field 'user_name'", 2),
        ("[connections]\nwh = 5\n", "neither a table nor a URL", 2),
        ("connections = 5\n", "is not a table", 1),
        ("\n\n[connection.wh]\nurl = 'postgres://h'\n", r"are defined in \[connections.<name>\]", 3),
        ('[connections.wh]\nkind = "postgress"\n', "Did you mean 'postgres'", 1),
    ],
)
def test_what_is_wrong_in_a_file_carries_its_line(
    project_file: Path, text: str, says: str, line: int
) -> None:
    project_file.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        resolve("wh")
    assert caught.value.where is not None
    assert (caught.value.where.file, caught.value.where.line) == (str(project_file), line)


def test_a_wrong_variable_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "hunter2@nowhere")
    with pytest.raises(ConfigError, match=r"is unknown.*env EMATIX_FLOW_DSN_WH") as caught:
        resolve("wh")
    assert "hunter2" not in str(caught.value)


def test_a_file_that_cannot_be_read_as_text_is_an_error(project_file: Path) -> None:
    project_file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        resolve("wh")
    project_file.unlink()
    project_file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve("wh")


def test_the_list_shows_winner_origin_and_what_is_hidden(
    monkeypatch: pytest.MonkeyPatch, project_file: Path, user_file: Path
) -> None:
    project_file.write_text(
        '[connections.wh]\nurl = "postgres://u:${UNSET}@h/d"\n[connections.bad]\nkind = "x"\n'
    )
    user_file.write_text('[connections.wh]\nurl = "postgres://u:hunter2@old/d"\n')
    register_connection(PostgresConnection(name="code", url="postgres://u:hunter2@h/d"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_RAW_DB", "postgres://u:hunter2@raw/d")
    listed = {entry.name: entry for entry in config.connection_definitions()}
    assert sorted(listed) == ["bad", "code", "raw_db", "wh"]
    assert listed["wh"].destination == "postgres://u:${UNSET}@h/d"
    assert str(listed["wh"].origin) == ".ematix-flow.toml:1"
    assert [origin.source for origin in listed["wh"].shadowed] == ["user_file"]
    assert listed["raw_db"].kind == "postgres"
    assert str(listed["raw_db"].origin) == "env EMATIX_FLOW_DSN_RAW_DB"
    assert str(listed["code"].origin).startswith(__file__)
    assert "there is no connection kind 'x'" in (listed["bad"].problem or "")
    assert "hunter2" not in str([entry.to_json() for entry in listed.values()]) + repr(listed)


def test_the_list_asks_no_secret_store_and_survives_a_missing_variable(project_file: Path) -> None:
    project_file.write_text('[connections.a]\nurl = "${UNSET}"\n[connections.b]\nurl = "${vault:x}"\n')
    assert [bool(entry.problem) for entry in config.connection_definitions()] == [True, True]


def test_connections_are_listed_by_name_with_a_masked_url(
    monkeypatch: pytest.MonkeyPatch, project_file: Path
) -> None:
    project_file.write_text(
        '[connections.bad]\nkind = "x"\n[connections.lake]\nkind = "delta_s3"\nbucket = "b"\n'
    )
    register_connection(
        PostgresConnection(name="parts", host="h", database="d", user="u", password="hunter2")
    )
    monkeypatch.setenv("EMATIX_FLOW_DSN_RAW_DB", "postgres://u:hunter2@raw/d")
    listed = config.list_connections()
    assert listed["raw_db"] == "postgres://u:***@raw/d"
    assert listed["parts"].startswith("postgresql://u:***@")
    assert listed["lake"] == "delta_s3://b"
    assert listed["bad"].startswith("(invalid: ")
    assert "hunter2" not in str(listed)


def test_a_variable_goes_to_the_name_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    register_connection(PostgresConnection(name="Raw-DB", url="postgres://h"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_RAW_DB", "postgres://env")
    assert [entry.name for entry in config.connection_definitions()] == ["Raw-DB"]


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgres://u:${PW}@h/d", "postgres://u:a@b@h/d"),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ("amqp://h", "amqp://h"),
    ],
)
def test_resolve_dsn_gives_the_expanded_url(monkeypatch: pytest.MonkeyPatch, dsn: str, expected: str) -> None:
    monkeypatch.setenv("PW", "a@b")
    monkeypatch.setenv("EMATIX_FLOW_DSN", dsn)
    assert config.resolve_dsn() == expected


def test_resolve_dsn_builds_the_url_of_a_server_given_by_fields() -> None:
    register_connection(
        PostgresConnection(name="x", host="localhost", user="u", password="p/w", database="d")
    )
    assert config.resolve_dsn("x") == "postgresql://u:p%2Fw@/d?host=localhost"


def test_resolve_dsn_refuses_what_is_not_one_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN", "kafka://h:9092")
    with pytest.raises(ConfigError, match="which is not one URL"):
        config.resolve_dsn()


def test_the_places_can_be_given_by_hand(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / ".ematix-flow.toml").write_text('[connections.a]\nurl = "postgres://p"\n')
    found = resolve_connection("a", registered={}, env={}, cwd=tmp_path / "p", home=tmp_path)
    assert found.connection.url == "postgres://p"
    assert ConfigSources({}, {"EMATIX_FLOW_DSN_Z": "postgres://z"}, tmp_path / "p", tmp_path).names() == (
        "a",
        "z",
    )


def test_other_tables_of_the_project_file_are_settings(project_file: Path) -> None:
    assert dict(config.project_settings()) == {}
    project_file.write_text('[engine]\nmaster = "local[2]"\n[connections.a]\nurl = "postgres://h"\n')
    assert dict(config.project_settings()) == {"engine": {"master": "local[2]"}}


@pytest.mark.parametrize(
    ("written", "said", "line"),
    [
        ('[runlog]\nurl = "memory://"\n', r"no table \[runlog\]\. Did you mean 'run_log'\?", 1),
        ('[run_log]\nurl = "memory://"\nkepp = "9d"\n', r"no setting 'kepp'\. Did you mean 'keep'\?", 3),
        ('[alerts]\nurl = "stdout://"\n', r"no setting 'url'\. Did you mean 'urls'\?", 2),
    ],
)
def test_what_the_project_file_says_in_vain_is_refused(
    project_file: Path, written: str, said: str, line: int
) -> None:
    project_file.write_text(written)
    with pytest.raises(ConfigError, match=said) as raised:
        config.project_settings()
    assert raised.value.where is not None
    assert raised.value.where.line == line
