"""Constraints of a lake table of another program: rows that break one are dead letters, others arrive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Integer, ManagedTable, String, pk
from ematix_flow.backends.iceberg.catalog_settings import catalog_name
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.spec.connections import DeltaLocalConnection, IcebergConnection
from tests.lakes import lake_target
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, stream


class Sold(ManagedTable):
    __tablename__ = "sold"
    id: Annotated[BigInt, pk()]
    whole: Integer | None
    short: String(20) | None


_TABLE = (
    "(id BIGINT NOT NULL, whole INT NOT NULL, short VARCHAR(5), kind STRING DEFAULT 'a', "
    "twice INT GENERATED ALWAYS AS (whole * 2)) USING delta "
    "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
)
_RULES = [
    "ADD CONSTRAINT seven CHECK (whole <> 77)",
    "ADD CONSTRAINT pair CHECK (kind = 'a' OR whole > 10)",  # of a column that the stream does not have
    "ADD CONSTRAINT doubled CHECK (twice < 1000)",  # of one that is generated
]
_GOOD = {"whole": 1, "short": "abc"}
_BAD: list[tuple[dict[str, Any], str]] = [
    ({"whole": 77}, "seven"),
    ({"whole": 600}, "doubled"),
    ({"whole": None}, "whole"),
    ({"short": "abcdef"}, "short"),
]


@pytest.mark.parametrize("mode", ["merge", pytest.param("append", marks=pytest.mark.long)])
def test_a_row_that_breaks_a_rule_of_a_delta_table_is_put_aside_and_all_others_arrive(
    mode: str, kafka: KafkaServer, kafka_topic: str, tmp_path: Path, spark: Any
) -> None:
    table = f"delta.`{tmp_path / 'lake' / 's' / 'sold'}`"
    spark.sql(f"CREATE TABLE {table} {_TABLE}")
    for rule in _RULES:
        spark.sql(f"ALTER TABLE {table} {rule}")
    spark.sql(f"INSERT INTO {table} (id, whole, kind) VALUES (900, 20, 'b'), (901, 20, 'b')")
    sent: list[dict[str, Any]] = []
    words: dict[int, str] = {}  # by the number of the message
    if mode == "merge":
        words[0] = "pair"
        sent = [{"id": 900, **_GOOD, "whole": 5}, {"id": 901, **_GOOD, "whole": 30}, {"id": 2, **_GOOD}]
    else:
        for fields, word in _BAD:
            words[len(sent)] = word
            sent.append({"id": len(sent), **_GOOD, **fields})
            sent.append({"id": len(sent), **_GOOD})
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Sold,
        target=DeltaLocalConnection(name="lake", path=str(tmp_path / "lake")),
        target_table=("s", "sold"),
        mode=mode,
        keys=["id"] if mode == "merge" else None,
        transform_on_error="dlq",
    )
    produce(kafka, kafka_topic, sent)
    result = load(followed)
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        reasons = {int(letter.position or -1): letter.reason for letter in store.list("events", limit=50)}
    assert set(reasons) == set(words)
    assert all(word in reasons[number] for number, word in words.items()), reasons
    assert result.dead_letters == len(words)
    rows = {row["id"]: row for row in spark.read.format("delta").load(table[7:-1]).collect()}
    arrived = {one["id"]: one["whole"] for number, one in enumerate(sent) if number not in words}
    assert {number: row["whole"] for number, row in rows.items()} == {900: 20, 901: 20, **arrived}
    assert all(row["kind"] == ("b" if number >= 900 else "a") for number, row in rows.items())
    assert load(followed).total_rows == 0


@pytest.mark.long
def test_a_null_in_a_required_column_of_an_iceberg_table_is_put_aside_and_all_others_arrive(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, spark: Any
) -> None:
    lake = IcebergConnection(name="lake", catalog_type="hadoop", warehouse=str(tmp_path / "lake"))
    made = lake_target(open_backend(lake), spark).spark()
    table = f"{catalog_name(lake)}.s.sold"
    made.sql(f"CREATE TABLE {table} (id BIGINT, whole INT NOT NULL, short STRING) USING iceberg")
    produce(kafka, kafka_topic, [{"id": n, **_GOOD, **({"whole": None} if n == 2 else {})} for n in range(5)])
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Sold,
        target=lake,
        target_table=("s", "sold"),
        transform_on_error="dlq",
    )
    assert load(followed).dead_letters == 1
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        [letter] = store.list("events", limit=50)
    assert letter.position == "2" and "whole" in letter.reason
    assert sorted(row[0] for row in made.sql(f"SELECT id FROM {table}").collect()) == [0, 1, 3, 4]
