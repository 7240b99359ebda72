"""Sends the orders and payments of one of two days' parts, and makes their topics before."""

import json
import os
import sys

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS = {
    "first": [(1, "10:00:00", 24.9), (2, "10:01:00", 7.5)],
    "second": [(3, "10:30:00", 39.0)],
}
PAYMENTS = {
    "first": [(9, "09:59:00", "card")],
    "second": [(1, "10:05:00", "card"), (2, "10:20:00", "cash"), (3, "10:30:30", "card")],
}

servers = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
part = sys.argv[1]
if part == "first":
    topics = [NewTopic(name, 1, 1) for name in ("example-sold", "example-paid")]
    admin = AdminClient(servers)
    for made in admin.create_topics(topics).values():
        made.result(30)
producer = Producer(servers)
for order_id, time, amount in ORDERS[part]:
    order = {"order_id": order_id, "at": f"2026-05-01T{time}Z", "amount": amount}
    producer.produce("example-sold", json.dumps(order).encode())
for order_id, time, method in PAYMENTS[part]:
    payment = {"order": order_id, "at": f"2026-05-01T{time}Z", "method": method}
    producer.produce("example-paid", json.dumps(payment).encode())
producer.flush(30)
