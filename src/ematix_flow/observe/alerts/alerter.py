"""What an alerter is, and that none may take long: a message is sent within a few seconds, or not."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from ematix_flow.errors import FlowError
from ematix_flow.observe.alerts.event import AlertEvent

SEND_SECONDS = 4.0  # for one message, with all that it takes: less than what a process may wait at its end


class AlertNotSent(FlowError):
    """The receiver did not take the message."""


class Alerter(ABC):
    """Someone to be told. Subclass it and pass it to ``register_alerter`` to tell whomever you like."""

    name = "alerter"  # for messages about it; without secrets

    @abstractmethod
    def send(self, event: AlertEvent) -> None:
        """Tell it, or raise. It has `SEND_SECONDS`; what takes longer is left behind."""


def send_in_time(alerter: Alerter, event: AlertEvent, seconds: float = SEND_SECONDS) -> None:
    """Raises AlertNotSent when it is not sent, for whatever reason, at the latest after so many seconds.

    Timeouts of sockets count single reads: a server that sends a byte now and then outlasts them. So the
    sending has a thread of its own, which nobody waits for any longer.
    """
    raised: list[BaseException] = []

    def send() -> None:
        try:
            alerter.send(event)
        except BaseException as error:
            raised.append(error)

    _within(send, seconds, alerter.name)
    if raised:
        raise _told(raised[0]) from raised[0]


def _within(work: Callable[[], None], seconds: float, name: str) -> None:
    thread = threading.Thread(target=work, name=f"ematix-flow-send-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise AlertNotSent(f"no answer within {seconds:g} s")


def _told(error: BaseException) -> AlertNotSent:
    if isinstance(error, AlertNotSent):
        return error
    return AlertNotSent(error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}")
