"""Makes the queue and sends two messages."""

import json
import os

import pika

with pika.BlockingConnection(pika.URLParameters(os.environ["RABBITMQ_URL"])) as connection:
    channel = connection.channel()
    channel.queue_declare("example-signups", durable=True)
    for user_id, email in ((1, "ada@a.org"), (2, "bob@b.org")):
        message = json.dumps({"user_id": user_id, "email": email}).encode()
        properties = pika.BasicProperties(message_id=str(user_id), delivery_mode=2)
        channel.basic_publish("", "example-signups", message, properties)
