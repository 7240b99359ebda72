"""Python functions in the SQL of a stream: one value a row, one value a group, and their errors."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ematix_flow import Annotated, BigInt, Date, ManagedTable, pk, udf
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.errors import DeclarationError, FlowError, SchemaMismatch
from ematix_flow.spec.connections import ObjectStoreLocalConnection
from tests.sample_functions import Vwap
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, warehouse

pytestmark = pytest.mark.usefixtures("spark")


@udf(args=("Float64", "Float64", "Float64", "Float64", "Float64"), returns="Float64")
def bs_call_delta(strike: pa.Array, spot: pa.Array, vol: pa.Array, rate: pa.Array, expiry: pa.Array) -> Any:
    k, s, v, r, t = (each.to_numpy(zero_copy_only=False) for each in (strike, spot, vol, rate, expiry))
    d1 = (np.log(s / k) + (r + 0.5 * v * v) * t) / (v * np.sqrt(t))
    return pa.array(0.5 * (1.0 + np.vectorize(math.erf)(d1 / np.sqrt(2))), type=pa.float64())


@udf(args=("Int64",), returns="Int64")
def inverse(values: pa.Array) -> pa.Array:
    return pa.array([100 // value for value in values.to_pylist()], pa.int64())


class Changes(ManagedTable):
    id: Annotated[BigInt, pk()]
    at: Date


def test_a_function_of_each_row_is_called_inside_an_aggregate(tmp_path: Path, pg_database: str) -> None:
    query(pg_database, "CREATE TABLE chain (minute timestamptz NOT NULL, strikes_json jsonb NOT NULL)")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.csv").write_text(
        "ts,strike,bid,spot,vol,rate,expiry\n"
        "2026-05-01T10:00:10Z,100,1.25,100,0.2,0.01,1\n"
        "2026-05-01T10:00:50Z,120,0.25,100,0.2,0.01,1\n"
    )
    load(
        stream(
            source=ObjectStoreLocalConnection(name="files", path=str(tmp_path), format="csv"),
            source_query="raw/",
            target=warehouse(pg_database),
            target_table=("public", "chain"),
            transform_sql="""
                SELECT date_trunc('minute', ts) AS minute,
                       array_agg(named_struct('strike', strike, 'bid', bid,
                         'delta', bs_call_delta(strike, spot, vol, rate, expiry))) AS strikes_json
                FROM source GROUP BY 1
            """,
            udfs=[bs_call_delta],
        )
    )
    ((found,),) = query(pg_database, "SELECT strikes_json FROM chain")
    deltas = {each["strike"]: each["delta"] for each in found}
    assert deltas[100] == pytest.approx(0.5596, abs=1e-4)
    assert deltas[120] == pytest.approx(0.2231, abs=1e-4)


def test_an_aggregate_function_stands_next_to_others(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE prices (sym text, vwap float8, quotes bigint, big float8)")
    rows = [("a", 10.0, 1.0), ("a", 20.0, 3.0), ("b", 5.0, None), ("b", None, 2.0)]
    produce(kafka, kafka_topic, [{"sym": s, "price": p, "qty": q} for s, p, q in rows])
    load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            target=warehouse(pg_database),
            target_table=("public", "prices"),
            transform_sql="""
                SELECT sym, vwap(price, qty) AS vwap, count(*) AS quotes,
                       vwap(price, qty) FILTER (WHERE qty > 1) AS big
                FROM source GROUP BY sym HAVING count(*) > 1
            """,
            aggregate_udfs=[Vwap],
        )
    )
    assert query(pg_database, "SELECT * FROM prices ORDER BY sym") == [
        ("a", 17.5, 2, 20.0),
        ("b", 0.0, 2, 0.0),
    ]


def test_a_wrong_call_is_refused_before_anything_is_read(kafka: KafkaServer, kafka_topic: str) -> None:
    def planned(sql: str, **functions: Any) -> None:
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            source_columns=Changes,
            target=kafka_connection(kafka),
            target_topic=kafka_topic,
            transform_sql=sql,
            **functions,
        ).plan()

    with pytest.raises(SchemaMismatch, match="takes 1 argument"):
        planned("SELECT inverse(id, id) AS x FROM source", udfs=[inverse])
    for argument in ("at", "id / 3", "true"):  # a date, a fraction that would be cut off, a boolean
        with pytest.raises(SchemaMismatch, match="DATATYPE_MISMATCH") as raised:
            planned(f"SELECT inverse({argument}) AS x FROM source", udfs=[inverse])
        assert "CAST the argument" in str(raised.value.next_step)
    upper = udf(args=("Utf8",), returns="Utf8", name="upper")(lambda values: values)
    with pytest.raises(DeclarationError, match="Spark has a function 'upper'"):
        planned("SELECT upper('x') AS x FROM source", udfs=[upper])


def test_a_row_that_a_function_fails_on_is_a_dead_letter_with_the_line(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE inverses (x bigint)")
    produce(kafka, kafka_topic, [{"id": n} for n in (1, 2, 0, 4)])
    options: dict[str, Any] = {
        "source": kafka_connection(kafka),
        "source_query": kafka_topic,
        "target": warehouse(pg_database),
        "target_table": ("public", "inverses"),
        "transform_sql": "SELECT inverse(id) AS x FROM source",
        "udfs": [inverse],
    }
    with pytest.raises(FlowError, match=r"the function 'inverse' failed: ZeroDivisionError.*100 // value"):
        load(stream(**options))
    followed = stream(**options, transform_on_error="dlq")
    load(followed)
    assert query(pg_database, "SELECT x FROM inverses ORDER BY x") == [(25,), (50,), (100,)]
    with open_stream_dead_letters(followed.spec, env=os.environ) as letters:
        (letter,) = letters.list("events")
        assert "ZeroDivisionError" in letter.reason
