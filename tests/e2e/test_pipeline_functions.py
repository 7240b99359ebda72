"""Python functions in the SQL of a batch pipeline: called where Spark runs the SQL, refused elsewhere."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ematix_flow import Annotated, BigInt, Double, ManagedTable, Pipeline, Text, ematix, pk, udf
from ematix_flow.errors import FlowError, SchemaMismatch, Unsupported
from ematix_flow.spec.connections import ObjectStoreLocalConnection, SQLiteConnection
from ematix_flow.spec.pipelines import PipelineSpec
from tests.sample_functions import Vwap

pytestmark = pytest.mark.usefixtures("spark")


class Prices(ManagedTable):
    symbol: Annotated[Text, pk()]
    vwap: Double
    marked: BigInt


def marking(factor: int) -> Any:
    """A function with the same name as every other one that this returns."""

    @udf(args=("Int64",), returns="Int64", name="mark")
    def mark(values: pa.Array) -> pa.Array:
        if pc.any(pc.equal(values, 13)).as_py():
            raise ValueError("no 13")
        return pc.multiply(values, factor)

    return mark


def prices(folder: Path, sql: str, source: Any = None, **options: Any) -> Pipeline:
    files = ObjectStoreLocalConnection(name="files", path=str(folder), format="csv")
    shop = SQLiteConnection(name="shop", path=str(folder / "shop.db"))

    @ematix.pipeline(
        target=Prices, target_connection=shop, source_connection=source or files, mode="truncate", **options
    )
    def load() -> str:
        return sql

    return load


def write_quotes(folder: Path, *quotes: str) -> None:
    (folder / "quotes").mkdir(exist_ok=True)
    (folder / "quotes" / "a.csv").write_text("\n".join(["symbol,price,qty,n", *quotes, ""]))


SQL = "SELECT symbol, vwap(price, qty) AS vwap, mark(max(n)) AS marked FROM quotes GROUP BY symbol"


def test_functions_are_called_in_the_sql_over_files(tmp_path: Path) -> None:
    write_quotes(tmp_path, "cup,10.0,1.0,2", "cup,20.0,3.0,5", "pot,8.0,2.0,1")
    for factor in (10, 100):  # in one Spark session, another function of the same name
        declared = prices(tmp_path, SQL, udfs=[marking(factor)], aggregate_udfs=[Vwap])
        assert "function  vwap(Float64, Float64) -> Float64" in str(declared.plan())
        assert sorted(declared.preview(2).rows) == [("cup", 17.5, 5 * factor), ("pot", 8.0, factor)]
        declared.sync()
        with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
            found = shop.execute("SELECT symbol, vwap, marked FROM prices ORDER BY 1").fetchall()
        assert found == [("cup", 17.5, 5 * factor), ("pot", 8.0, factor)]


def test_an_error_of_a_function_names_its_line_and_loads_nothing(tmp_path: Path) -> None:
    write_quotes(tmp_path, "cup,10.0,1.0,13")
    declared = prices(tmp_path, SQL, udfs=[marking(1)], aggregate_udfs=[Vwap])
    with pytest.raises(
        FlowError, match=r"'mark' failed: ValueError: no 13, at .*test_pipeline_functions.py:\d+"
    ):
        declared.sync()
    with pytest.raises(SchemaMismatch, match="takes 1 argument, and the SQL gives 2"):
        prices(tmp_path, "SELECT mark(n, n) AS marked FROM quotes", udfs=[marking(1)]).plan()


def test_sql_that_a_database_runs_cannot_call_functions(tmp_path: Path) -> None:
    shop = SQLiteConnection(name="shop", path=str(tmp_path / "shop.db"))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE quotes (symbol TEXT, price REAL, qty REAL, n INTEGER)")
    declared = prices(tmp_path, SQL, source=shop, udfs=[marking(1)], aggregate_udfs=[Vwap])
    with pytest.raises(Unsupported, match=r"runs in a database of kind sqlite.* 'mark'") as raised:
        declared.sync()
    assert raised.value.where is not None and raised.value.where.file == __file__


def test_a_declared_pipeline_with_functions_comes_back_from_json(tmp_path: Path) -> None:
    spec = prices(tmp_path, SQL, aggregate_udfs=[Vwap]).spec
    assert PipelineSpec.from_json(spec.to_json()).functions == (Vwap,)
