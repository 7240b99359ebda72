"""Makes the two topics and sends four messages about three orders."""

import json
import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
topics = [NewTopic(name, 1, 1) for name in ("example-orders", "example-large-orders")]
admin = AdminClient(servers)
for made in admin.create_topics(topics).values():
    made.result(30)
producer = Producer(servers)
for order_id, customer, amount in ((1, "ada", 7.5), (2, "bob", 24.9), (3, "eve", 39), (1, "ada", 8.5)):
    order = {"order_id": order_id, "customer": customer, "amount": amount}
    producer.produce("example-orders", json.dumps(order).encode(), key=str(order_id).encode())
producer.flush(30)
