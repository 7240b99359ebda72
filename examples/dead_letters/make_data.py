"""Makes the topic and sends four payments, of which two are bad."""

import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
admin = AdminClient(servers)
for made in admin.create_topics([NewTopic("example-payments", 1, 1)]).values():
    made.result(30)
producer = Producer(servers)
for message in (
    b'{"payment_id": 1, "amount": "10.50"}',
    b"{this is no JSON",
    b'{"payment_id": 2, "amount": "12,50"}',
    b'{"payment_id": 3, "amount": "8"}',
):
    producer.produce("example-payments", message)
producer.flush(30)
