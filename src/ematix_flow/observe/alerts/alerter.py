"""What an alerter is, and that none may take long: a message is sent within a few seconds, or not."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.observe.alerts.event import AlertEvent

SEND_SECONDS = 4.0  # for one message, with all that it takes: less than what a process may wait at its end


_unfinished_sends: dict[int, threading.Thread] = {}


class AlertNotSent(FlowError):
    """The receiver did not take the message."""


def require_texts(alerter: str, **given: object) -> None:
    """ConfigError unless each option is text. The value is not shown: it may be a secret."""
    for option, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(
                f"{alerter}({option}=…) takes text, not {type(value).__name__}",
                next_step=f'write {option}="…"',
            )


class Alerter(ABC):
    """Someone to be told. Subclass it and pass it to ``register_alerter`` to tell whomever you like."""

    name = "alerter"  # for messages about it; without secrets

    @abstractmethod
    def send(self, event: AlertEvent) -> None:
        """Tell it, or raise. It has `SEND_SECONDS`; what takes longer is left behind."""


def send_with_timeout(alerter: Alerter, event: AlertEvent, seconds: float = SEND_SECONDS) -> None:
    """Raises AlertNotSent when it is not sent, for whatever reason, at the latest after so many seconds.

    Timeouts of sockets count single reads: a server that sends a byte now and then outlasts them. So the
    sending has a thread of its own, which nobody waits for any longer. While there is one that was left
    behind, the alerter is given nothing more.
    """
    left = _unfinished_sends.get(id(alerter))  # whose thread keeps it, so that no other has its id
    if left is not None and left.is_alive():
        raise AlertNotSent("it still has not taken an earlier message")
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
