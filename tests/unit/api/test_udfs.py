"""``@udf`` and ``@udaf``: what they take, what they refuse, and what a function must return."""

from __future__ import annotations

import datetime as dt
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ematix_flow import apply_udaf_to_batch, apply_udf_to_batch, udaf, udf
from ematix_flow.api.stream_toml import stream_from_text, stream_from_toml
from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.api.streaming import stream_spec
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.engine.planning.sql_functions import rewrite_calls
from ematix_flow.errors import DeclarationError, DuplicateName, LoadError, ModuleLoadError, SchemaMismatch
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.connections import KafkaConnection, PostgresConnection
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.udf_types import parse_udf_type
from tests.sample_functions import Vwap


@udf(args=("Float64", "Float64"), returns="Float64")
def add(a: pa.Array, b: pa.Array) -> pa.Array:
    """Adds."""
    return pc.add(a, b)


PLACES = """
[source]
kind = "kafka"
bootstrap_servers = "h:1"
[target]
kind = "sqlite"
path = "x.db"
table = "t"
"""


def declare(**options: Any) -> StreamSpec:
    return stream_spec(
        None,
        name="s",
        source=KafkaConnection(name="k", bootstrap_servers="h:1"),
        source_query="t",
        target=PostgresConnection(name="w", url="postgres://h/d"),
        target_table=("public", "t"),
        **{"transform_sql": "SELECT add(a, b) AS c FROM source", **options},
    )


@pytest.mark.parametrize(
    ("name", "in_sql", "arrow"),
    [
        ("Int8", "tinyint", pa.int8()),
        ("int64", "bigint", pa.int64()),
        ("UInt8", "smallint", pa.uint8()),
        ("UInt64", "decimal(20,0)", pa.uint64()),
        ("Float32", "float", pa.float32()),
        ("FLOAT64", "double", pa.float64()),
        ("Boolean", "boolean", pa.bool_()),
        ("bool", "boolean", pa.bool_()),
        ("Utf8", "string", pa.string()),
        ("Binary", "binary", pa.binary()),
        ("Date32", "date", pa.date32()),
        ("Timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
        ("TimestampNtz", "timestamp_ntz", pa.timestamp("us")),
        ("Decimal(18, 4)", "decimal(18,4)", pa.decimal128(18, 4)),
        ("Decimal128(38,0)", "decimal(38,0)", pa.decimal128(38, 0)),
        ("List(Utf8)", "array<string>", pa.list_(pa.string())),
        ("list(List(UInt8))", "array<array<smallint>>", pa.list_(pa.list_(pa.uint8()))),
    ],
)
def test_a_type_has_a_form_in_spark_and_in_arrow(name: str, in_sql: str, arrow: pa.DataType) -> None:
    found = parse_udf_type(name)
    assert (found.spark, found.arrow()) == (in_sql, arrow)
    assert parse_udf_type(str(found)) == found


@pytest.mark.parametrize("name", ["Float46", "Decimal(39, 2)", "Decimal(2, 3)", "List()", "", "Struct(a)"])
def test_an_unknown_type_is_refused_at_its_line(name: str) -> None:
    with pytest.raises(DeclarationError, match="returns=: ") as caught:
        udf(args=("Int64",), returns=name)
    assert caught.value.where is not None and caught.value.where.file == __file__


def test_a_misspelled_type_gets_a_suggestion() -> None:
    with pytest.raises(DeclarationError, match=r"unknown type .Flaot64.\. Did you mean .Float64."):
        udf(args=("Flaot64",), returns="Int64")


@pytest.mark.parametrize("args", ["Float64", (), None, 3])
def test_arguments_are_a_list_of_types(args: Any) -> None:
    with pytest.raises(DeclarationError, match="args= lists at least one type"):
        udf(args=args, returns="Int64")


def test_a_handle_is_still_called_like_what_it_decorates() -> None:
    assert add(pa.array([1.0]), pa.array([2.0])).to_pylist() == [3.0]
    assert (add.name, add.__doc__, Vwap.name) == ("add", "Adds.", "vwap")
    assert Vwap().den == 0.0


def test_an_accumulator_without_a_method_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"'Half' has no method merge_batch\(\)"):

        @udaf(args=("Int64",), state=("Int64",), returns="Int64")
        class Half:
            def update_batch(self, values: pa.Array) -> None: ...


