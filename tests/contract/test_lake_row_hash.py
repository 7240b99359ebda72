"""``row_hash`` in Spark's SQL is the one that is published: every type at its edges, and null."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.row_hash import register_functions
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import row_hash
from ematix_flow.strategies.sql import column
from tests.contract.test_row_hash import VALUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_it_is_the_published_one_of_every_value(spark: SparkSession) -> None:
    dialect = LakeDialect()
    types = {name: data_type for name, (data_type, _) in VALUES.items()}
    longest = max(len(values) for _, values in VALUES.values())
    rows: list[dict[str, Any]] = [
        {name: values[n] if n < len(values) else None for name, (_, values) in VALUES.items()}
        for n in range(longest)
    ]
    rows.append(dict.fromkeys(VALUES))
    register_functions(spark, types.values())
    texts = ", ".join(f"{dialect.quote(n)} {dialect.native_type(t)}" for n, t in types.items())
    frame = spark.createDataFrame([tuple(_given(row[n], types[n]) for n in types) for row in rows], texts)
    frame.createOrReplaceTempView("hashed")
    hashed = dialect.row_hash([(n, t, column(n)) for n, t in types.items()])
    found = [bytes(row[0]) for row in spark.sql(f"SELECT {dialect.render(hashed)} FROM hashed").collect()]
    assert found == [row_hash(row, types) for row in rows]


def _given(value: Any, data_type: DataType) -> Any:
    """As PySpark takes it."""
    if isinstance(value, dt.datetime) and data_type.kind == "timestamp_tz":
        return value.astimezone(dt.timezone.utc)
    if data_type.kind == "numeric" and value is not None:
        return Decimal(value)
    return bytearray(value) if isinstance(value, bytes) else value
