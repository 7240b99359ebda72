"""Lets people stop and hold a running stream between two batches."""

from __future__ import annotations

from collections.abc import Callable

from ematix_flow.engine.streams.batch_gate import BatchGate
from ematix_flow.errors import RunStopped
from ematix_flow.run.run_control import RunControl

BETWEEN_BATCHES = "between two batches"


class RequestedGate(BatchGate):
    """Closed while the stream is held. ``stop`` ends the stream when somebody asked for that.

    The first batch waits until the requests are known: a stream that was held before is held still.
    """

    def __init__(self, control: RunControl, stop: Callable[[], None]) -> None:
        self._control, self._stop = control, stop

    def pass_through(self, is_ending: Callable[[], bool]) -> None:
        self._control.wait_for_answer(is_ending)
        try:
            self._control.safe_point(BETWEEN_BATCHES, is_ending)
        except RunStopped:
            self._stop()

    def is_closed(self) -> bool:
        if self._control.stop_error is not None:
            self._stop()
        is_held = self._control.is_held
        self._control.rest(BETWEEN_BATCHES if is_held else None)
        return is_held
