"""Generated TOML, of a project's settings and of streams: used, or refused by an error at its line."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ematix_flow.api.stream_toml import KEYS, stream_from_text
from ematix_flow.errors import FlowError
from tests.property.fuzzed_declarations import GOOD
from tests.property.fuzzed_project import CANARY, Called, call_flow, require_a_clear_end, seed_and_secret
from tests.property.fuzzed_values import misspelled, more, seeded

__all__ = ["seed_and_secret"]  # a fixture


# --- settings --------------------------------------------------------------------------------------

TABLES = {
    "project": ["module", "moduel"],
    "engine": ["mode", "peers", "memory", "shuffle_partitions", "conf", "url", "tls"],
    "run_log": ["url", "keep"],
    "connections": ["shop", "url", "kind"],
    "connections.shop": ["kind", "path", "url", "pth"],
    "connections.new": [
        "kind",
        "path",
        "url",
        "host",
        "port",
        "user",
        "password",
        "bucket",
        "format",
        "topic",
    ],
    "alerts": ["urls", "url"],
    "log": ["format", "level"],
    "metrics": ["urls", "url", "port"],
    "traces": ["url"],
    "conections": ["shop"],
    "x y": ["a"],
}
VALUES = st.sampled_from(
    [
        '"project"',
        '"local"',
        '"lokal"',
        "1",
        "-1",
        "true",
        "[]",
        "[1]",
        '["spark://x"]',
        '["stdout://"]',
        '"${LOADED_BY}"',
        '"${NOT_SET}"',
        '"${"',
        '"json"',
        '"4g"',
        '"foo://x"',
        '"sqlite:///x.db"',
        '"postgres://a:b@[::1/db"',
        '"postgres://a:${LOADED_BY}@127.0.0.1:1/db"',
        '"postgres://a:b@h:99999/db"',
        '"${valt:a#b}"',
        "{ a = 1 }",
        "{ }",
        "nan",
        "1e400",
        "1979-05-27",
        '"',
        '"30d"',
        '"sqlite"',
        '"sqlit"',
        '"shop.db"',
        '"a\\u0000b"',
        "= 5",
        '""',
        '"\\uD800"',
        "99999999999999999999",
    ]
)
RIGHT = {
    "module": ['"project"'],
    "mode": ['"local"'],
    "keep": ['"30d"'],
    "format": ['"json"', '"text"'],
    "kind": ['"sqlite"', '"postgres"', '"duckdb"'],
    "path": ['"shop.db"'],
    "urls": ['["stdout://"]', "[]"],
    "memory": ['"2g"'],
    "port": ["5432"],
}


@st.composite
def settings_texts(draw: st.DrawFn) -> str | bytes:
    if draw(st.integers(0, 12)) == 12:
        return draw(st.one_of(st.text(max_size=30), st.binary(max_size=30)))
    lines = []
    for table in draw(st.lists(st.sampled_from(sorted(TABLES)), max_size=2, unique=True)):
        lines.append(f"[{table}]" if " " not in table else f'["{table}"]')
        for key in draw(st.lists(st.sampled_from(TABLES[table]), max_size=3, unique=draw(st.booleans()))):
            fit = st.sampled_from(RIGHT[key]) if key in RIGHT and draw(st.booleans()) else VALUES
            lines.append(f"{draw(misspelled(key))} = {draw(fit)}")
    return "\n".join(lines)


COMMANDS = st.sampled_from(
    [
        ["list"],
        ["run", "load"],
        ["plan", "load"],
        ["status"],
        ["connections", "list"],
        ["secrets", "list"],
        ["runs", "list"],
        ["validate", "load"],
    ]
)
OUTPUTS = st.sampled_from([["--output", "json"], ["--output", "json"], []])
STRATEGY = st.tuples(settings_texts(), COMMANDS, OUTPUTS)


def require_used_or_refused(base: Path, text: str | bytes, command: list[str], output: list[str]) -> None:
    files = {"project.py": GOOD, ".ematix-flow.toml": text}
    module = [] if command[0] in ("connections", "secrets", "runs") else ["--module", "project.py"]
    called = call_flow(base, [*command, *module, *output], files, [(1, "x")], "orders")
    try:
        if command[0] == "secrets" and called.code == 1:  # a table says which could not be read
            assert CANARY not in called.out + called.err
        else:
            require_a_clear_end(called)
        _require_no_silence(called, command, text)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text!r}") from None


def _require_no_silence(called: Called, command: list[str], text: str | bytes) -> None:
    """A run loads correct rows, and a key that nothing reads is refused."""
    if command[0] == "run" and called.code == 0:
        assert called.rows is None or [row[:2] for row in called.rows] == [(1, "x")], called
    if isinstance(text, str) and "[conections]" in text and command[0] in ("list", "run", "plan"):
        assert called.code == 2, called


@seeded(300)
@given(case=STRATEGY)
@example(case=("[conections]", ["list"], []))
def test_a_generated_settings_file_is_used_or_refused(
    tmp_path: Path, case: tuple[str | bytes, list[str], list[str]]
) -> None:
    require_used_or_refused(tmp_path, *case)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@more(10_000)
@given(case=STRATEGY)
def test_many_generated_settings_files_are_used_or_refused(
    tmp_path: Path, case: tuple[str | bytes, list[str], list[str]]
) -> None:
    require_used_or_refused(tmp_path, *case)


# --- streams ---------------------------------------------------------------------------------------

STREAM = {
    "name": ['"events"'],
    "source": ['{ kind = "kafka", bootstrap_servers = "127.0.0.1:1", query = "t" }', '"shop"'],
    "source_query": ['"t"'],
    "target": ['{ kind = "sqlite", path = "shop.db", table = "x" }', '{ connection = "shop", table = "x" }'],
    "target_table": ['"x"', '["public", "x"]'],
    "mode": ['"append"', '"merge"', '"merg"'],
    "keys": ['["a"]', '"a"'],
    "transform_sql": ['"SELECT * FROM source"', '"SELEC"'],
    "source_columns": ['{ a = "BigInt" }', '{ a = "BigInty" }', '"a BigInt"'],
    "lookups": ['{ x = { connection = "shop", table = "raw" } }'],
    "transform": ['{ sql = "SELECT 1" }'],
    "starting": ['"earliest"', '"latest"', '"2026-01-01T00:00:00Z"', '"2026-01-01"'],
}


@st.composite
def stream_texts(draw: st.DrawFn) -> str:
    """A stream that may be right, with some keys changed, added or left out."""
    given = {name: STREAM[name][0] for name in ("name", "source", "target")}
    if not draw(st.integers(0, 5)):
        del given[draw(st.sampled_from(sorted(given)))]
    for key in draw(st.lists(st.sampled_from(sorted(KEYS)), max_size=3, unique=True)):
        fit = st.sampled_from(STREAM[key]) if key in STREAM and draw(st.booleans()) else VALUES
        given[draw(misspelled(key))] = draw(fit)
    return "\n".join(f"{key} = {value}" for key, value in given.items())


def require_stream_taken_or_refused(base: Path, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            stream_from_text(text)
        except FlowError as error:
            assert error.where is not None and error.advice and error.exit_code == 2, f"{error}\n{text}"
            assert CANARY not in str(error), f"{error}\n{text}"


@seeded(300)
@given(text=stream_texts())
def test_a_generated_stream_file_is_taken_or_refused(tmp_path: Path, text: str) -> None:
    require_stream_taken_or_refused(tmp_path, text)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@more(20_000)
@given(text=stream_texts())
def test_many_generated_stream_files_are_taken_or_refused(tmp_path: Path, text: str) -> None:
    require_stream_taken_or_refused(tmp_path, text)
