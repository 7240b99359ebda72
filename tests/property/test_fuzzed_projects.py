"""Generated declarations, files and command lines: right rows, or an error of ours that helps; nothing else.

Seeded, so that every run tries the same cases; the last test tries others and more.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from ematix_flow.errors import FlowError, ModuleLoadError
from ematix_flow.graph.loading import load_module
from ematix_flow.graph.registry import Registry, use_registry
from tests.property.fuzzed_project import (
    CANARY,
    Called,
    call_flow,
    folder_of_its_own,
    require_a_clear_end,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]


def seeded(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADED_BY", CANARY)


# --- what declarations are made of -----------------------------------------------------------------

ODD = st.sampled_from(
    [
        "",
        " ",
        "ä",
        "select",
        "a b",
        'a"b',
        "a'b",
        "x" * 70,
        "\u202e",
        "a\nb",
        "%s",
        "${LOADED_BY}",
        "0",
        "-",
        "é́",
    ]
)
WORDS = st.sampled_from(
    ["orders", "a", "b", "id", "raw", "shop", "append", "daily", "1h", "UTC", "CEST", "trim"]
)
TEXTS = st.one_of(WORDS, ODD, st.text(max_size=6))
VALUES: st.SearchStrategy[Any] = st.one_of(
    TEXTS,
    st.integers(-3, 10**9),
    st.floats(),
    st.booleans(),
    st.none(),
    st.lists(TEXTS, max_size=2),
    st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(-1, 5)), max_size=2),
)
TYPES = st.sampled_from(
    [
        "BigInt",
        "Text",
        "Text | None",
        "String[5]",
        "String[0]",
        "Numeric[5, 9]",
        "Numeric[10, 2]",
        "Boolean",
        "int",
        "String",
        "Date",
        "TimestampTZ | None",
        "JSON",
        "UUID",
        "'Txet'",
        "BigInt | Text",
        "None",
        "5",
    ]
)
MARKERS = st.sampled_from(
    [
        "pk()",
        "natural_key()",
        "nullable()",
        "trim()",
        "'trim'",
        "lower",
        "parse_int()",
        "default('x')",
        "default(0)",
        "round(2)",
        "to_timezone('CEST')",
        "truncate(-1)",
        "derive('a')",
        "regex_replace('(', '')",
        "42",
        "pk(x=1)",
        "replace('', 'b')",
        "parse_date('%Q')",
        "clamp(5, 1)",
        "filter_where('a > 1')",
        "nullif(1)",
        "pk",
    ]
)
OPTIONS = st.sampled_from(
    [
        "mode",
        "name",
        "keys",
        "column_map",
        "source_table",
        "schedule",
        "timezone",
        "catchup",
        "tags",
        "retry",
        "lag",
        "depends_on",
        "max_shrink",
        "allow_empty",
        "incremental",
        "watermark_column",
        "update_columns",
        "on_drift",
        "compare_columns",
        "handle_deletes",
        "ttl_seconds",
        "ttl",
        "freshness_sla",
        "freshness_column",
        "guarantee",
        "transforms_pre",
        "transforms_post",
        "continue_on_failure_post",
        "force_path",
        "event_timestamp_column",
        "target_connection",
        "source_connection",
        "csv_read_options",
        "target",
        "targets",
        "modus",
        "nmae",
    ]
)
FIT = {
    "mode": ["append", "merge", "truncate", "scd2", "upsert"],
    "keys": [["a"], ["b"], "a", ["c"]],
    "column_map": [{"a": "b"}, {"b": "upper(b)"}, {"c": "a"}],
    "source_table": ["raw", "main.raw", "nothing"],
    "schedule": ["@daily", "0 2 * * *", "61 * * * *", "* *"],
    "timezone": ["Europe/Berlin", "CEST", "Berlin", 1],
    "retry": [{"max_attempts": 1}, {"max_attempts": 0}, {"backoff": "linear"}, {"max_attempts": "x"}],
    "force_path": ["same_db", "cross"],
    "on_drift": ["error", "warn", "evolve", "evolv"],
    "max_shrink": [0, 1, 2, "x", True],
    "transforms_post": [["SELECT 1"], ["SELEC 1"], "SELECT 1", [3]],
    "target_connection": ["shop", "shp", ""],
}
BODIES = st.sampled_from(
    [
        'return "SELECT a, b FROM raw"',
        'return "SELECT a, b FROM raw ORDER BY a"',
        'return "SELECT a FROM raw"',
        'return "SELEC a,\\n  b\\nFROM raw"',
        'return "SELECT a, nothing AS b FROM raw"',
        'return ""',
        "return 5",
        "return None",
        "raise ValueError('no ' + os.environ['LOADED_BY'])",
        "print(os.environ['LOADED_BY']); return 'SELECT a, b FROM raw'",
        "return 'SELECT a, b FROM raw; SELECT 1'",
        "raise SystemExit(3)",
        "return 1 / 0",
        "return open('/nowhere').read()",
        "raise KeyError(os.environ['LOADED_BY'])",
    ]
)
HEAD = """\
import os
from typing import Annotated
from ematix_flow import *
from ematix_flow import ematix
from ematix_flow.normalize import *
from ematix_flow.transforms import filter_where
from ematix_flow.types import *

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.connection
class away:
    url = "postgres://loader:${LOADED_BY}@127.0.0.1:1/db"
