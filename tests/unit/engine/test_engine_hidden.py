"""What Spark hides of its settings and of a source's options."""

from __future__ import annotations

import re

import pytest

from ematix_flow.engine.spark.session_conf import HIDDEN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.ssl.keystore.key", "MIIE"),
        ("kafka.sasl.jaas.config", "software.amazon.msk.auth.iam.IAMLoginModule required;"),
        ("kafka.ssl.key.password", "x"),
        ("any.option", "-----BEGIN PRIVATE KEY-----\nMIIE"),
        ("any.option", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIE"),
        ("any.option", "-----BEGIN RSA PRIVATE KEY-----\nMIIE"),
        ("google.private_key", "MIIE"),
        ("url", "postgres://me:pw@host/db"),
    ],
)
def test_keys_and_logins_are_hidden(name: str, value: str) -> None:
    assert re.search(HIDDEN, name) or re.search(HIDDEN, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.ssl.keystore.type", "PEM"),
        ("kafka.ssl.truststore.certificates", "-----BEGIN CERTIFICATE-----"),
        ("kafka.bootstrap.servers", "localhost:9092"),
        ("subscribe", "orders"),
    ],
)
def test_what_is_no_secret_stays_readable(name: str, value: str) -> None:
    assert not re.search(HIDDEN, name)
    assert not re.search(HIDDEN, value)
