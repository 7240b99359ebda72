"""Chooses the observers of a process: by options, else the environment, else the project's file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.config.project_file import list_setting, text_setting
from ematix_flow.observe.observer import Observer, Observers

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from ematix_flow.state.runlog.base import RunLog

ALERTERS_VARIABLE = "EMATIX_FLOW_ALERTERS"  # URLs, separated by blanks or commas
METRICS_VARIABLE = "EMATIX_FLOW_METRICS"
TRACES_VARIABLE = "EMATIX_FLOW_TRACES"
_SEPARATOR = re.compile(r"\s+|,(?=[A-Za-z][A-Za-z0-9+.-]*://)")  # some URLs contain commas


@dataclass(frozen=True)
class Observability:
    """The URLs of the observers. They may contain passwords."""

    alerters: tuple[str, ...] = ()
    metrics: str | None = None
    traces: str | None = None

    @classmethod
    def resolve(
        cls,
        env: Mapping[str, str],
        alerters: Sequence[str] = (),
        metrics: str | None = None,
        traces: str | None = None,
    ) -> Observability:
        return cls(
            tuple(alerters)
            or tuple(filter(None, _SEPARATOR.split(env.get(ALERTERS_VARIABLE, ""))))
            or list_setting("alerts", "urls"),
            metrics or env.get(METRICS_VARIABLE) or text_setting("metrics", "url"),
            traces or env.get(TRACES_VARIABLE) or text_setting("traces", "url"),
        )

    def check(self) -> None:
        """Raise an error if an alerter's URL is invalid."""
        if self.alerters:
            from ematix_flow.observe.alerts.alerter_urls import open_alerter

            for url in self.alerters:
                open_alerter(url)

    def to_env(self) -> dict[str, str]:
        """Return the variables for a run that a scheduler starts; arguments would be readable by everyone.

        The scheduler counts its runs from the run log, so the runs count nothing. They read the alerters of
        the project's file there.
        """
        alerters = () if self.alerters == list_setting("alerts", "urls") else self.alerters
        given = {
            ALERTERS_VARIABLE: " ".join(alerters),
            METRICS_VARIABLE: "null://",
            TRACES_VARIABLE: self.traces or "",
        }
        return {name: value for name, value in given.items() if value}


@contextmanager
def open_observers(
    settings: Observability, run_log: RunLog, numbers: Sequence[Collector] = ()
) -> Iterator[Observers]:
    """Open the observers while the block runs. An invalid URL raises an error before anything runs.

    ``numbers`` are further metrics, sent to the same place as those of runs.
    """
    observers = Observers(list(_configured_observers(settings, run_log, numbers)))
    try:
        yield observers
    finally:
        observers.close()


def _configured_observers(
    settings: Observability, run_log: RunLog, numbers: Sequence[Collector]
) -> Iterator[Observer]:
    """Open the configured observers; each kind is imported only if it is used."""
    if settings.metrics:
        from ematix_flow.observe.metrics import open_metrics

        yield open_metrics(settings.metrics, run_log, numbers)
    if settings.traces:
        from ematix_flow.observe.traces import open_traces

        yield open_traces(settings.traces)
    # a program that registers an alerter has imported that module
    if settings.alerters or "ematix_flow.observe.alerts.alerter_registry" in sys.modules:
        from ematix_flow.observe.alerts.alerter_registry import alert_observers

        yield from alert_observers(settings.alerters, run_log)
