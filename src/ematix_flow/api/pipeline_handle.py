"""A declared pipeline as the user holds it: runs it, plans it, previews it and maintains its tables."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.api import option_checks, unused_options
from ematix_flow.api.target import (
    read_column_names,
)
from ematix_flow.errors import DeclarationError
from ematix_flow.graph.registry import DeclaredPipeline, Registry
from ematix_flow.spec.pipelines import (
    DRIFT_POLICIES,
    FORCED_PATHS,
    DeclaredMode,
    DriftPolicy,
    ForcedPath,
    PipelineSpec,
    TargetSpec,
    refuse_incremental_truncate,
)

if TYPE_CHECKING:
    from ematix_flow.backends.maintenance import MaintenanceReport
    from ematix_flow.engine.spark.settings import EngineSettings
    from ematix_flow.observe.listener import Listener
    from ematix_flow.plan.definition import Plan
    from ematix_flow.plan.results import RunResult
    from ematix_flow.run.preview import Preview, Validation


class Pipeline:
    """A declared pipeline. Call it, or ``.sync()``, to run it; ``.plan()`` shows what a run would do."""

    def __init__(self, declared: DeclaredPipeline, registry: Registry) -> None:
        self._declared = dataclasses.replace(declared, handle=self)
        self._registry = registry
        self.__name__ = declared.spec.name
        self.__doc__ = declared.function.__doc__

    @property
    def spec(self) -> PipelineSpec:
        return self._declared.spec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def function(self) -> Callable[..., Any]:
        """The decorated function itself."""
        return self._declared.function

    def sync(
        self,
        *,
        mode: DeclaredMode | None = None,
        keys: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        compare_columns: Sequence[str] | None = None,
        force_path: ForcedPath | None = None,
        on_drift: DriftPolicy | None = None,
        max_shrink: float | None = None,
        allow_empty: bool | None = None,
        slot: dt.datetime | None = None,
        run_log: str | None = None,
        engine: str | EngineSettings | None = None,
        listener: Listener | None = None,
    ) -> RunResult:
        """Run the pipeline now and wait for it. An option given here replaces the declared one for this run.

        ``slot`` is the scheduled time of the run: a second run for the same slot loads nothing.
        Raises a FlowError when the run fails; the target is then unchanged.
        """
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import run_context
        from ematix_flow.run.pipeline import run_declared_pipeline

        target_options = {
            "mode": None if mode is None else option_checks.normalize_mode(mode, None),
            "keys": read_column_names("keys", keys, None),
            "update_columns": read_column_names("update_columns", update_columns, None),
            "compare_columns": read_column_names("compare_columns", compare_columns, None),
            "max_shrink": max_shrink,
            "allow_empty": allow_empty,
        }
        if slot is not None and slot.tzinfo is None:
            raise DeclarationError(
                f"slot= needs a time zone: {slot.isoformat()} has none",
                next_step="if it is in UTC, pass  slot=time.replace(tzinfo=datetime.timezone.utc)",
            )
        self._registry.check_pipeline(self.spec)
        declared = self._with_overrides(target_options, force_path=force_path, on_drift=on_drift)
        given = {"keys": keys, "update_columns": update_columns, "compare_columns": compare_columns}
        unused_options.check_matching_options(given, declared.spec.targets, self.spec.where)
        with (
            use_registry(self._registry),
            run_context(
                run_log=run_log, engine=engine, listener=listener, trigger="sync", slot=slot
            ) as context,
        ):
            return run_declared_pipeline(declared, context)

    def __call__(self) -> RunResult:
        return self.sync()

    def plan(self) -> Plan:
        """Return what a run would do now. Changes nothing."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.pipeline import plan_pipeline

        self._registry.check_pipeline(self.spec)
        with use_registry(self._registry):
            return plan_pipeline(self._declared, spark_starter())

    def preview(self, rows: int = 10) -> Preview:
        """Return the plan and the first rows of the source. Changes nothing."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.preview import preview

        with use_registry(self._registry):
            return preview(self._declared, spark_starter(), rows)

    def dry_run(self) -> RunResult:
        """Do everything except the commit, and count the rows. The target does not change."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.preview import dry_run

        with use_registry(self._registry):
            return dry_run(self._declared, spark_starter())

    def validate(self) -> Validation:
        """Check the pipeline against source and target: SQL, columns, types. Changes nothing."""
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.preview import validate

        with use_registry(self._registry):
            return validate(self._declared, spark_starter())

    def maintain(
        self,
        *,
        retain: dt.timedelta | str | None = None,
        zorder: Sequence[str] = (),
        force: bool = False,
        dry_run: bool = False,
    ) -> list[MaintenanceReport]:
        """Compact the lake tables that this pipeline loads, and delete files that no kept version needs.

        ``retain`` is how long versions are kept, such as ``"30d"``; the default is 7 days, and a shorter time
        needs ``force``. ``zorder`` names the columns to cluster the rows by. ``dry_run`` changes
        nothing and reports what would be done.
        """
        from ematix_flow.backends.maintenance import MaintenanceOptions
        from ematix_flow.graph.registry import use_registry
        from ematix_flow.run.context_setup import spark_starter
        from ematix_flow.run.maintenance import maintain_pipelines, require_lakes
        from ematix_flow.spec.durations import parse_duration

        retention = parse_duration("retain=", retain) if isinstance(retain, str) else retain
        options = MaintenanceOptions(
            retention, read_column_names("zorder", zorder, None) or (), dry_run=dry_run, force=force
        )
        with use_registry(self._registry):
            require_lakes([self._declared], spark_starter())
            outcomes = list(maintain_pipelines([self._declared], spark_starter(), options))
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [table for outcome in outcomes for table in outcome.tables]

    def _with_overrides(
        self,
        target_options: Mapping[str, Any],
        *,
        force_path: ForcedPath | None,
        on_drift: DriftPolicy | None,
    ) -> DeclaredPipeline:
        spec = self.spec
        given = {k: v for k, v in target_options.items() if v is not None}
        targets: tuple[TargetSpec, ...] = ()
        for declared in spec.targets:
            target = dataclasses.replace(declared, **given)
            option_checks.check_target(target, spec.where)
            if spec.source.incremental:
                refuse_incremental_truncate(target.mode, spec.where)
            keys = option_checks.resolve_keys(target.table, target.keys, target.mode, spec.where)
            targets += (dataclasses.replace(target, keys=keys),)
        if force_path is not None:
            option_checks.check_choice("force_path", force_path, FORCED_PATHS, None)
            spec = dataclasses.replace(spec, force_path=force_path)
        if on_drift is not None:
            option_checks.check_choice("on_drift", on_drift, DRIFT_POLICIES, None)
            spec = dataclasses.replace(spec, on_drift=on_drift)
        return dataclasses.replace(self._declared, spec=dataclasses.replace(spec, targets=targets))

    def __repr__(self) -> str:
        spec = self.spec
        into = ", ".join(f"{t.mode} into {t.label}" for t in spec.targets)
        return f"<Pipeline {spec.name}: {into}>"

    def _repr_html_(self) -> str:
        from html import escape

        spec = self.spec
        rows = [
            ("targets", ", ".join(f"{t.mode} into {t.label}" for t in spec.targets)),
            ("schedule", spec.schedule or "by hand"),
            ("depends on", ", ".join(spec.depends_on) or "nothing"),
            ("declared at", str(spec.where) if spec.where else ""),
        ]
        cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
        return f"<b>{escape(spec.name)}</b><table>{cells}</table>"