"""


@st.composite
def columns(draw: st.DrawFn) -> list[str]:
    found = ["    a: Annotated[BigInt, pk()]", "    b: Text | None"]
    for place in draw(st.lists(st.sampled_from([0, 1, 2]), max_size=2)):
        name = draw(st.sampled_from(["a", "b", "c", "select", "ä", "__tabelname__", "_x"]))
        markers = draw(st.lists(MARKERS, max_size=3))
        kind = draw(TYPES)
        line = f"    {name}: " + (f"Annotated[{', '.join([kind, *markers])}]" if markers else kind)
        found[place:place] = [line if draw(st.integers(0, 5)) else f"    {name} = {kind}"]
    return found


@st.composite
def options(draw: st.DrawFn) -> str:
    chosen: dict[str, Any] = {}
    for name in draw(st.lists(OPTIONS, max_size=3, unique=True)):
        chosen[name] = draw(st.sampled_from(FIT[name]) if name in FIT and draw(st.booleans()) else VALUES)
    given = {"target": "Orders", "target_connection": "'shop'"}
    given.update((name, _shown(value)) for name, value in chosen.items())
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _shown(value: Any) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) else repr(value)


@st.composite
def modules(draw: st.DrawFn) -> str:
    lines = [
        HEAD,
        "class Orders(ManagedTable):",
        *draw(columns()),
        "",
        f"@ematix.pipeline({draw(options())})",
    ]
    lines += [f"def load({draw(st.sampled_from(['', 'conn', 'conn', 'a, b', 'a, b, c', '*, x']))}):"]
    lines += [f"    {draw(BODIES)}"]
    extra = draw(
        st.sampled_from(
            [
                "",
                "",
                "ematix.workflow('nightly', ['load'], schedule='@daily')",
                "ematix.workflow('nightly', ['lod'], schedule='@daily')",
                "ematix.workflow('', ['load'])",
                "@ematix.transform\ndef tidy(conn): pass",
                "@ematix.transform(schedule='@daily')\ndef tidy(conn): pass",
                "print(os.environ['LOADED_BY'])",
                "raise RuntimeError(os.environ['LOADED_BY'])",
                "import nothing_like_it",
                "def (:",
                "ematix.connection(5)",
                "class T(ManagedTable, schema='x'): pass",
                "PostgresConnection(name='x', url='postgres://a:b@[::1/db')",
                "Target(tabel=Orders)",
            ]
        )
    )
    return "\n".join([*lines, extra, ""])


COMMANDS = st.sampled_from(
    [
        ["plan", "load"],
        ["run", "load"],
        ["run", "load"],
        ["validate", "load"],
        ["preview", "load"],
        ["list"],
        ["dry-run", "load"],
        ["run", "--all"],
        ["plan", "--all"],
        ["status"],
        ["transform", "list"],
    ]
)
OUTPUTS = st.sampled_from([["--output", "json"], ["--output", "json"], []])


@seeded(1_400)
@given(module=modules())
def test_a_generated_declaration_is_taken_or_refused(tmp_path: Path, module: str) -> None:
    """Without a command around it, which is most of the time that a case takes."""
    with folder_of_its_own(tmp_path) as folder, use_registry(Registry()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (folder / "project.py").write_text(module, encoding="utf-8", errors="surrogatepass")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                load_module("project.py")
        except FlowError as error:
            assert error.where is not None and error.advice, f"{error}\n{module}"
            assert isinstance(error, ModuleLoadError) or error.exit_code == 2, f"{error}\n{module}"


@seeded(200)
@given(module=modules(), command=COMMANDS, output=OUTPUTS)
def test_a_generated_module_loads_or_is_refused(
    tmp_path: Path, module: str, command: list[str], output: list[str]
) -> None:
    called = call_flow(tmp_path, [*command, "--module", "project.py", *output], {"project.py": module})
    try:
        require_a_clear_end(called)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{module}") from None


# --- rows ------------------------------------------------------------------------------------------

CELLS = st.one_of(
    st.none(),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00"), max_size=8),
)


@seeded(30)
@given(
    rows=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), CELLS), max_size=5, unique_by=lambda row: row[0]
    ),
    mode=st.sampled_from(["append", "merge", "truncate"]),
    names=st.lists(
        st.text(st.characters(whitelist_categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=8),
        min_size=2,
        max_size=2,
        unique_by=str.casefold,
    ),
    twice=st.booleans(),
)
@example(rows=[(1, "x")], mode="merge", names=["valid to", "select"], twice=True)
def test_rows_arrive_as_they_are_under_any_names(
    tmp_path: Path, rows: list[tuple[int, str | None]], mode: str, names: list[str], twice: bool
) -> None:
    first, second = names
    module = f"""{HEAD}
