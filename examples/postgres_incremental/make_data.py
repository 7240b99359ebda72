"""A table of events in the source database: two that are an hour old, and one of now."""

import os

import psycopg

with psycopg.connect(os.environ["SOURCE_URL"]) as source:
    source.execute("CREATE TABLE events (event_id bigint, kind text, payload jsonb, received_at timestamptz)")
    source.execute(
        "INSERT INTO events VALUES (1, 'click', '{}', now() - interval '1 hour'),"
        " (2, 'heartbeat', NULL, now() - interval '1 hour'), (3, 'click', NULL, now())"
    )
