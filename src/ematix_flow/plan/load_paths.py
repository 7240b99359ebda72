"""Chooses the path of a load, or of all its targets together, and derives its delivery guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.errors import GuaranteeRefused, Unsupported
from ematix_flow.plan.connection_comparison import ConnectionComparison
from ematix_flow.plan.decisions import Decision
from ematix_flow.spec.pipelines import PipelineSpec

ONE_READ = "several targets: one read of the source feeds all"


def choose_path(
    spec: PipelineSpec,
    *,
    endpoints: ConnectionComparison,
    native_source: bool,
    computes: str | None,
    target: Capabilities,
) -> Decision:
    """``computes`` describes what must be computed between source and target; None: nothing."""
    forced = spec.force_path
    if forced == "cross_db":  # the documented name for every path except same_db
        forced = ("spark" if computes else "copy") if endpoints.are_equivalent else None
    if forced is not None:
        _check_forced(spec, forced, endpoints=endpoints, native_source=native_source, computes=computes)
        return Decision("path", forced, f"asked for by force_path={spec.force_path!r}")
    if endpoints.are_equivalent and target.same_db:
        return Decision(
            "path", "same_db", "source and target are one database: no row leaves it, Spark is not started"
        )
    apart = f"{endpoints.mismatch}; " if endpoints.same_database else ""
    if native_source:
        return Decision("path", "spark", "the source is files, which Spark reads and queries itself")
    if computes:
        return Decision("path", "spark", f"{apart}{computes} must be computed between source and target")
    apart = apart or "two systems and "
    return Decision("path", "copy", f"{apart}nothing to compute: Arrow batches go straight to staging")


def _check_forced(
    spec: PipelineSpec,
    forced: str,
    *,
    endpoints: ConnectionComparison,
    native_source: bool,
    computes: str | None,
) -> None:
    problem = None
    if forced == "same_db" and not endpoints.are_equivalent:
        problem = endpoints.mismatch
    elif forced == "copy" and native_source:
        problem = "only plain reads of CSV files are copied from files, and Spark reads this source"
    elif forced == "copy" and computes:
        problem = f"{computes} must be computed, and the copy path computes nothing"
    if problem:
        raise Unsupported(
            f"pipeline {spec.name!r} asks for force_path={forced!r}, but {problem}",
            where=spec.where,
            next_step="leave force_path= out, or choose another path",
        )


@dataclass(frozen=True)
class LoadEndpoints:
    """The source and one target of a load. ``computes`` describes what must be computed between them."""

    comparison: ConnectionComparison
    native_source: bool
    computes: str | None
    target: Capabilities

    def choose_path(self, spec: PipelineSpec) -> Decision:
        return choose_path(
            spec,
            endpoints=self.comparison,
            native_source=self.native_source,
            computes=self.computes,
            target=self.target,
        )


def choose_paths(spec: PipelineSpec, between: Sequence[LoadEndpoints]) -> tuple[Decision, ...]:
    """The path of each target. Several targets share one path, so that the source is read once.

    The database computes the rows only if all targets are in it, on equivalent connections. If one target
    needs Spark, Spark computes the rows of all.
    """
    chosen = [one.choose_path(spec) for one in between]
    if len(chosen) == 1 or all(decision.value == "same_db" for decision in chosen):
        return tuple(chosen)
    for number, one in enumerate(between):
        if chosen[number].value == "same_db":
            apart = replace(one, comparison=ConnectionComparison(False)).choose_path(spec)
            chosen[number] = replace(
                apart, reason=f"{ONE_READ}, and not all of them can compute the source's SQL themselves"
            )
    if any(decision.value == "spark" for decision in chosen):
        together = Decision("path", "spark", f"{ONE_READ}, and one of them needs Spark to compute")
        chosen = [together if decision.value == "copy" else decision for decision in chosen]
    return tuple(chosen)


def derive_guarantee(
    spec: PipelineSpec, target: Capabilities, target_kind: str, late_writers_in: str | None = None
) -> Decision:
    """The guarantee of source, strategy and target together. Refuses a stronger ``guarantee=``.

    ``late_writers_in`` names the source of an incremental read that cannot tell which rows come late.
    """
    lag = spec.source.lag_seconds
    if late_writers_in is not None and not lag:
        given = Decision(
            "guarantee",
            "at_most_once",
            f"{late_writers_in} does not show which transactions are open, and a row that one of them "
            "commits below the watermark is never read",
        )
        next_step = (
            "set lag= to more seconds than a transaction stays open there, with a watermark that is a time; "
            "or leave guarantee= out"
        )
    elif not target.transactions:
        given = Decision(
            "guarantee",
            "at_least_once",
            f"a target of kind {target_kind!r} has no transaction to commit with",
        )
        next_step = "declare guarantee='at_least_once', or load into a target with transactions"
    else:
        reason = "rows, ledger entry and watermark commit together"
        if late_writers_in is not None:
            reason += (
                f", and no transaction in {late_writers_in} may stay open longer than lag={lag:g} seconds"
            )
        return Decision("guarantee", "exactly_once", reason)
    if spec.guarantee == "exactly_once" or (spec.guarantee and given.value == "at_most_once"):
        raise GuaranteeRefused(
            f"pipeline {spec.name!r} declares guarantee={spec.guarantee!r}, which cannot be kept: "
            f"{given.reason}",
            where=spec.where,
            next_step=next_step,
        )
    return given