@pytest.mark.parametrize("name", ["two words", "1st", "", "a;b", 'a"b'])
def test_a_name_that_sql_cannot_call_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="letters, digits and underscores"):
        udf(args=("Int64",), returns="Int64", name=name)(lambda values: values)


@pytest.mark.parametrize("name", ["values", "USING", "cast"])
def test_a_word_of_sql_is_refused_as_a_name(name: str) -> None:
    with pytest.raises(DeclarationError, match="is a word of SQL"):
        udf(args=("Int64",), returns="Int64", name=name)(lambda values: values)


def batch(**columns: list[Any] | pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_functions_are_applied_to_a_batch() -> None:
    found = apply_udf_to_batch(add, batch(a=[1, 2, None], b=[0.5, 1.5, 2.0]), ["a", "b"])
    assert found.to_pydict()["result"] == [1.5, 3.5, None]
    total = apply_udaf_to_batch(Vwap, batch(p=[10.0, 20.0], q=[1.0, 3.0]), ["p", "q"], output_column="v")
    assert total.to_pydict() == {"v": [17.5]}
    assert apply_udaf_to_batch(
        Vwap, batch(p=[], q=[]).cast(pa.schema({"p": pa.float64(), "q": pa.float64()})), ["p", "q"]
    ).to_pydict() == {"result": [None]}


def test_a_function_is_not_called_without_rows() -> None:
    @udf(args=("Int64",), returns="Utf8")
    def fails(values: pa.Array) -> pa.Array:
        raise ValueError("cannot call `vectorize` on size 0 inputs")

    empty = apply_udf_to_batch(fails, batch(a=pa.array([], pa.int64())), ["a"]).column("result")
    assert (len(empty), empty.type) == (0, pa.string())


def test_what_a_function_returns_is_converted_to_the_declared_type() -> None:
    @udf(args=("Int64",), returns="Decimal(10, 2)")
    def price(values: pa.Array) -> pa.ChunkedArray:
        return pa.chunked_array([pa.array([Decimal("1.5")] * len(values))])

    found = apply_udf_to_batch(price, batch(a=[1, 2]), ["a"]).column("result")
    assert found.type == pa.decimal128(10, 2) and found.to_pylist() == [Decimal("1.50")] * 2


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ([1, 2], "must return a pyarrow Array, and it returned list"),
        (pa.array([1]), "must return 2 values, one for each row, and it returned 1"),
        (pa.array(["x", "y"]), "declares returns='Int64', and it returned string"),
    ],
)
def test_a_wrong_result_is_an_error_that_names_the_function(result: Any, reason: str) -> None:
    @udf(args=("Int64",), returns="Int64", name="odd")
    def wrong(values: pa.Array) -> Any:
        return result

    with pytest.raises(LoadError, match=f"the function 'odd' {reason}"):
        apply_udf_to_batch(wrong, batch(a=[1, 2]), ["a"])


def test_an_error_in_user_code_names_its_line() -> None:
    @udf(args=("Int64",), returns="Int64")
    def fails(values: pa.Array) -> pa.Array:
        return pa.array([1 // value.as_py() for value in values])

    with pytest.raises(LoadError) as caught:
        apply_udf_to_batch(fails, batch(a=[1, 0]), ["a"])
    assert "the function 'fails' failed: ZeroDivisionError" in caught.value.what
    assert f"at {__file__}:" in caught.value.what and "1 // value.as_py()" in caught.value.what


def test_columns_that_a_batch_lacks_are_refused() -> None:
    with pytest.raises(DeclarationError, match="no column 'c'"):
        apply_udf_to_batch(add, batch(a=[1], b=[1]), ["a", "c"])
    with pytest.raises(DeclarationError, match="takes 2 arguments, not 1"):
        apply_udf_to_batch(add, batch(a=[1]), ["a"])


def test_two_functions_of_one_name_are_refused() -> None:
    other = udf(args=("Int64",), returns="Int64", name="ADD")(lambda values: values)
    with pytest.raises(DuplicateName, match="two functions are called 'ADD'"):
        declare(udfs=[add, other])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"udfs": add}, r"udfs= takes a list of functions"),
        ({"udfs": [Vwap]}, "udfs= takes what @udf declares"),
        ({"aggregate_udfs": [add]}, "aggregate_udfs= takes what @udaf declares"),
        ({"udfs": [len]}, "udfs= takes what @udf declares"),
        ({"udfs": [add], "transform_sql": None}, "udfs= works with transform_sql=, which is not set"),
    ],
)
def test_wrong_functions_of_a_stream_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason):
        declare(**options)


