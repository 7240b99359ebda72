"""Changes a table in Postgres, and sends the change events that Debezium's connector would send.

With a Debezium connector on the table this file is not needed: the connector writes the same messages.
Expects two variables: SHOP_URL, as in postgres://user:password@host/database, and KAFKA_BOOTSTRAP
"""

import json
import os

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.rows import dict_row

TOPIC = "example-changes"
servers = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
admin = AdminClient(servers)
for created in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
    created.result(30)
producer = Producer(servers)

POSITION = """
    SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint AS lsn,
           (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ts_ms
"""


def send(shop, op, before=None, after=None):
    source = {"connector": "postgresql", "table": "customers", **shop.execute(POSITION).fetchone()}
    event = {"op": op, "before": before, "after": after, "source": source}
    producer.produce(TOPIC, json.dumps(event).encode())


with psycopg.connect(os.environ["SHOP_URL"], row_factory=dict_row, autocommit=True) as shop:
    shop.execute("CREATE SCHEMA shop")
    shop.execute("CREATE TABLE shop.customers (id bigint PRIMARY KEY, email text, city text)")
    shop.execute("INSERT INTO shop.customers VALUES (1, 'ada@a.org', 'London'), (2, 'bob@b.org', 'Paris')")
    for row in shop.execute("SELECT * FROM shop.customers ORDER BY id").fetchall():
        send(shop, "r", after=row)  # the snapshot
    new = shop.execute("INSERT INTO shop.customers VALUES (3, 'eve@e.org', 'Rome') RETURNING *").fetchone()
    send(shop, "c", after=new)
    new = shop.execute("UPDATE shop.customers SET email = 'ada@new.org' WHERE id = 1 RETURNING *").fetchone()
    send(shop, "u", after=new)
    new = shop.execute("UPDATE shop.customers SET id = 4 WHERE id = 3 RETURNING *").fetchone()
    send(shop, "u", before={"id": 3}, after=new)
    shop.execute("DELETE FROM shop.customers WHERE id = 2")
    send(shop, "d", before={"id": 2})
producer.flush(30)
