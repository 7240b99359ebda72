"""What running streams tell whoever watches them. The default watches nothing."""

from __future__ import annotations

from collections.abc import Mapping


class StreamListener:
    """Override what you want to see. One watch may serve several streams: each calls from its own thread."""

    def started(self, name: str, plan_text: str) -> None:
        """The plan is made and the stream runs from now on. Called again after each restart."""

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
        """A batch is committed. ``lag`` says for each partition how much waits behind it, where known.

        It counts messages, or the ``milliseconds`` behind the newest one.
        """

    def lag_changed(self, name: str, lag: Mapping[str, int], lag_unit: str) -> None:
        """How much waits now, though no batch came. Empty when it is not known."""

    def dead_letters_added(self, name: str, count: int) -> None:
        """So many more messages were put aside."""

    def messages_left_out(self, name: str, dropped: int, empty: int) -> None:
        """So many more were not loaded: unreadable ones that the policy drops, and ones without a payload."""

    def restarting(self, name: str, error: BaseException, delay: float) -> None:
        """It failed, and begins anew in so many seconds."""

    def stopped(self, name: str) -> None:
        """It ended well. The error of one that did not is with whoever waits for it."""

    def note(self, text: str) -> None:
        """Something worth saying."""
