"""Generated modules: tables, pipelines, streams, and calls of every public name, right and wrong."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from hypothesis import strategies as st

from ematix_flow.api.stream_declaration import StreamOptions
from tests.property.fuzzed_values import TEXTS, VALUES, misspelled

HEAD = """\
import datetime as dt
import os
from decimal import Decimal
from typing import Annotated
import ematix_flow
from ematix_flow import *
from ematix_flow import alerters, ematix, normalize, transforms
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
ORDERS = """
class Orders(ManagedTable):
    a: Annotated[BigInt, pk()]
    b: Text | None
"""
GOOD = f"""{HEAD}{ORDERS}
@ematix.pipeline(target=Orders, target_connection="shop")
def load(conn):
    return "SELECT a, b FROM raw"
"""

# --- calls -----------------------------------------------------------------------------------------

# these open, run or look up something, and declare nothing
_NOT_DECLARED = {
    "run_pipeline",
    "run_streaming_pipeline",
    "connect",
    "check_connection",
    "clear_registry",
    "clear_alerters",
    "resolve",
    "resolve_with_origin",
    "get_connection",
    "registered_connections",
    "active_alerters",
    "Annotated",
    "get_streaming_pipeline",
    "list_streaming_pipelines",
    "Pipeline",
    "StreamingPipeline",
    "KafkaToKafkaEosPipeline",
    "ManagedTable",
    "Connection",
    "ColumnType",
    "Alerter",
    "AlertEvent",
    "AlertNotSent",
    "Normalizer",
    "render_streaming_pipeline_toml",
    "register_streaming_pipeline",
    "streaming_pipeline",
    "redact",
}


def _public_calls() -> dict[str, Any]:
    """Everything that a module can call to declare something, by the expression that names it."""
    found: dict[str, Any] = {}
    for shown, module in (
        ("ematix_flow", "ematix_flow"),
        ("ematix_flow.connections", "ematix_flow.connections"),
        ("ematix_flow.streaming", "ematix_flow.streaming"),
        ("normalize", "ematix_flow.normalize"),
        ("transforms", "ematix_flow.transforms"),
        ("alerters", "ematix_flow.alerters"),
    ):
        loaded = import_module(module)
        for name in loaded.__all__:
            value = getattr(loaded, name)
            if callable(value) and name not in _NOT_DECLARED:
                found[f"{shown}.{name}"] = value
    decorators = import_module("ematix_flow").ematix
    for name in dir(decorators):
        if not name.startswith("_") and callable(getattr(decorators, name)):
            found[f"ematix.{name}"] = getattr(decorators, name)
    return found


CALLS = _public_calls()


def _parameters(called: Any, *, required: bool = False) -> list[str]:
    if hasattr(called, "field_names"):  # a connection
        return ["name"] if required else list(called.field_names())
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = [each for each in inspect.signature(called).parameters.values() if each.kind not in kinds]
    return [each.name for each in found if not required or each.default is each.empty]


@st.composite
def calls(draw: st.DrawFn) -> str:
    """A call of a public name with some of its options, some misspelled, with any values."""
    path = draw(st.sampled_from(sorted(CALLS)))
    holder, _, name = path.rpartition(".")
    arguments = draw(st.lists(VALUES, max_size=draw(st.sampled_from([0, 0, 0, 0, 1, 2]))))
    known = _parameters(CALLS[path]) or ["x"]
    count = draw(st.sampled_from([0, 1, 2, 2, 4]))
    options = draw(st.lists(st.sampled_from(known), max_size=count, unique=True))
    if not arguments and draw(st.sampled_from([True, True, True, False])):
        options += [name for name in _parameters(CALLS[path], required=True) if name not in options]
    given = {
        draw(misspelled(option)): draw(
            st.sampled_from(FIT[option]) if option in FIT and draw(st.booleans()) else VALUES
        )
        for option in options
    }
    text = ", ".join([*arguments, *(f"{option}={value}" for option, value in given.items())])
    decorated = ""
    if path in ("ematix.pipeline", "ematix.streaming_pipeline") and not arguments:
        decorated = f"({draw(VALUES)})"
    return f"{holder}.{draw(misspelled(name))}({text}){decorated}"


# --- tables ----------------------------------------------------------------------------------------