class Copied(ManagedTable):
    one = Column(BigInt, primary_key=True, name={first!r})
    two = Column(Text, name={second!r})

@ematix.pipeline(target=Copied, target_connection="shop", mode={mode!r}, allow_empty=True,
                 column_map={{{first!r}: "a", {second!r}: "b"}}, source_table="raw")
def load():
    pass
"""
    called = call_flow(
        tmp_path, ["run", "load", "--module", "m.py", "--output", "json"], {"m.py": module}, rows, "copied"
    )
    require_a_clear_end(called)
    if called.code == 0:
        assert called.rows is not None
        assert sorted((row[:2] for row in called.rows), key=repr) == sorted(rows, key=repr), called
    else:  # a name that the control columns or the database have already
        assert re.search(r"column|name", called.out), called


# --- files of settings -----------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["project", "engine", "run_log", "connections", "alerts", "log", "metrics", "traces", "conections", "x y"]
)
INNER = st.sampled_from(
    [
        "module",
        "mode",
        "peers",
        "memory",
        "shuffle_partitions",
        "conf",
        "url",
        "keep",
        "urls",
        "format",
        "kind",
        "shop",
        "moduel",
        "purpose",
        "path",
        "password",
    ]
)
TOML_VALUES = st.sampled_from(
    [
        '"project"',
        '"local"',
        '"lokal"',
        "1",
        "true",
        "[]",
        '["spark://x"]',
        '"${LOADED_BY}"',
        '"${NOT_SET}"',
        '"json"',
        '"4g"',
        '"foo://x"',
        '"postgres://a:b@[::1/db"',
        '"${valt:a#b}"',
        "{ a = 1 }",
        "nan",
        "1979-05-27",
        '"',
        '"30d"',
        '"sqlite"',
        '"shop.db"',
        '"a\\u0000b"',
        "= 5",
    ]
)


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    lines = []
    for table in draw(st.lists(KEYS, max_size=2, unique=True)):
        nested = draw(st.booleans()) and table == "connections"
        lines.append(
            f"[{table}.{draw(st.sampled_from(['shop', 'away', 'new']))}]" if nested else f"[{table}]"
        )
        lines += [
            f"{key} = {draw(TOML_VALUES)}"
            for key in draw(st.lists(INNER, max_size=3, unique=draw(st.booleans())))
        ]
    return "\n".join(lines) if draw(st.integers(0, 8)) else draw(st.text(max_size=30))


GOOD = f"""{HEAD}
class Orders(ManagedTable):
    a: Annotated[BigInt, pk()]
    b: Text | None

