"""The contract of an alerter: a message is sent within a few seconds, or not at all."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.observe.alerts.event import AlertEvent

SEND_SECONDS = 4.0  # for one message; less than a process waits at its end


_unfinished_sends: dict[int, threading.Thread] = {}


class AlertNotSent(FlowError):
    """The receiver did not accept the message."""


def require_texts(alerter: str, **given: object) -> None:
    """Raise ConfigError unless each option is text. The value is not shown: it may be a secret."""
    for option, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(
                f"{alerter}({option}=…) takes text, not {type(value).__name__}",
                next_step=f'write {option}="…"',
            )


class Alerter(ABC):
    """A receiver of alerts. Subclass it and pass it to ``register_alerter`` to send alerts anywhere."""

    name = "alerter"  # for messages about it; without secrets

    @abstractmethod
    def send(self, event: AlertEvent) -> None:
        """Send the alert, or raise an error. After `SEND_SECONDS` it is abandoned."""


def send_with_timeout(alerter: Alerter, event: AlertEvent, seconds: float = SEND_SECONDS) -> None:
    """Send an alert; raises AlertNotSent if that fails, at the latest after ``seconds``.

    Socket timeouts apply to single reads: a server that sends a byte now and then outlasts them. So its own
    thread sends the alert and is abandoned after the timeout. While an abandoned thread is still alive, the
    alerter gets no further alerts.
    """
    left = _unfinished_sends.get(id(alerter))  # the thread keeps the alerter alive, so its id stays unique
    if left is not None and left.is_alive():
        raise AlertNotSent("it has not accepted an earlier message yet")
    raised: list[BaseException] = []

    def send() -> None:
        try:
            alerter.send(event)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=send, name=f"ematix-flow-send-{alerter.name}", daemon=True)
    thread.start()
    thread.join(seconds)
    _unfinished_sends.pop(id(alerter), None)
    if thread.is_alive():
        _unfinished_sends[id(alerter)] = thread
        raise AlertNotSent(f"no answer within {seconds:g} s")
    if raised:
        raise _as_alert_not_sent(raised[0]) from raised[0]


def _as_alert_not_sent(error: BaseException) -> AlertNotSent:
    if isinstance(error, AlertNotSent):
        return error
    return AlertNotSent(error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}")