TYPES = st.sampled_from(
    [
        "BigInt",
        "Text",
        "Text | None",
        "String[5]",
        *["Text | None", "Double", "Integer | None", "Numeric[12, 2]", "Timestamp"] * 3,
        "String[0]",
        "String[10**9]",
        "String['5']",
        "Numeric[5, 9]",
        "Numeric[10, 2]",
        "Numeric[10]",
        "Numeric",
        "Boolean",
        "int",
        "str | None",
        "String",
        "Date",
        "TimestampTZ | None",
        "JSON",
        "UUID",
        "'Txet'",
        "'Text'",
        "BigInt | Text",
        "list[Text]",
        "Annotated[Text, trim()]",
        "None",
        "5",
        "Txet",
        "Text()",
        "BigInt(5)",
    ]
)
MARKERS = st.one_of(
    st.sampled_from(["nullable()", "trim()", "empty_to_null()", "truncate(3)", "upper()"]),
    st.sampled_from(
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
            "pk(1)",
            "replace('', 'b')",
            "replace('b')",
            "parse_date('%Q')",
            "clamp(5, 1)",
            "filter_where('a > 1')",
            "nullif(1)",
            "pk",
            "shop",
        ]
    ),
    calls(),
)
CLASS_OPTIONS = st.sampled_from(
    [
        "__tablename__",
        "__tabelname__",
        "__schema__",
        "__merge_keys__",
        "__unique_constraints__",
        "__indexes__",
        "__target_connection__",
        "_x",
        "x",
        "name",
        "columns",
    ]
)


@st.composite
def columns(draw: st.DrawFn) -> list[str]:
    found = ["    a: Annotated[BigInt, pk()]", "    b: Text | None"]
    for place in draw(st.sampled_from([[], [2], [1], [0, 2]])):
        name = draw(st.sampled_from(["c", "d", "a", "b", "select", "ä", "A", "_loaded_at", "_x"]))
        markers = draw(st.lists(MARKERS, max_size=2))
        kind = draw(TYPES)
        line = f"    {name}: " + (f"Annotated[{', '.join([kind, *markers])}]" if markers else kind)
        if not draw(st.integers(0, 5)):
            line = f"    {name} = {draw(st.sampled_from([kind, f'Column({kind}, name={draw(TEXTS)!r})']))}"
        found[place:place] = [line]
    if draw(st.integers(0, 5)) == 5:
        found.append(f"    {draw(CLASS_OPTIONS)} = {draw(VALUES)}")
    return found


# --- pipelines -------------------------------------------------------------------------------------

