"""Setting a connection: the user's file keeps everything else, and is never half written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ematix_flow import config
from ematix_flow.config.connection_editing import parse_assignments, parse_definition
from ematix_flow.connections import resolve
from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.spec.connections import KafkaConnection, RedshiftConnection

BEFORE = """\
# my connections
[connections.wh]   # the big one
url = "postgres://old/d"   # until spring
sslmode = "require"

[connections.other]
dsn = "postgres://o/d"

[settings]
kept = true
"""


@pytest.fixture
def path() -> Path:
    return Path(os.environ["HOME"]) / ".ematix-flow" / "connections.toml"


def test_a_first_connection_makes_the_file_for_its_owner_alone(path: Path) -> None:
    assert config.set_connection("wh", "postgres://u:pw@h/d") == path
    assert path.read_text() == '[connections.wh]\nurl = "postgres://u:pw@h/d"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_comments_other_keys_and_other_connections_stay(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(BEFORE)
    path.chmod(0o644)
    config.set_connection("wh", "postgres://new/d")
    assert path.read_text() == BEFORE.replace('url = "postgres://old/d"', 'url = "postgres://new/d"')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["connections.toml"]


def test_a_connection_of_another_kind_replaces_all_of_it(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(BEFORE)
    config.set_connection("wh", "duckdb:///w.duckdb")
    assert '[connections.wh]   # the big one\nurl = "duckdb:///w.duckdb"' in path.read_text()
    assert "sslmode" not in path.read_text()


def test_dsn_and_url_are_one_field(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(BEFORE)
    config.set_connection("other", "postgres://n/d")
    assert resolve("other").url == "postgres://n/d"
    assert "dsn" not in path.read_text()


def test_fields_are_added_to_what_is_there() -> None:
    config.set_connection("k", {"kind": "kafka", "bootstrap_servers": "h:9092"})
    config.set_connection("k", {"group_id": "g"})
    assert resolve("k") == KafkaConnection(name="k", bootstrap_servers="h:9092", group_id="g")


def test_numbers_and_booleans_are_written_as_such(path: Path) -> None:
    url = {"kind": "redshift", "host": "h", "database": "d", "user": "u", "password": "${PW}"}
    config.set_connection("r", {**url, "port": "5500"})
    assert "port = 5500" in path.read_text()
    assert isinstance(resolve("r"), RedshiftConnection)


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ({"kind": "kafka"}, "needs bootstrap_servers"),
        ({"url": "postgres://h", "sslmod": "x"}, "no field 'sslmod'"),
        ("gopher://h", "is unknown"),
        ("${UNSET}", "its url is a reference"),
    ],
)
def test_what_would_be_no_connection_is_not_written(path: Path, definition: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        config.set_connection("x", definition)  # type: ignore[arg-type]
    assert caught.value.state == "nothing was written"
    assert not path.exists()


def test_a_url_in_a_variable_is_kept_as_a_reference(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DSN", "postgres://h/d")
    config.set_connection("x", "${MY_DSN}")
    assert 'url = "${MY_DSN}"' in path.read_text()


def test_a_broken_file_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("[connections.a\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.set_connection("x", "postgres://h")
    assert path.read_text() == "[connections.a\n"


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "real.toml")
    config.set_connection("x", "postgres://h")
    assert path.is_symlink()
    assert "postgres://h" in (tmp_path / "real.toml").read_text()


@pytest.mark.parametrize("name", ["", "a b", "1a", "a=b", "a.b"])
def test_a_name_must_be_writable(name: str) -> None:
    with pytest.raises(UsageError, match="is not a connection name"):
        config.set_connection(name, "postgres://h")


def test_assignments_split_at_their_first_equals_sign() -> None:
    assert parse_assignments(["url=postgres://h/d?sslmode=require", "group_id="]) == {
        "url": "postgres://h/d?sslmode=require",
        "group_id": "",
    }
    with pytest.raises(UsageError) as caught:
        parse_assignments(["postgres://u:hunter2@h/d"])
    assert "hunter2" not in str(caught.value)


def test_both_forms_of_the_command_line_are_read() -> None:
    assert parse_definition(["wh=postgres://h/d?a=b"]) == ("wh", {"url": "postgres://h/d?a=b"})
    assert parse_definition(["wh", "kind=kafka", "bootstrap_servers=h:1"]) == (
        "wh",
        {"kind": "kafka", "bootstrap_servers": "h:1"},
    )
    for wrong in ([], ["wh"], ["=x"]):
        with pytest.raises(UsageError):
            parse_definition(wrong)
