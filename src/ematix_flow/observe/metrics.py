"""Opens metrics sinks from URLs: they count the runs of a process and send or show the numbers."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client.registry import Collector

from ematix_flow.errors import ConfigError
from ematix_flow.observe.metric_families import (
    CombinedCollector,
    MetricFamilies,
    read_families,
)
from ematix_flow.observe.metrics_observers import CountingObserver
from ematix_flow.observe.metrics_server import MetricsServer
from ematix_flow.observe.observer import Observer
from ematix_flow.observe.run_metrics import RunMetrics
from ematix_flow.observe.sink_urls import parse_sink_url, unknown_scheme

if TYPE_CHECKING:
    from ematix_flow.state.runlog.base import RunLog

SCHEMES = (
    "null",
    "stdout",
    "memory",
    "prometheus",
    "prometheus+push",
    "prometheus+file",
    "otlp",
    "otlp+http",
    "otlp+grpc",
)
PORT = 9464
_log = logging.getLogger(__name__)
_memory: dict[str, RunMetrics] = {}


def memory_metrics(name: str = "") -> RunMetrics:
    """Return the numbers of ``memory://name`` in this process, even if nothing was counted yet."""
    return _memory.setdefault(name, RunMetrics())


def open_metrics(url: str, run_log: RunLog, also: Sequence[Collector] = ()) -> Observer:
    """Open the sink that a URL names; ``also`` are further metrics. Raises ConfigError if it names none."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise unknown_scheme(url, "metrics", SCHEMES)
    if scheme == "null":
        return Observer()
    if scheme == "memory":
        return CountingObserver("memory://", run_log, memory_metrics(rest.strip("/")))
    if scheme == "stdout":
        return _StdoutMetrics(run_log, also)
    if scheme == "prometheus":
        return _open_prometheus(url, run_log, also)
    if scheme.startswith("otlp"):
        from ematix_flow.observe.otlp_metrics import OtlpMetrics

        return OtlpMetrics(url, run_log, also)
    from ematix_flow.observe.prometheus_sinks import PushgatewayMetrics, TextfileMetrics

    return (TextfileMetrics if scheme == "prometheus+file" else PushgatewayMetrics)(url, run_log, also)


class _StdoutMetrics(CountingObserver):
    """Prints changed numbers after each run on stderr: stdout is for data."""

    def __init__(self, run_log: RunLog, also: Sequence[Collector]) -> None:
        super().__init__("stdout://", run_log)
        self._numbers = CombinedCollector((self.metrics.registry, *also))
        self._shown: MetricFamilies = {}

    def on_change(self) -> None:
        now = read_families(self._numbers)
        for name, family in now.items():
            known = self._shown[name].series if name in self._shown else {}
            for key, value in family.series.items():
                if known.get(key) != value and not _is_noise(key[0]):
                    print(_line(key, value), file=sys.stderr)
        self._shown = now


def _is_noise(sample: str) -> bool:
    """Parts of a histogram, and numbers that change with every poll of a scheduler."""
    return sample.endswith("_bucket") or any(
        each in sample for each in ("_scheduler_tick", "_last_tick", "_oldest_due_seconds")
    )


def _line(key: tuple[str, tuple[tuple[str, str], ...]], value: float) -> str:
    labels = ",".join(f'{name}="{text}"' for name, text in key[1])
    return f"{key[0]}{{{labels}}} {value:.15g}" if labels else f"{key[0]} {value:.15g}"


class _PrometheusMetrics(CountingObserver):
    """Serves the numbers to be scraped while the process runs."""

    def __init__(self, run_log: RunLog, server_of: Callable[[Collector], MetricsServer]) -> None:
        super().__init__("prometheus://", run_log)
        self._server = server_of(self.metrics.registry)

    def close(self) -> None:
        self._server.close()


def _open_prometheus(url: str, run_log: RunLog, also: Sequence[Collector]) -> Observer:
    parts = parse_sink_url(url, "metrics", PORT)
    host = parts.host if urlsplit(url).hostname else "127.0.0.1"

    def serve(numbers: Collector) -> MetricsServer:
        return MetricsServer(CombinedCollector((numbers, *also)), host, parts.port, parts.path or "/metrics")

    try:
        return _PrometheusMetrics(run_log, serve)
    except ConfigError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        # a manual run next to a scheduler that has the port may still run
        _log.warning("%s; the numbers of this process are not shown", error.what)
        return Observer()