def test_the_functions_of_a_stream_are_in_its_json_and_toml() -> None:
    spec = declare(udfs=[add], aggregate_udfs=[Vwap])
    assert spec.functions == (add, Vwap)
    assert StreamSpec.from_json(spec.to_json()) == spec
    text = stream_to_toml(spec)
    assert f'udfs = ["{__name__}:add"]' in text and 'aggregate_udfs = ["tests.sample_functions:Vwap"]' in text


def test_a_plan_shows_the_functions() -> None:
    plan = StreamPlan(declare(udfs=[add]), None, "found in the first messages", (PayloadSpec("json"),))
    assert "  function  add(Float64, Float64) -> Float64" in str(plan).splitlines()
    assert plan.to_json()["functions"] == ["add(Float64, Float64) -> Float64"]


def test_a_toml_file_names_functions_by_module() -> None:
    text = """
pipeline_name = "s"
source_query = "t"
"""
    text += (
        PLACES
        + """[transform]
sql = "SELECT trimmed(a) AS a FROM source"
udfs = ["REFERENCE"]
"""
    )
    for reference, reason in (
        ("nowhere_at_all:trimmed", "there is no module 'nowhere_at_all'"),
        ("os:getcwd", "is not a function that @udf or @udaf declares"),
        ("trimmed", "a function is given as module:name"),
    ):
        with pytest.raises(DeclarationError, match=reason) as caught:
            stream_from_text(text.replace("REFERENCE", reference))
        assert caught.value.where is not None


def test_a_toml_file_lists_functions_at_its_top_or_in_its_transform() -> None:
    listed = f'udfs = ["{__name__}:add"]'
    top, transform = (
        f'pipeline_name = "s"\nsource_query = "t"\n{listed}\n',
        "[transform]\nsql = 'SELECT 1 AS a'\n",
    )
    assert stream_from_text(top + PLACES + transform).functions == (add,)
    with pytest.raises(DeclarationError, match="udfs is given twice") as caught:
        stream_from_text(top + PLACES + transform + listed)
    assert caught.value.where is not None


