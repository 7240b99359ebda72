"""The samples of the documents for SQL over a stream, run unchanged against real servers.

A sample starts a stream that would run until it is stopped; here it loads what is there and ends.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ematix_flow
from ematix_flow import Annotated, BigInt, ManagedTable, Text, pk
from ematix_flow.spec.connections import ObjectStoreS3Connection
from tests.e2e.test_documents import documents
from tests.services.kafka import KafkaServer
from tests.services.s3 import S3Server
from tests.stream_runs import kafka_connection, produce, query, warehouse

__all__ = ["documents"]
pytestmark = pytest.mark.usefixtures("spark")

OPTIONS = (
    "ts,underlying,days_to_expiry,strike,bid,ask,spot,vol,rate,expiry\n"
    "2026-05-01T10:00:10Z,SPXW,0,100,1.25,1.30,100,0.2,0.01,1\n"
    "2026-05-01T10:00:50Z,SPXW,0,120,0.25,0.30,100,0.2,0.01,1\n"
    "2026-05-01T10:00:55Z,SPXW,7,140,0.05,0.10,100,0.2,0.01,1\n"
)
SNAPSHOTS = (
    "CREATE SCHEMA marketdata; CREATE TABLE marketdata.option_chain_snapshots "
    "(minute timestamptz NOT NULL, strikes_json jsonb NOT NULL)"
)


def sample_of(documents: Path, stream_name: str) -> str:
    text = (documents / "seed-001-readme-v0.3.md").read_text()
    (sample,) = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f'"{stream_name}"' in block
    ]
    return sample


def run_sample(
    documents: Path, stream_name: str, names: dict[str, Any], patch: pytest.MonkeyPatch, **options: Any
) -> None:
    """Run the sample that starts this stream, with these names defined and these options added."""
    sample = sample_of(documents, stream_name)
    run_streaming_pipeline = ematix_flow.run_streaming_pipeline

    def run_bounded(**declared: Any) -> None:
        run_streaming_pipeline(**{**declared, **options}, once=True)

    known = {"run_streaming_pipeline": run_bounded, "Lookup": ematix_flow.Lookup}
    with patch.context() as patched:
        patched.setattr(ematix_flow, "run_streaming_pipeline", run_bounded, raising=False)
        exec(compile(sample, f"{stream_name}.py", "exec"), {**known, **names})


@pytest.fixture
def options_in_s3(s3: S3Server, s3_bucket: str) -> ObjectStoreS3Connection:
    s3.client().put_object(Bucket=s3_bucket, Key="raw/options/a.csv", Body=OPTIONS.encode())
    fields: dict[str, Any] = s3.connection_fields(s3_bucket)
    return ObjectStoreS3Connection(name="s3", format="csv", **fields)


def test_the_sample_of_a_lookup_runs(
    documents: Path, kafka: KafkaServer, kafka_topic: str, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(pg_database, "CREATE TABLE dim_users (user_id bigint, tier text)")
    query(pg_database, "INSERT INTO dim_users VALUES (1, 'gold')")
    produce(kafka, kafka_topic, [{"user_id": 1}, {"user_id": 2}])
    names = {"kafka_prod": kafka_connection(kafka), "warehouse": warehouse(pg_database)}
    run_sample(documents, "events-clean", names, monkeypatch, source_query=kafka_topic)
    assert query(pg_database, "SELECT user_id, tier FROM events_clean ORDER BY 1") == [(1, "gold"), (2, None)]


def test_the_samples_of_a_pivot_into_json_and_of_a_function_run(
    documents: Path,
    options_in_s3: ObjectStoreS3Connection,
    pg_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query(pg_database, SNAPSHOTS)
    names = {"s3": options_in_s3, "warehouse": warehouse(pg_database)}
    run_sample(documents, "option-chain-snapshots", names, monkeypatch)
    found = query(pg_database, "SELECT minute::text, strikes_json FROM marketdata.option_chain_snapshots")
    assert [minute[:19] for minute, _ in found] == ["2026-05-01 10:00:00"]
    assert sorted(found[0][1], key=lambda each: each["strike"]) == [
        {"strike": 100, "bid": 1.25, "ask": 1.3},
        {"strike": 120, "bid": 0.25, "ask": 0.3},
    ]
    query(pg_database, "TRUNCATE marketdata.option_chain_snapshots")
    run_sample(documents, "option-chain-with-greeks", names, monkeypatch)
    ((strikes,),) = query(pg_database, "SELECT strikes_json FROM marketdata.option_chain_snapshots")
    deltas = {each["strike"]: round(each["delta"], 4) for each in strikes}
    assert deltas == {100: 0.5596, 120: 0.2231, 140: 0.0627}


def test_the_sample_of_an_aggregate_function_runs(
    documents: Path, kafka: KafkaServer, kafka_topic: str, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(pg_database, "CREATE SCHEMA marketdata")
    quotes = [("10:00:01", 10.0, 1.0), ("10:00:59", 20.0, 3.0), ("10:01:00", 5.0, 0.0)]
    produce(kafka, kafka_topic, [{"ts": f"2026-05-01T{t}Z", "price": p, "qty": q} for t, p, q in quotes])
    names = {"kafka_quotes": kafka_connection(kafka), "warehouse": warehouse(pg_database)}
    run_sample(documents, "vwap-per-minute", names, monkeypatch, source_query=kafka_topic)
    assert query(pg_database, "SELECT vwap FROM marketdata.vwap_per_minute ORDER BY minute") == [
        (17.5,),
        (None,),
    ]


def test_the_samples_of_windows_and_sessions_run(
    documents: Path, kafka: KafkaServer, kafka_topic: str, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = 1_780_000_000_000  # milliseconds since 1970
    for second, page in ((0, "home"), (100, "shop"), (900, "home")):
        produce(kafka, kafka_topic, [{"user_id": 7, "page": page}], timestamp=start + second * 1000)
    names: dict[str, Any] = {"kafka_prod": kafka_connection(kafka), "warehouse": warehouse(pg_database)}
    names |= {name: getattr(ematix_flow, name) for name in ("Window", "Aggregation")}
    run_sample(documents, "events-per-min", names, monkeypatch, source_query=kafka_topic)
    assert query(pg_database, "SELECT user_id, n FROM events_per_min") == [(7, 1)] * 3
    store = ematix_flow.StateStore(kind="postgres", url=pg_database)
    run_sample(documents, "user-sessions", names, monkeypatch, source_query=kafka_topic, state_store=store)
    assert query(
        pg_database, "SELECT user_id, events, entry_page, exit_page FROM user_sessions ORDER BY window_start"
    ) == [(7, 2, "home", "shop"), (7, 1, "home", "home")]


def test_the_sample_of_a_join_runs(
    documents: Path, kafka: KafkaServer, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, payments = (kafka.create_topic(name=name) for name in ("orders", "payments"))
    try:
        produce(kafka, orders, [{"order_id": 1, "amount": 5.5}, {"order_id": 2, "amount": 7.0}])
        produce(kafka, payments, [{"order_id": 1, "method": "card"}, {"order_id": 3, "method": "cash"}])
        names: dict[str, Any] = {"kafka_prod": kafka_connection(kafka), "warehouse": warehouse(pg_database)}
        store = ematix_flow.StateStore(kind="postgres", url=pg_database)
        names["StateStore"] = ematix_flow.StateStore
        run_sample(documents, "orders-payments", names, monkeypatch, state_store=store)
    finally:
        kafka.drop_topic(orders)
        kafka.drop_topic(payments)
    found = query(pg_database, "SELECT left_order_id, left_amount, right_method FROM orders_with_payments")
    assert found == [(1, 5.5, "card")]


class CustomerMirror(ManagedTable):
    id: Annotated[BigInt, pk()]
    email: Text


def test_the_sample_of_change_events_runs(documents: Path, kafka: KafkaServer, pg_database: str) -> None:
    def change(op: str, lsn: int, before: Any, after: Any) -> dict[str, Any]:
        source = {"connector": "postgresql", "lsn": lsn, "ts_ms": 1_700_000_000_000}
        return {"op": op, "before": before, "after": after, "source": source}

    topic = kafka.create_topic(name="dbserver1.public.customers")
    names: dict[str, Any] = {"kafka_prod": kafka_connection(kafka), "warehouse": warehouse(pg_database)}
    names |= {"ematix": ematix_flow.ematix, "customer_mirror": CustomerMirror}
    try:
        produce(kafka, topic, [change("c", 1, None, {"id": n, "email": "a"}) for n in (1, 2)])
        produce(
            kafka, topic, [change("u", 2, None, {"id": 1, "email": "b"}), change("d", 3, {"id": 2}, None)]
        )
        exec(compile(sample_of(documents, "mirror_customers"), "sample.py", "exec"), names)
        names["mirror_customers"].run(once=True)
    finally:
        kafka.drop_topic(topic)
    assert query(pg_database, "SELECT id, email FROM customer_mirror") == [(1, "b")]
