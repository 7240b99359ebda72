"""Every assertion on a frame of Spark against the oracle, over random tables, in two zones of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ematix_probe import source
from ematix_probe.sources.base import Source, Subject
from tests.property.probe_engines import SPARK, TABLE, Engine, check_case
from tests.property.probe_stores import arrow_table, tables_of
from tests.property.probe_tables import Case, random_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

NEVER = ("İ",)  # Spark takes a column of this name for another one
_TYPES = {
    "numeric": "decimal",
    "text": "string",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "bytes": "binary",
}


def into_spark(session: SparkSession, case: Case, engine: Engine) -> Source:
    frames = {}
    for table, types, rows in tables_of(case, engine):
        kinds = {name: _TYPES.get(kind.partition("(")[0], kind) for name, kind in types.items()}
        kinds |= {name: kind.replace("numeric", "decimal") for name, kind in types.items() if "(" in kind}
        schema = ", ".join(f"{engine.quote(name)} {kind}" for name, kind in kinds.items())
        frames[table] = session.createDataFrame(arrow_table(types, rows), schema)
    frames["parents"].createOrReplaceTempView("parents")
    return source.frame(frames[TABLE], name=TABLE)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 300), marks=pytest.mark.long)], ids=["some", "many"]
)
def test_a_frame_of_spark_agrees_with_the_oracle(spark: SparkSession, seeds: range, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for seed in seeds:
            case = random_case(f"{zone} {seed}", never=NEVER)
            check_case(case, SPARK, into_spark(spark, case, SPARK), Subject(TABLE))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
        spark.catalog.dropTempView("parents")
