"""Errors of RabbitMQ's driver as clear errors."""

from __future__ import annotations

import socket

import pytest

from ematix_flow.backends.rabbitmq.failures import cannot_connect


@pytest.mark.parametrize("raised", [socket.gaierror(-2, "unknown"), ConnectionRefusedError(111, "refused")])
def test_the_field_to_fix_is_named_by_both_its_names(raised: OSError) -> None:
    error = cannot_connect(raised, "broker", "host:5672", "/", "guest")
    assert error.next_step is not None and "url / amqp_url" in error.next_step
