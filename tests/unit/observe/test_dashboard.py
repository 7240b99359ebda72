from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest

from ematix_flow.observe.metrics import SCHEMES
from ematix_flow.observe.observer import SchedulerTick
from ematix_flow.observe.run_metrics import RunMetrics
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.observe.traces import KINDS as TRACE_KINDS
from tests.promql import DASHBOARD, exposed, expressions, metric_names, recorded, wanted

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "metrics.md"


@functools.cache
def known_names() -> frozenset[str]:
    runs = RunMetrics()
    runs.scheduler_ticked(SchedulerTick(0.1), 1.0)
    text = generate_latest(runs.registry) + generate_latest(StreamMetrics().registry)
    return frozenset(exposed(text.decode()))


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (a, b) (rate(x_total{p=~"q|r_total"}[5m])) > 3', {"x_total"}),
        ("time() - max(a_seconds) > 120 or absent(b)", {"a_seconds", "b"}),
        ("x:y == 1 and on (pipeline) z / ignoring (le) w", {"x:y", "z", "w"}),
        ("histogram_quantile(0.9, sum by (le) (rate(h_bucket[15m]))) > 1e3", {"h_bucket"}),
    ],
)
def test_the_names_in_an_expression_are_found(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


@pytest.mark.parametrize("where", sorted(expressions()))
def test_every_metric_that_dashboard_and_rules_name_exists(where: str) -> None:
    names = metric_names(expressions()[where])
    assert names
    assert names - known_names() - recorded() == set()


def test_every_outcome_that_dashboard_and_rules_ask_for_exists() -> None:
    runs = RunMetrics()
    runs.scheduler_ticked(SchedulerTick(0.1), 1.0)
    runs.start_at_zero(["orders"])
    asked = {
        (name, outcome)
        for expression in expressions().values()
        for name, outcome in re.findall(r'(\w+)\{[^}]*outcome="(\w+)"', expression)
    }
    assert {("pipeline_slots_total", "missed"), ("pipeline_slots_total", "skipped")} <= asked
    there = {
        (sample.name, sample.labels.get("outcome"))
        for family in runs.registry.collect()
        for sample in family.samples
    }
    assert asked - there == set()


def test_the_dashboard_is_whole() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "pipeline"}
    names = wanted()
    for prefix in ("pipeline_", "ematix_flow_scheduler_", "ematix_flow_stream_"):
        assert any(name.startswith(prefix) for name in names)


def test_the_page_lists_every_metric_with_its_kind_and_labels() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(encoding="utf-8"), re.M)
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    runs, streams = RunMetrics(), StreamMetrics()
    runs.scheduler_ticked(SchedulerTick(0.1), 1.0)
    there = {}
    for registry in (runs.registry, streams.registry):
        for collector in {*registry._names_to_collectors.values()}:
            (family,) = collector.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            there[name] = (family.type, set(collector._labelnames))
    assert listed == there


def test_the_page_names_every_sink() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [kind for kind in (*SCHEMES, *TRACE_KINDS) if f"`{kind}://" not in text] == []
