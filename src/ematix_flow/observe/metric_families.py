"""Metric families: reads, merges and formats the numbers of several processes in one place.

A process that ends after one run starts its counters at zero, and would reset those of the previous one. So
counters and histograms are added to what the place holds, and gauges replace it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]
_ADDITIVE_KINDS = ("counter", "histogram")


@dataclass
class MetricFamily:
    """One metric with its series."""

    kind: str
    meaning: str
    series: dict[Series, float] = field(default_factory=dict)


MetricFamilies = dict[str, MetricFamily]


class CombinedCollector(Collector):
    """Several registries as one."""

    def __init__(self, registries: Iterable[Collector]) -> None:
        self._registries = tuple(registries)

    def collect(self) -> Iterable[Metric]:
        for registry in self._registries:
            yield from registry.collect()


def read_families(numbers: Collector) -> MetricFamilies:
    """Return what a registry holds now, without the creation times of its series."""
    return _families_from(numbers.collect())


def parse_families(text: str) -> MetricFamilies:
    """Parse a text in Prometheus' format. Raises ValueError if it is invalid."""
    return _families_from(text_string_to_metric_families(text))


def families_added_since(now: MetricFamilies, before: MetricFamilies) -> MetricFamilies:
    """Return what was counted since ``before``; gauges as they are."""
    found: MetricFamilies = {}
    for name, family in now.items():
        known = before[name].series if name in before and family.kind in _ADDITIVE_KINDS else {}
        series = {key: value - known.get(key, 0.0) for key, value in family.series.items()}
        found[name] = MetricFamily(family.kind, family.meaning, series)
    return found


def merge_families(present: Mapping[str, MetricFamily], added: Mapping[str, MetricFamily]) -> MetricFamilies:
    """Return ``there`` with ``added``; a metric that has another kind there is replaced."""
    found = {name: MetricFamily(each.kind, each.meaning, dict(each.series)) for name, each in present.items()}
    for name, family in added.items():
        known = found.get(name)
        if known is None or known.kind != family.kind:
            found[name] = MetricFamily(family.kind, family.meaning, dict(family.series))
            continue
        known.meaning = family.meaning
        for key, value in family.series.items():
            before = known.series.get(key, 0.0) if family.kind in _ADDITIVE_KINDS else 0.0
            known.series[key] = before + value
    return found


def format_families(families: Mapping[str, MetricFamily]) -> bytes:
    """Return the families in Prometheus' text format."""
    return generate_latest(FixedCollector(families))


class FixedCollector(Collector):
    """Collects fixed numbers. A metric without series is left out."""

    def __init__(self, families: Mapping[str, MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for name, family in self._families.items():
            metric = Metric(name, family.meaning, family.kind)
            metric.samples = [
                Sample(sample, dict(labels), value) for (sample, labels), value in family.series.items()
            ]
            if metric.samples:
                yield metric


def _families_from(metrics: Iterable[Metric]) -> MetricFamilies:
    found: MetricFamilies = {}
    for metric in metrics:
        series = {
            (sample.name, _labels(sample.labels)): sample.value
            for sample in metric.samples
            if not sample.name.endswith("_created")
        }
        if series:
            found[metric.name] = MetricFamily(metric.type, metric.documentation, series)
    return found


def _labels(labels: Mapping[str, str]) -> Labels:
    """Return sorted labels. Bucket bounds as we write them: a gateway returns ``1`` for ``1.0``."""
    bound = {"le": floatToGoString(labels["le"])} if "le" in labels else {}  # type: ignore[no-untyped-call]
    return tuple(sorted({**labels, **bound}.items()))