@ematix.pipeline(target=Orders, target_connection="shop")
def load(conn):
    return "SELECT a, b FROM raw"
"""


@seeded(190)
@given(
    text=toml_texts(),
    command=st.sampled_from(
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
    ),
    output=OUTPUTS,
)
def test_a_generated_settings_file_is_used_or_refused(
    tmp_path: Path, text: str, command: list[str], output: list[str]
) -> None:
    files = {"project.py": GOOD, ".ematix-flow.toml": text}
    module = [] if command[0] in ("connections", "secrets", "runs") else ["--module", "project.py"]
    called = call_flow(tmp_path, [*command, *module, *output], files, [(1, "x")], "orders")
    try:
        if command[0] != "secrets" or called.code == 2:
            require_a_clear_end(called)
        assert CANARY not in called.out + called.err
        _require_no_silence(called, command, text)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text}") from None


def _require_no_silence(called: Called, command: list[str], text: str) -> None:
    if command[:1] == ["run"] and called.code == 0:
        assert called.rows is None or [row[:2] for row in called.rows] == [(1, "x")], called
    if "[conections]" in text and command[0] in ("list", "run", "plan"):
        assert called.code == 2, called


# --- command lines ---------------------------------------------------------------------------------

ARGUMENTS = st.sampled_from(
    [
        "load",
        "lod",
        "--all",
        "--select",
        "tag:x",
        "--exclude",
        "load",
        "--engine",
        "local",
        "lokal",
        "--module",
        ".",
        "project",
        "project.py",
        "nothing.py",
        "..",
        "--output",
        "json",
        "yaml",
        "--debug",
        "--rows",
        "-1",
        "x",
        "--",
        "--max-shrink",
        "2",
        "0.5",
        "--force-path",
        "same_db",
        "--workers",
        "0",
        "--log-format",
        "text",
        "-q",
        "-h",
        "--run-log",
        "foo://x",
        "--dry-run",
        "--plan",
        "",
        " ",
        "\u202e",
        "--with-upstream",
        "--alerter",
        "foo://",
    ]
)


@seeded(190)
@given(
    command=st.sampled_from(
        [
            "run",
            "run",
            "plan",
            "plan",
            "list",
            "status",
            "validate",
            "preview",
            "dry-run",
            "transform",
            "runs",
            "logs",
            "connections",
            "secrets",
            "freshness-check",
            "consume-list",
            "alerts",
            "jars",
            "pln",
            "dlq",
            "maintain",
        ]
    ),
    arguments=st.lists(ARGUMENTS, max_size=4),
)
def test_a_generated_command_line_is_carried_out_or_refused(
    tmp_path: Path, command: str, arguments: list[str]
) -> None:
    settings_file = '[project]\nmodule = "project"\n'
    files = {"project.py": GOOD, ".ematix-flow.toml": settings_file}
    called = call_flow(tmp_path, [command, *arguments], files, [(1, "x")])
    if "--debug" in arguments or "-h" in arguments:
        assert CANARY not in called.out + called.err
        return
    if called.code and "json" not in arguments and "error" in called.err:
        require_a_clear_end(called)
    assert "Traceback (most recent" not in called.out + called.err, called
    assert "this is a defect of flow" not in called.out + called.err, called


@settings(max_examples=20_000, database=None, suppress_health_check=list(HealthCheck))
@given(module=modules(), command=COMMANDS, output=OUTPUTS)
def test_many_more_generated_modules_load_or_are_refused(
    tmp_path: Path, module: str, command: list[str], output: list[str]
) -> None:
    require_a_clear_end(
        call_flow(tmp_path, [*command, "--module", "project.py", *output], {"project.py": module})
    )
