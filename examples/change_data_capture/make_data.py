"""Sends the change events of a small table, in the form of Debezium's connector for Postgres."""

import json
import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "example-changes"
servers = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
admin = AdminClient(servers)
for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
    made.result(30)


def change(op, lsn, before=None, after=None):
    source = {"connector": "postgresql", "table": "customers", "lsn": lsn, "ts_ms": 1_700_000_000_000}
    return {"op": op, "before": before, "after": after, "source": source}


changes = [
    change("r", 100, after={"id": 1, "email": "ada@a.org", "city": "London"}),
    change("r", 100, after={"id": 2, "email": "bob@b.org", "city": "Paris"}),
    change("c", 200, after={"id": 3, "email": "eve@e.org", "city": "Rome"}),
    change("u", 300, after={"id": 1, "email": "ada@new.org", "city": "London"}),
    change("u", 400, before={"id": 3}, after={"id": 4, "email": "eve@e.org", "city": "Rome"}),
    change("d", 500, before={"id": 2}),
    change("r", 100, after={"id": 2, "email": "bob@b.org", "city": "Paris"}),  # sent again: it is too old
]
producer = Producer(servers)
for event in changes:
    producer.produce(TOPIC, json.dumps(event).encode())
producer.flush(30)
