"""Connections to the broker of the tests, in every way that it listens, and rows to send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ematix_flow.backends.kafka.backend import KafkaStreamBackend
from ematix_flow.backends.messages.base import outgoing_schema
from ematix_flow.spec.connections.brokers import KafkaConnection
from tests.services.kafka import KEY_PASSWORD, PASSWORD, USER, KafkaServer

WAYS = ("plaintext", "plain", "scram-256", "scram-512", "plain over TLS", "certificate", "locked certificate")


def connection(server: KafkaServer, **fields: Any) -> KafkaConnection:
    """A connection to the plain listener; ``fields`` override its fields."""
    return KafkaConnection(**{"name": "events", "bootstrap_servers": server.bootstrap, **fields})


def secured(server: KafkaServer, way: str, **fields: Any) -> KafkaConnection:
    """The broker by one of the `WAYS`."""
    authority = str(server.certificates.authority)
    plain = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    scram = {"sasl_scram_username": USER, "sasl_scram_password": PASSWORD}
    ours, locked = server.client_certificate, server.locked_certificate
    ways: dict[str, dict[str, Any]] = {
        "plaintext": {"bootstrap_servers": server.address("PLAINTEXT")},
        "plain": {"bootstrap_servers": server.address("SASL_PLAINTEXT"), **plain},
        "scram-256": {
            "bootstrap_servers": server.address("SASL_PLAINTEXT"),
            **scram,
            "sasl_scram_mechanism": "sha-256",
        },
        "scram-512": {
            "bootstrap_servers": server.address("SASL_SSL"),
            **scram,
            "sasl_scram_mechanism": "sha-512",
            "tls_ca_path": authority,
        },
        "plain over TLS": {
            "bootstrap_servers": server.address("SASL_SSL"),
            **plain,
            "tls_ca_path": authority,
        },
        "certificate": {
            "bootstrap_servers": server.address("SSL"),
            "tls_ca_path": authority,
            "tls_cert_path": str(ours.certificate),
            "tls_key_path": str(ours.key),
        },
        "locked certificate": {
            "bootstrap_servers": server.address("SSL"),
            "tls_ca_path": authority,
            "tls_cert_path": str(locked.certificate),
            "tls_key_path": str(locked.key),
            "tls_key_password": KEY_PASSWORD,
        },
    }
    return connection(server, **{**ways[way], **fields})


def backend(server: KafkaServer, **fields: Any) -> KafkaStreamBackend:
    return KafkaStreamBackend(connection(server, **fields))


def outgoing(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    partitions: Sequence[int | None] | None = None,
    headers: Sequence[dict[str, Any] | None] | None = None,
) -> pa.RecordBatch:
    """Messages as a sender takes them."""
    nothing: list[None] = [None] * len(values)
    texts = [json.dumps(each) if each is not None else None for each in headers or nothing]
    columns = [values, keys or nothing, partitions or nothing, texts]
    schema = outgoing_schema()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
