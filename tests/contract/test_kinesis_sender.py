"""Sending to a stream of the emulator ``kinesis-local``: the service itself cannot run here."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from ematix_flow.backends.kinesis.backend import KinesisStreamBackend
from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.errors import ConfigError, RowRejected, TargetFailed
from ematix_flow.spec.connections import KinesisConnection
from tests.contract.test_kinesis_faults import rows
from tests.services.kinesis import KinesisServer
from tests.services.process import free_port


def backend_of(server: KinesisServer, stream: str, **changes: Any) -> KinesisStreamBackend:
    return KinesisStreamBackend(
        KinesisConnection(name="k", **{**server.connection_fields(stream), **changes})
    )


def test_what_is_sent_arrives_by_its_key(kinesis: KinesisServer, kinesis_stream: str) -> None:
    backend = backend_of(kinesis, kinesis_stream)
    target = backend.message_target()
    target.check_destination(kinesis_stream)
    long, odd = b"x" * 300, b"\xff\xfe"
    sent = [(b"1", b"a"), (b"2", "ü".encode()), (b"3", None), (None, b"a"), (b"4", long), (b"5", odd)]
    assert target.sender(kinesis_stream, {}).send([rows(*sent)]) == 6
    found = []
    with closing(backend.stream_source().receiver(ReadRequest(kinesis_stream), {})) as receiver:
        while len(found) < 6:
            found += receiver.poll(100, 1)
    values = {message.value: message.key for message in found}
    assert values.keys() == {b"1", b"2", b"3", b"4", b"5", b""}
    assert (values[b"1"], values[b"2"], values[b""]) == (b"a", "ü".encode(), b"a")
    assert all(len(message.key or b"") <= 256 for message in found)


def test_a_message_that_is_too_large_is_refused_by_its_number(
    kinesis: KinesisServer, kinesis_stream: str
) -> None:
    sender = backend_of(kinesis, kinesis_stream).message_target().sender(kinesis_stream, {})
    whole = 1024 * 1024
    assert sender.send([rows((b"x" * (whole - 1), b"k"))]) == 1
    with pytest.raises(RowRejected, match="message 1 has 1,048,577 bytes"):
        sender.send([rows((b"x", b"k"), (b"x" * whole, b"k"))])


def test_a_missing_stream_is_reported_before_and_while_sending(kinesis: KinesisServer) -> None:
    target = backend_of(kinesis, "nothing-here").message_target()
    with pytest.raises(TargetFailed, match="no Kinesis stream 'nothing-here'") as caught:
        target.check_destination("nothing-here")
    assert "aws kinesis create-stream" in str(caught.value)
    with pytest.raises(TargetFailed, match="send 1 records to stream 'nothing-here'"):
        target.sender("nothing-here", {}).send([rows((b"1", b"k"))])


def test_a_server_that_is_not_there_fails_the_target(
    kinesis: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.backends.kinesis.sender.ATTEMPTS", 2)
    dead = backend_of(kinesis, "any", endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TargetFailed, match="cannot reach Kinesis"):
        dead.message_target().sender("any", {}).send([rows((b"1", b"k"))])


def test_options_that_are_unknown_or_too_long_are_refused(kinesis: KinesisServer) -> None:
    target = backend_of(kinesis, "any").message_target()
    with pytest.raises(ConfigError, match="no option 'prefix'"):
        target.sender("any", {"prefix": "x"})
    with pytest.raises(ConfigError, match="201 characters"):
        target.sender("any", {"partition_key_prefix": "x" * 201})


def test_nothing_is_sent_for_nothing(kinesis: KinesisServer) -> None:
    assert backend_of(kinesis, "nothing-here").message_target().sender("nothing-here", {}).send([]) == 0
