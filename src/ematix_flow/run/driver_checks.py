"""Checks that the drivers of pipelines are installed, before the first pipeline runs."""

from __future__ import annotations

from collections.abc import Iterable

from ematix_flow.backends.registry import require_driver
from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.graph.connections import resolve
from ematix_flow.graph.registry import Registry, use_registry


def missing_drivers(registry: Registry, names: Iterable[str]) -> list[ConfigError]:
    """Return one error for each connection of these pipelines whose driver is not installed."""
    missing: dict[str, ConfigError] = {}
    with use_registry(registry):
        for name in names:
            spec = registry.pipeline(name).spec
            for reference in spec.connections:
                try:
                    connection = resolve(reference)
                except FlowError:  # the run of the pipeline reports what is wrong
                    continue
                try:
                    require_driver(connection)
                except ConfigError as error:
                    error.with_location(spec.where)
                    missing.setdefault(error.what, error)
    return list(missing.values())
