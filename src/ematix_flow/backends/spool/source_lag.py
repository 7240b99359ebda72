"""The lag of a source that is received into a spool: messages at the source and in the spool."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.messages.base import LagUnit, Receiver

_ASK_SECONDS = 5.0


class SourceLag:
    """Asks the source for its lag every few seconds, and counts the messages that came since."""

    def __init__(self) -> None:
        self.unit: LagUnit = "messages"
        self._at_source: Mapping[str, int] = {}
        self._asked_at = 0.0
        self._received = self._received_before = 0  # in all, and before the source was asked

    def count_received(self, messages: int) -> None:
        self._received += messages

    def refresh(self, receiver: Receiver, now: float) -> None:
        """Ask the source again, unless it was asked just now."""
        if now - self._asked_at >= _ASK_SECONDS:
            self._asked_at, self._received_before, self._at_source = now, self._received, receiver.lag()

    def add_milliseconds(self, waited: int) -> Mapping[str, int]:
        """The lag in milliseconds, with the time that the oldest message has waited in the spool."""
        return {place: behind + waited for place, behind in self._at_source.items()}

    def add_messages(self, pending: int) -> Mapping[str, int]:
        """The lag in messages, with those in the spool; empty if their partition is unknown."""
        source_lag, received_since = self._at_source, self._received - self._received_before
        if len(source_lag) > 1 and pending:
            return {}
        return {place: max(0, waiting - received_since) + pending for place, waiting in source_lag.items()}
