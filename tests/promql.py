"""The expressions of the dashboard and of the alert rules, and which metrics each of them names."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

OPS = Path(__file__).resolve().parents[1] / "ops"
RULES = OPS / "prometheus" / "ematix-flow.rules.yml"
DASHBOARD = OPS / "grafana" / "ematix-flow.json"

_NOT_NAMES = re.compile(
    r'"(?:\\.|[^"\\])*"'  # texts
    r"|\{[^}]*\}|\[[^\]]*\]"  # labels and ranges
    r"|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"
)
_WORDS = {"and", "or", "unless", "bool", "offset"}


def metric_names(expression: str) -> set[str]:
    """The metrics of one PromQL expression."""
    bare = _NOT_NAMES.sub(" ", expression)
    found = set(re.findall(r"(?<![\w:.])[a-zA-Z_:][a-zA-Z0-9_:]*(?![\w:]|\s*\()", bare))
    return found - _WORDS


@functools.cache
def expressions() -> Mapping[str, str]:
    """Every expression, by where it is."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    found = {
        f"rule {rule.get('alert') or rule['record']}": rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
    }
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            found[f"panel {panel['id']} {panel['title']!r} {target['refId']}"] = target["expr"]
    return found


@functools.cache
def recorded() -> frozenset[str]:
    """Metrics that the rules make themselves."""
    groups: Any = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return frozenset(rule["record"] for group in groups for rule in group["rules"] if "record" in rule)


def wanted(prefix: str = "") -> set[str]:
    """Every metric that dashboard or rules name and the product must have."""
    named = {name for expression in expressions().values() for name in metric_names(expression)}
    return {name for name in named - recorded() if name.startswith(prefix)}


def exposed(text: str) -> set[str]:
    """The names that can be asked for, of an exposition; also those that have no series yet."""
    names: set[str] = set()
    for family in text_string_to_metric_families(text):
        names |= {sample.name for sample in family.samples}
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + end for end in ends}
    return names
