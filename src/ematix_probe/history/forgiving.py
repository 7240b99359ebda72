"""A history for sets of probes: when a run cannot be recorded, its results stay, and the error is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ematix_probe.errors import ProbeError
from ematix_probe.history.given import prepare_history

if TYPE_CHECKING:
    from ematix_probe.history.store import RunHistory
    from ematix_probe.report import RunReport


class ForgivingHistory:
    """Takes the place of a `RunHistory` in ``run(history=…)``."""

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self.errors: list[tuple[str, ProbeError]] = []  # probe and error
        self.run_ids: dict[str, int] = {}

    @property
    def location(self) -> str:
        return self._history.location

    def past(self, probe_name: str, assertion_name: str, limit: int = 30) -> list[Mapping[str, Any]]:
        return self._history.past(probe_name, assertion_name, limit)

    def prepare(self) -> None:
        """Find out whether the history can be opened. ProbeError if not, which a load probe raises."""
        prepare_history(self._history)

    def error_of(self, probe_name: str) -> ProbeError | None:
        """Why the newest run of this probe is not recorded."""
        return next((error for name, error in reversed(self.errors) if name == probe_name), None)

    def record(self, report: RunReport) -> int:
        try:
            self.run_ids[report.probe_name] = self._history.record(report)
        except ProbeError as error:
            self.errors.append((report.probe_name, error))
            return 0
        return self.run_ids[report.probe_name]
