"""Which observers a process has: by options, else the environment, else the project's file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.config.settings import list_setting, text_setting
from ematix_flow.observe.observer import Observer, Observers

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from ematix_flow.state.runlog.base import RunLog

ALERTERS_VARIABLE = "EMATIX_FLOW_ALERTERS"  # URLs with blanks or commas between them
METRICS_VARIABLE = "EMATIX_FLOW_METRICS"
TRACES_VARIABLE = "EMATIX_FLOW_TRACES"
_SEPARATOR = re.compile(r"\s+|,(?=[A-Za-z][A-Za-z0-9+.-]*://)")  # some have commas in them


@dataclass(frozen=True)
class Observability:
    """The URLs of what watches. They may hold passwords."""

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
        """An error now when an alerter's URL cannot be understood."""
        if self.alerters:
            from ematix_flow.observe.alerts.alerter_urls import open_alerter

            for url in self.alerters:
                open_alerter(url)

    def to_env(self) -> dict[str, str]:
        """For a run that a scheduler starts; never an argument, which everyone can read.

        The scheduler counts its runs itself, by the run log, so they count nothing. Alerters of the
        project's file they find there.
        """
        told = () if self.alerters == list_setting("alerts", "urls") else self.alerters
        given = {
            ALERTERS_VARIABLE: " ".join(told),
            METRICS_VARIABLE: "null://",
            TRACES_VARIABLE: self.traces or "",
        }
        return {name: value for name, value in given.items() if value}


@contextmanager
def open_observers(
    settings: Observability, run_log: RunLog, numbers: Sequence[Collector] = ()
) -> Iterator[Observers]:
    """Observers while the block runs; a URL that cannot be understood is an error before anything runs.

    ``numbers`` go where those of runs go.
    """
    observers = Observers(list(_configured_observers(settings, run_log, numbers)))
    try:
        yield observers
    finally:
        observers.close()


def _configured_observers(
    settings: Observability, run_log: RunLog, numbers: Sequence[Collector]
) -> Iterator[Observer]:
    """Each kind is imported only when it is asked for."""
    if settings.metrics:
        from ematix_flow.observe.metrics import open_metrics

        yield open_metrics(settings.metrics, run_log, numbers)
    if settings.traces:
        from ematix_flow.observe.traces import open_traces

        yield open_traces(settings.traces)
    # whoever registers an alerter has imported that module
    if settings.alerters or "ematix_flow.observe.alerts.alerter_registry" in sys.modules:
        from ematix_flow.observe.alerts.alerter_registry import alert_observers

        yield from alert_observers(settings.alerters, run_log)
