"""Connections to RabbitMQ, and the error of each way in which one fails."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator

import pytest

from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.rabbitmq.address import address_of
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import CannotConnect, ConfigError, DeclarationError, SourceMissing, Unsupported
from ematix_flow.spec.connections.brokers import RabbitMQConnection
from tests.contract.rabbitmq_setup import backend
from tests.services.process import free_port
from tests.services.rabbitmq import RabbitMQServer


def test_check_names_product_and_version(rabbitmq: RabbitMQServer) -> None:
    opened = open_backend(RabbitMQConnection(name="broker", amqp_url=rabbitmq.url()))
    assert opened.check().startswith("RabbitMQ 3.")
    assert rabbitmq.password not in opened.check() + repr(opened.connection)


def test_two_ways_to_one_virtual_host_are_the_same_place(rabbitmq: RabbitMQServer) -> None:
    here = backend(rabbitmq)
    there = backend(rabbitmq, amqp_url=rabbitmq.url().replace("127.0.0.1", "localhost"))
    assert here.identity() == there.identity()


def test_a_wrong_password_is_reported_without_it(rabbitmq: RabbitMQServer) -> None:
    with pytest.raises(CannotConnect, match="refuses the user 'flow' or its password") as refused:
        backend(rabbitmq, amqp_url=rabbitmq.url(password="hunter2-hunter2")).check()
    assert "hunter2" not in str(refused.value)


def test_a_virtual_host_that_is_not_there_is_reported(rabbitmq: RabbitMQServer) -> None:
    with pytest.raises(CannotConnect, match="has no virtual host 'nowhere'") as refused:
        backend(rabbitmq, amqp_url=rabbitmq.url("nowhere")).check()
    assert "add_vhost" in str(refused.value.next_step)


def test_a_port_where_nobody_listens_is_reported(rabbitmq: RabbitMQServer) -> None:
    with pytest.raises(CannotConnect, match="nothing listens at amqp://127"):
        backend(rabbitmq, amqp_url=f"amqp://u:p@127.0.0.1:{free_port()}").check()


def test_a_host_that_is_not_known_is_reported(rabbitmq: RabbitMQServer) -> None:
    with pytest.raises(CannotConnect, match=r"host of amqp://nowhere.invalid:5672/ is not known"):
        backend(rabbitmq, amqp_url="amqp://u:p@nowhere.invalid").check()


@pytest.fixture
def stranger() -> Iterator[int]:
    """A server that speaks something else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_server_that_speaks_something_else_is_reported(stranger: int) -> None:
    connection = RabbitMQConnection(name="broker", amqp_url=f"amqp://u:p@127.0.0.1:{stranger}")
    with pytest.raises(CannotConnect):
        open_backend(connection).check()


def test_tls_is_checked_against_the_authority(rabbitmq: RabbitMQServer) -> None:
    assert rabbitmq.certificates is not None
    authority = str(rabbitmq.certificates.authority)
    trusted = backend(rabbitmq, amqp_url=rabbitmq.secure_url(), tls_ca_path=authority)
    assert "amqps://localhost" in trusted.check()
    with pytest.raises(CannotConnect, match=r"certificate .* is not trusted"):
        backend(rabbitmq, amqp_url=rabbitmq.secure_url()).check()
    unverified = backend(rabbitmq, amqp_url=rabbitmq.secure_url(), tls_verify=False)
    assert unverified.check().startswith("RabbitMQ")


def test_a_certificate_for_another_host_is_refused(rabbitmq: RabbitMQServer) -> None:
    assert rabbitmq.certificates is not None
    url = rabbitmq.secure_url("127.0.0.2")
    with pytest.raises(CannotConnect):
        backend(rabbitmq, amqp_url=url, tls_ca_path=str(rabbitmq.certificates.authority)).check()


def test_tls_to_a_plain_port_is_reported(rabbitmq: RabbitMQServer) -> None:
    url = rabbitmq.url().replace("amqp://", "amqps://")
    with pytest.raises(CannotConnect, match=r"TLS with RabbitMQ at amqps://127|not answer|RabbitMQ at amqps"):
        backend(rabbitmq, amqp_url=url).check()


def test_plain_to_a_port_with_tls_is_reported(rabbitmq: RabbitMQServer) -> None:
    url = rabbitmq.secure_url().replace("amqps://", "amqp://")
    with pytest.raises(CannotConnect, match=r"only over TLS|RabbitMQ at"):
        backend(rabbitmq, amqp_url=url).check()


def test_a_queue_that_is_not_there_is_reported_with_the_command_that_declares_it(
    rabbitmq: RabbitMQServer, rabbitmq_queue: str
) -> None:
    source = backend(rabbitmq).stream_source()
    source.check(ReadRequest(rabbitmq_queue))
    with pytest.raises(SourceMissing, match="there is no queue 'nothing'") as refused:
        source.check(ReadRequest("nothing"))
    assert "declare queue name=nothing" in str(refused.value.next_step)
    with pytest.raises(SourceMissing, match="there is no queue 'nothing'"):
        source.receiver(ReadRequest("nothing"), {})


def test_a_queue_has_no_other_end_to_begin_at(rabbitmq: RabbitMQServer, rabbitmq_queue: str) -> None:
    with pytest.raises(Unsupported, match="read from its head"):
        backend(rabbitmq).stream_source().check(ReadRequest(rabbitmq_queue, starting="latest"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefech": "1"}, "no option 'prefech'.*Did you mean 'prefetch'"),
        ({"prefetch": "0"}, "1 or more"),
        ({"prefetch": "70000"}, "at most 65535"),
        ({"prefetch": "many"}, "whole number"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, str], words: str) -> None:
    connection = RabbitMQConnection(name="broker", amqp_url="amqp://u:p@127.0.0.1:1")
    source = open_backend(connection).stream_source()
    assert source is not None
    with pytest.raises(DeclarationError, match=words):
        source.check(ReadRequest("queue", options=options))


@pytest.mark.parametrize(
    ("url", "host", "port", "vhost", "user"),
    [
        ("amqp://", "localhost", 5672, "/", "guest"),
        ("amqp://host", "host", 5672, "/", "guest"),
        ("amqps://a%40b:p%2Fw@host:99/%2f", "host", 99, "/", "a@b"),
        ("amqps://u:p@host/v%2F1", "host", 5671, "v/1", "u"),
        ("amqp://u:p@[::1]:1/x?heartbeat=5", "::1", 1, "x", "u"),
        ("amqp://u:p@host/", "host", 5672, "/", "u"),
    ],
)
def test_a_url_is_read_as_the_uri_specification_says(
    url: str, host: str, port: int, vhost: str, user: str
) -> None:
    address = address_of(RabbitMQConnection(name="broker", amqp_url=url))
    assert (address.host, address.port, address.vhost, address.user) == (host, port, vhost, user)
    assert "p/w" not in repr(address)
    assert pickle.loads(pickle.dumps(address)).password == address.password


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"amqp_url": "amqp://u:p@host:port/"}, "port"),
        ({"amqp_url": "amqp://u:p@host:99999/"}, "port"),
        ({"amqp_url": "amqp://u:p@host/a/b"}, "slash"),
        ({"amqp_url": "amqp://u:p@host", "tls_ca_path": "x"}, "amqps://"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        address_of(RabbitMQConnection(name="broker", **fields))


def test_tls_files_that_are_not_there_are_reported(rabbitmq: RabbitMQServer) -> None:
    with pytest.raises(ConfigError, match="TLS files of connection 'broker'"):
        backend(rabbitmq, amqp_url=rabbitmq.secure_url(), tls_ca_path="/no/such/file").check()
