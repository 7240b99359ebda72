"""Whether what pipelines need is installed: asked before the first of them runs, not when its turn comes."""

from __future__ import annotations

from collections.abc import Iterable

from ematix_flow.backends.registry import require_driver
from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.graph.connections import resolve
from ematix_flow.graph.registry import Registry, use_registry


def missing_drivers(registry: Registry, names: Iterable[str]) -> list[ConfigError]:
    """One error for each connection of these pipelines whose driver is not installed."""
    missing: dict[str, ConfigError] = {}
    with use_registry(registry):
        for name in names:
            spec = registry.pipeline(name).spec
            for reference in spec.connections:
                try:
                    connection = resolve(reference)
                except FlowError:  # whoever runs the pipeline says what is wrong with it
                    continue
                try:
                    require_driver(connection)
                except ConfigError as error:
                    error.with_location(spec.where)
                    missing.setdefault(error.what, error)
    return list(missing.values())
