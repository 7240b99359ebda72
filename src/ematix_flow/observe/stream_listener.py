"""The events of running streams for a listener. The default listener ignores them."""

from __future__ import annotations

from collections.abc import Mapping


class StreamListener:
    """Override the events you need.

    Several streams may share one listener; each calls from its own thread.
    """

    def started(self, name: str, plan_text: str) -> None:
        """The plan is made and the stream runs now. Called again after each restart."""

    def batch_committed(
        self,
        name: str,
        number: int,
        rows_read: int,
        rows_written: int,
        seconds: float,
        lag: Mapping[str, int],
        lag_unit: str = "messages",
    ) -> None:
        """A batch is committed. ``lag`` is the backlog of each partition, if it is known.

        It counts messages, or the ``milliseconds`` behind the newest one.
        """

    def lag_changed(self, name: str, lag: Mapping[str, int], lag_unit: str) -> None:
        """The present backlog, although there was no batch. Empty if it is not known."""

    def dead_letters_added(self, name: str, count: int) -> None:
        """This many further messages became dead letters."""

    def messages_left_out(self, name: str, dropped: int, empty: int) -> None:
        """Further messages were not loaded: unreadable ones that the policy drops, and empty ones."""

    def rows_quarantined(self, name: str, count: int) -> None:
        """This many further rows failed an expectation and were set aside."""

    def restarting(self, name: str, error: BaseException, delay: float) -> None:
        """The stream failed and starts again in ``delay`` seconds."""

    def stopped(self, name: str) -> None:
        """The stream ended well. `RunningStream.wait` raises the error of one that failed."""

    def note(self, text: str) -> None:
        """A message about the stream."""