@pytest.mark.parametrize("here", [True, False])
def test_functions_are_next_to_the_toml_file_or_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    folder = tmp_path / "settings"
    folder.mkdir()
    module = f"functions_of_a_file_{here}"
    declared = "from ematix_flow import udf\n@udf(args=['Int64'], returns='Int64')\ndef same(a): return a\n"
    ((tmp_path if here else folder) / f"{module}.py").write_text(declared)
    (folder / f"broken_{here}.py").write_text("import math\nmath.sqrt(-1)\n")
    text = 'pipeline_name = "s"\nsource_query = "t"\ntransform_sql = "SELECT 1 AS a"\n'
    text += f'udfs = ["{module}:same"]\n'
    file = folder / "pipeline.toml"
    file.write_text(text + PLACES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    assert [function.name for function in stream_from_toml(file).functions] == ["same"]
    file.write_text(text.replace(module, f"broken_{here}") + PLACES)
    with pytest.raises(ModuleLoadError, match="math domain error") as caught:
        stream_from_toml(file)
    assert str(caught.value.where).endswith(f"broken_{here}.py:2")


def test_an_argument_that_the_declared_type_cannot_hold_is_named() -> None:
    with pytest.raises(LoadError, match="argument 1 of the function 'small' is declared as UInt8"):
        apply_udf_to_batch(
            udf(args=("UInt8",), returns="UInt8", name="small")(lambda a: a), batch(a=[-1]), ["a"]
        )


def test_a_decimal_result_becomes_the_nearest_float() -> None:
    half = udf(args=("Decimal(27, 11)",), returns="Float64", name="same")(lambda a: a)
    assert apply_udf_to_batch(half, batch(a=[Decimal("0.1")]), ["a"]).to_pydict()["result"] == [0.1]


def collected(*arguments: str, collect: str = "collect_list") -> str:
    fields = ", ".join(f"'a{place}', CAST({text} AS double)" for place, text in enumerate(arguments))
    return f"{collect}(named_struct({fields}))"


@pytest.mark.parametrize(
    ("sql", "rewritten"),
    [
        ("SELECT vwap(p, q) FROM s", f"SELECT R({collected('p', 'q')}) FROM s"),
        ("SELECT VWAP (f(p, 1), (q)) v;", f"SELECT R({collected('f(p, 1)', '(q)')}) v;"),
        ("SELECT vwap(DISTINCT p, q)", f"SELECT R({collected('p', 'q', collect='collect_set')})"),
        (
            "SELECT vwap(p, q) FILTER (WHERE (p) > 0) x, vwap(a[0, 1], 1)",
            f"SELECT R({collected('p', 'q')} FILTER (WHERE (p) > 0)) x, R({collected('a[0, 1]', '1')})",
        ),
        (
            "SELECT vwap(p, q) OVER (PARTITION BY k)",
            f"SELECT R({collected('p', 'q')} OVER (PARTITION BY k))",
        ),
        (
            "SELECT vwap(add(p, 1), q), add(1, add(2, 3))",
            f"SELECT R({collected('A(CAST(p AS double), CAST(1 AS double))', 'q')}), "
            "A(CAST(1 AS double), CAST(A(CAST(2 AS double), CAST(3 AS double)) AS double))",
        ),
        (
            "SELECT vwap, 'vwap(p, q)', t.vwap(1) -- vwap(p)",
            "SELECT vwap, 'vwap(p, q)', t.vwap(1) -- vwap(p)",
        ),
        (
            "WITH vwap (a, b) AS (SELECT 1, 2) SELECT * FROM vwap AS add(c, d)",
            "WITH vwap (a, b) AS (SELECT 1, 2) SELECT * FROM vwap AS add(c, d)",
        ),
        ("SELECT half(a + 1)", "SELECT H(CAST((a + 1) | 0 AS bigint))"),
    ],
)
def test_calls_are_rewritten_in_place(sql: str, rewritten: str) -> None:
    half = udf(args=("Int64",), returns="Int64", name="half")(lambda values: values)
    found = re.sub(r"_ematix_udf_half_\d+", "H", rewrite_calls(sql, [Vwap, add, half]))
    found = re.sub(r"_ematix_udf_vwap_\d+", "R", found)
    assert re.sub(r"_ematix_udf_add_\d+", "A", found) == rewritten


@pytest.mark.parametrize("call", ["add(1)", "add()", "add(1, 2, 3)", "vwap(1)"])
def test_a_wrong_number_of_arguments_is_refused(call: str) -> None:
    with pytest.raises(SchemaMismatch, match="takes 2 arguments, and the SQL gives"):
        rewrite_calls(f"SELECT {call} FROM source", [Vwap, add])


def test_dates_and_times_arrive_as_such() -> None:
    @udf(args=("Timestamp", "Date"), returns="Boolean")
    def same_day(times: pa.Array, days: pa.Array) -> pa.Array:
        return pc.equal(times.cast(pa.date32()), days)

    noon = dt.datetime(2026, 5, 1, 12, tzinfo=dt.timezone.utc)
    found = apply_udf_to_batch(same_day, batch(t=[noon], d=[noon.date()]), ["t", "d"])
    assert found.to_pydict()["result"] == [True]
