"""Options of ``flow run`` that replace the declared options of a pipeline for one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ematix_flow.api.option_checks import check_target
from ematix_flow.errors import DeclarationError, UsageError
from ematix_flow.graph.registry import DeclaredPipeline, Registry
from ematix_flow.spec.pipelines import ForcedPath


def with_overrides(
    registry: Registry,
    names: Sequence[str],
    *,
    allow_empty: bool | None = None,
    max_shrink: float | None = None,
    force_path: ForcedPath | None = None,
) -> Registry:
    """A copy of the registry in which the named pipelines have these options."""
    options = {"allow_empty": allow_empty, "max_shrink": max_shrink}
    given = {key: value for key, value in options.items() if value is not None}
    if not given and force_path is None:
        return registry
    changed = {name: _override_pipeline(registry.pipelines[name], given, force_path) for name in names}
    return dataclasses.replace(registry, pipelines={**registry.pipelines, **changed})


def _override_pipeline(
    declared: DeclaredPipeline, given: dict[str, Any], force_path: ForcedPath | None
) -> DeclaredPipeline:
    spec = declared.spec
    targets = tuple(dataclasses.replace(target, **given) for target in spec.targets)
    try:
        for target in targets:
            check_target(target, None)
    except DeclarationError as error:
        raise UsageError(error.what) from None
    changed = dataclasses.replace(spec, targets=targets, force_path=force_path or spec.force_path)
    return dataclasses.replace(declared, spec=changed)
