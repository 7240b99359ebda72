"""``otlp://…``: the numbers of a registry as OpenTelemetry metrics, sent by its own exporters."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from prometheus_client.registry import Collector

from ematix_flow.observe.metric_families import MetricFamilies, MetricFamily
from ematix_flow.observe.metrics_observers import SendingObserver
from ematix_flow.observe.otlp import (
    EXPORT_SECONDS,
    SCOPE,
    capture_exporter_messages,
    http_url,
    otlp_endpoint,
    resource,
)
from ematix_flow.observe.sink_urls import missing_otel

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricsData

    from ematix_flow.state.runlog.base import RunLog

PREFERENCE = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


class OtlpMetrics(SendingObserver):
    """Sends sums since the start of the process, or with the preference ``delta`` since the last send."""

    def __init__(self, url: str, run_log: RunLog, also: Sequence[Collector]) -> None:
        protocol, to = otlp_endpoint(url, "metrics")
        try:
            self._exporter = _exporter(protocol, http_url(to, "metrics") if protocol == "http" else to.url)
            self._resource = resource()
        except ImportError as error:
            raise missing_otel(error) from error
        self._delta = os.environ.get(PREFERENCE, "").lower() == "delta"
        self._since = time.time_ns()
        super().__init__(f"{to.scheme}://{to.address}", run_log, also)

    def send(self, now: MetricFamilies, added: MetricFamilies) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        moment = time.time_ns()
        data = metrics_data(added if self._delta else now, self._resource, self._since, moment, self._delta)
        with capture_exporter_messages() as messages:
            done = self._exporter.export(data, timeout_millis=EXPORT_SECONDS * 1000)
        if done is not MetricExportResult.SUCCESS:
            raise ConnectionError(messages.last_message or "the exporter failed")
        if self._delta:
            self._since = moment

    def close(self) -> None:
        super().close()
        self._exporter.shutdown()


def _exporter(protocol: str, address: str) -> MetricExporter:
    """Return the exporter.

    Its retries end with the timeout; headers come from ``OTEL_EXPORTER_OTLP_HEADERS``.
    """
    if protocol == "http":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as OverHttp

        return OverHttp(endpoint=address, timeout=EXPORT_SECONDS)
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as OverGrpc

    return OverGrpc(endpoint=address, insecure=address.startswith("http://"), timeout=EXPORT_SECONDS)


def metrics_data(
    families: Mapping[str, MetricFamily], about: Any, since: int, moment: int, delta: bool
) -> MetricsData:
    """The numbers in OpenTelemetry's own values; ``about`` is the resource, times are in nanoseconds."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [_metric(name, family, since, moment, delta) for name, family in families.items()]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
    return MetricsData([ResourceMetrics(about, [scope], "")])


def _metric(name: str, family: MetricFamily, since: int, moment: int, delta: bool) -> Metric:
    from opentelemetry.sdk.metrics import export as otel

    kind = otel.AggregationTemporality.DELTA if delta else otel.AggregationTemporality.CUMULATIVE
    unit = "s" if name.endswith("_seconds") else "1"
    if family.kind == "histogram":
        points = [_histogram(labels, part, since, moment) for labels, part in _histograms(family).items()]
        return otel.Metric(name, family.meaning, unit, otel.Histogram(points, kind))
    numbers = [
        otel.NumberDataPoint(dict(labels), since, moment, value)
        for (_, labels), value in family.series.items()
    ]
    if family.kind == "counter":
        return otel.Metric(name, family.meaning, unit, otel.Sum(numbers, kind, is_monotonic=True))
    return otel.Metric(name, family.meaning, unit, otel.Gauge(numbers))


def _histograms(family: MetricFamily) -> dict[tuple[tuple[str, str], ...], dict[str, float]]:
    """By labels: the buckets by their bound, and ``sum``."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for (sample, labels), value in family.series.items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        part = found.setdefault(rest, {})
        if sample.endswith("_bucket"):
            part[dict(labels)["le"]] = value
        elif sample.endswith("_sum"):
            part["sum"] = value
    return found


def _histogram(
    labels: tuple[tuple[str, str], ...], part: Mapping[str, float], since: int, moment: int
) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    buckets = sorted((float(bound), int(value)) for bound, value in part.items() if bound != "sum")
    below = [0, *(value for _, value in buckets)]  # Prometheus' buckets hold all that is below, ours do not
    counts = [after - before for before, after in pairwise(below)]
    bounds = [bound for bound, _ in buckets[:-1]]
    total = part.get("sum", 0.0)
    unknown: Any = None  # the least and the largest, which the protocol may leave out
    return HistogramDataPoint(dict(labels), since, moment, below[-1], total, counts, bounds, unknown, unknown)
