"""Carries actions out in a thread of the server, so that a page alone is enough to run something."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ematix_flow.errors import FlowError
from ematix_flow.schedule.actions.carrier import ActionCarrier

_STOP_SECONDS = 20.0  # for a poll that waits for the store
_log = logging.getLogger(__name__)


class CarrierThread:
    """Polls for actions every ``pause`` seconds, and at once after `wake`.

    The store may be away: the thread tries again. Processes that it started go on when it stops: they record
    their ends themselves.
    """

    def __init__(self, open_carrier: Callable[[], ActionCarrier], pause: float) -> None:
        self._open, self._pause = open_carrier, pause
        self._carrier: ActionCarrier | None = None
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="ematix-flow-carrier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> bool:
        """Start nothing more. Returns whether all that it started has ended."""
        self._stopped.set()
        self._woken.set()
        self._thread.join(_STOP_SECONDS)
        return self._carrier is None or self._carrier.is_idle()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._carrier is None:
                    self._carrier = self._open()
                self._carrier.poll()
                self._is_away = False
            except FlowError as error:
                self._report(error.what)
            except Exception:
                _log.exception("a poll of the actions failed")
            self._woken.wait(self._pause)
            self._woken.clear()
        if self._carrier is not None:
            self._carrier.stop_claiming()

    def _report(self, what: str) -> None:
        if not self._is_away:
            _log.warning("actions wait: %s", what)
        self._is_away = True