FIT = {
    "mode": ["'append'", "'merge'", "'truncate'", "'scd2'", "'upsert'"],
    "keys": ["['a']", "['b']", "'a'", "['c']"],
    "column_map": ["{'a': 'b'}", "{'b': 'upper(b)'}", "{'c': 'a'}"],
    "source_table": ["'raw'", "'main.raw'", "'nothing'"],
    "schedule": ["'@daily'", "'0 2 * * *'", "'61 * * * *'", "'* *'"],
    "timezone": ["'Europe/Berlin'", "'CEST'", "'Berlin'", "1"],
    "retry": ["{'max_attempts': 1}", "{'max_attempts': 0}", "{'backoff': 'linear'}", "{'max_attempts': 'x'}"],
    "force_path": ["'same_db'", "'cross'"],
    "on_drift": ["'error'", "'warn'", "'evolve'", "'evolv'"],
    "max_shrink": ["0", "1", "2", "'x'", "True"],
    "transforms_post": ["['SELECT 1']", "['SELEC 1']", "'SELECT 1'", "[3]"],
    "target_connection": ["'shop'", "'shp'", "''", "'away'"],
    "name": ["'x'", "'nightly load'", "'ä'"],
    "update_columns": ["['b']", "['a']", "[]"],
    "compare_columns": ["['b']", "['c']"],
    "handle_deletes": ["'soft'", "'hard'"],
    "ttl_seconds": ["60", "0.5"],
    "ttl": ["dt.timedelta(hours=1)"],
    "lag": ["dt.timedelta(hours=1)", "'1h'", "5"],
    "freshness_sla": ["'1h'", "3600"],
    "freshness_column": ["'a'"],
    "target": ["Orders", "None"],
    "old": ["'x'"],
    "new": ["'y'"],
    "n": ["3", "0"],
    "path": ["'x.db'", "'/tmp'"],
    "format": ["'csv'", "'%Y-%m-%d'", "'parquet'"],
    "expr": ["'a + 1'", "'a >'"],
    "precision": ["'day'", "10", "2"],
    "scale": ["2"],
    "tz": ["'Europe/Berlin'", "'CEST'"],
    "continue_on_failure": ["True", "False"],
    "continue_on_target_failure": ["True", "False"],
    "guarantee": ["'exactly_once'", "'at_least_once'"],
    "csv_read_options": ["{'delimiter': ';'}", "{'delimitr': ';'}", "{'delimiter': ''}"],
    "json_read_options": ["{}", "{'x': 1}"],
    "depends_on": ["[]", "['load']", "['other']"],
    "tags": ["['nightly']", "'nightly'"],
    "incremental": ["True", "False"],
    "watermark_column": ["'a'", "'b'"],
    "incremental_column": ["'a'"],
    "allow_empty": ["True", "False"],
    "catchup": ["'last'", "'all'", "'none'"],
    "event_timestamp_column": ["'a'"],
    "source_connection": ["'shop'", "shop"],
    "description": ["'x'"],
    "transform_sql": ["'SELECT * FROM source'", "'SELEC'"],
    "url": ["'postgres://u:p@127.0.0.1:1/db'", "'https://127.0.0.1:1/x'", "'stdout://'", "'foo://x'"],
    "type": ["BigInt", "Text"],
    "target_table": ["('public', 'x')", "Orders", "'x'"],
    "targets": ["[Target(table=Orders)]", "[ematix.target(Orders)]", "[Orders]", "Orders"],
}
OPTIONS = [*_parameters(CALLS["ematix.pipeline"]), "modus", "nmae", "taget"]
BODIES = st.sampled_from(
    [
        'return "SELECT a, b FROM raw"',
        'return "SELECT a, b FROM raw ORDER BY a"',
        'return "SELECT a FROM raw"',
        'return "SELEC a,\\n  b\\nFROM raw"',
        'return "SELECT a, nothing AS b FROM raw"',
        'return "SELECT a, b FROM nothing"',
        'return ""',
        "return 5",
        "return None",
        "raise ValueError('no ' + os.environ['LOADED_BY'])",
        "print(os.environ['LOADED_BY']); return 'SELECT a, b FROM raw'",
        "return 'SELECT a, b FROM raw; SELECT 1'",
        "return os.environ['LOADED_BY']",
        "raise SystemExit(3)",
        "return 1 / 0",
        "return open('/nowhere').read()",
        "raise KeyError(os.environ['LOADED_BY'])",
        "return conn.nothing",
    ]
)
EXTRAS = st.sampled_from(
    [
        *[""] * 12,
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
        "from ematix_flow import Piplines",
        "from ematix_flow.normalize import trimm",
    ]
)


@st.composite
def options(draw: st.DrawFn, names: list[str]) -> dict[str, str]:
    """Some of these, most of the time with a value that may be right."""
    count = draw(st.sampled_from([0, 1, 1, 2, 3]))
    chosen = draw(st.lists(st.sampled_from(names), min_size=count, max_size=count, unique=True))
    return {
        name: draw(st.sampled_from(FIT[name]) if name in FIT and draw(st.integers(0, 3)) else VALUES)
        for name in chosen
    }


@st.composite
def modules(draw: st.DrawFn) -> str:
    given = {"target": "Orders", "target_connection": "'shop'", **draw(options(OPTIONS))}
    if "targets" in given and draw(st.integers(0, 9)):
        del given["target"], given["target_connection"]
    listed = ", ".join(f"{name}={value}" for name, value in given.items())
    lines = [HEAD, "class Orders(ManagedTable):", *draw(columns()), "", f"@ematix.pipeline({listed})"]
    lines += [f"def load({draw(st.sampled_from(['', 'conn', 'conn', 'conn', 'a, b', 'a, b, c', '*, x']))}):"]
    lines += [f"    {draw(BODIES)}", draw(EXTRAS), ""]
    return "\n".join(lines)


# --- streams ---------------------------------------------------------------------------------------

STREAM_OPTIONS = [*_parameters(StreamOptions), "sorce", "window", "once"]


@st.composite
def streams(draw: st.DrawFn) -> str:
    given = {
        "source": "events",
        "source_query": "'orders'",
        "target": "Orders",
        "target_connection": "'shop'",
        **draw(options(STREAM_OPTIONS)),
    }
    listed = ", ".join(f"{name}={value}" for name, value in given.items())
    signature = draw(st.sampled_from(["", "frame", "a, b, c"]))
    connection = "events = KafkaConnection(name='events', bootstrap_servers='127.0.0.1:1')"
    lines = [f"{HEAD}{ORDERS}", connection, f"@ematix.streaming_pipeline({listed})"]
    lines += [
        f"def follow({signature}):",
        f"    {draw(st.sampled_from(['pass', 'return frame', '...']))}",
        "",
    ]
    return "\n".join(lines)
