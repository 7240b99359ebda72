"""Connections to every listener of Kafka, and the errors if one fails."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from ematix_flow.backends.kafka.backend import KafkaStreamBackend
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.spec.connections.brokers import KafkaConnection
from tests.contract.kafka_setup import WAYS, backend, connection, secured
from tests.services.kafka import PASSWORD, USER, KafkaServer


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_reaches_the_broker_by_every_way_it_listens(kafka: KafkaServer, way: str) -> None:
    said = open_backend(secured(kafka, way)).check()
    assert kafka.cluster_id in said
    assert "1 broker" in said


@pytest.mark.parametrize("way", ["plain", "scram-256", "scram-512", "plain over TLS"])
def test_a_wrong_password_is_reported_and_never_shown(kafka: KafkaServer, way: str) -> None:
    field = "sasl_scram_password" if "scram" in way else "sasl_plain_password"
    with pytest.raises(CannotConnect, match=f"refuses user '{USER}'") as failure:
        KafkaStreamBackend(secured(kafka, way, **{field: "not-the-secret"})).check()
    assert "password" in str(failure.value.next_step)
    assert "not-the-secret" not in str(failure.value)


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(kafka: KafkaServer) -> None:
    with pytest.raises(CannotConnect, match="cannot trust the certificate") as failure:
        KafkaStreamBackend(
            secured(kafka, "plain over TLS", tls_ca_path="", security_protocol="sasl_ssl")
        ).check()
    assert "tls_ca_path" in str(failure.value.next_step)


def test_a_certificate_is_taken_unseen_when_that_is_asked_for(kafka: KafkaServer) -> None:
    open_way = secured(kafka, "plain over TLS", tls_ca_path="", tls_verify=False)
    assert kafka.cluster_id in KafkaStreamBackend(open_way).check()


def test_a_broker_that_wants_a_client_certificate_says_so(kafka: KafkaServer) -> None:
    with pytest.raises(CannotConnect, match="requires a client certificate") as failure:
        KafkaStreamBackend(secured(kafka, "certificate", tls_cert_path="", tls_key_path="")).check()
    assert "tls_cert_path" in str(failure.value.next_step)


def test_a_port_at_which_nothing_listens_is_refused(kafka: KafkaServer) -> None:
    with pytest.raises(CannotConnect, match="nothing listens at localhost:1"):
        backend(kafka, bootstrap_servers="localhost:1").check()


def test_an_unknown_host_is_reported(kafka: KafkaServer) -> None:
    with pytest.raises(CannotConnect, match=r"no host of connection 'events' is known \(no\.such\.host"):
        backend(kafka, bootstrap_servers="no.such.host.invalid:9092").check()


def test_one_server_of_several_is_enough(kafka: KafkaServer) -> None:
    servers = f"localhost:1,{kafka.bootstrap}"
    assert kafka.cluster_id in backend(kafka, bootstrap_servers=servers).check()


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SSL", "SASL_SSL"])
def test_a_listener_that_wants_more_than_the_connection_gives_is_reported(
    kafka: KafkaServer, listener: str
) -> None:
    with pytest.raises(CannotConnect) as failure:
        backend(kafka, bootstrap_servers=kafka.address(listener)).check()
    assert "security_protocol" in str(failure.value.next_step)


def test_tls_against_a_plain_listener_is_reported(kafka: KafkaServer) -> None:
    with pytest.raises(CannotConnect, match="does not accept TLS"):
        backend(kafka, security_protocol="ssl").check()


def test_a_login_at_a_listener_without_one_is_reported(kafka: KafkaServer) -> None:
    with pytest.raises(CannotConnect, match="does not support this login"):
        backend(kafka, sasl_plain_username=USER, sasl_plain_password=PASSWORD).check()


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        given = KafkaConnection(name="deaf", bootstrap_servers=address)
        found = KafkaStreamBackend(given)
        found.cluster._seconds = 2
        with pytest.raises(CannotConnect, match=re.escape(address)):
            found.check()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tls_ca_path": "/no/such.pem"}, "tls_ca_path of connection 'events' is /no/such.pem"),
        ({"properties": {"no.such.setting": "1"}}, "the property 'no.such.setting'"),
        ({"properties": {"batch.size": "big"}}, "batch.size"),
    ],
)
def test_wrong_settings_are_reported_before_anything_is_tried(
    kafka: KafkaServer, fields: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        backend(kafka, **fields).check()


def test_a_wrong_password_of_a_key_is_reported(kafka: KafkaServer) -> None:
    with pytest.raises(ConfigError, match="tls_key_path") as failure:
        KafkaStreamBackend(secured(kafka, "locked certificate", tls_key_password="wrong")).check()
    assert "tls_key_password" in str(failure.value.next_step)


def test_a_file_that_is_no_certificate_is_reported(kafka: KafkaServer, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    with pytest.raises(ConfigError, match="tls_ca_path"):
        KafkaStreamBackend(secured(kafka, "plain over TLS", tls_ca_path=str(wrong))).check()


def test_a_property_for_one_client_alone_does_not_disturb_the_other(kafka: KafkaServer) -> None:
    given = {"java.max.poll.records": "7", "librdkafka.queued.min.messages": "10", "fetch.max.wait.ms": "50"}
    assert kafka.cluster_id in backend(kafka, properties=given).check()


def test_two_connections_to_one_cluster_are_the_same_by_every_way(kafka: KafkaServer) -> None:
    assert {KafkaStreamBackend(secured(kafka, way)).identity() for way in WAYS} == {
        f"kafka:{kafka.cluster_id}"
    }


def test_a_client_is_used_from_several_threads(kafka: KafkaServer) -> None:
    found = backend(kafka)
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.append(found.check())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(said) == 4


def test_a_connection_of_another_kind_is_refused(kafka: KafkaServer) -> None:
    assert connection(kafka).kind == "kafka"
    from ematix_flow.spec.connections.brokers import PubSubConnection

    with pytest.raises(ConfigError, match="not kafka"):
        KafkaStreamBackend(PubSubConnection(name="other", project_id="p"))
