"""Which of the paths a load takes, and which guarantee it can prove."""

from __future__ import annotations

from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.errors import GuaranteeRefused, Unsupported
from ematix_flow.plan.definition import Choice
from ematix_flow.spec.pipelines import PipelineSpec


def choose_path(
    spec: PipelineSpec,
    *,
    same_database: bool,
    native_source: bool,
    computes: str | None,
    target: Capabilities,
) -> Choice:
    """``computes`` says in words what must be computed between source and target, or is None."""
    forced = spec.force_path
    if forced == "cross_db":  # the documents' word for everything that is not same_db
        forced = ("spark" if computes else "copy") if same_database else None
    if forced is not None:
        _check_forced(
            spec, forced, same_database=same_database, native_source=native_source, computes=computes
        )
        return Choice("path", forced, f"asked for by force_path={spec.force_path!r}")
    if same_database and target.same_db:
        return Choice(
            "path", "same_db", "source and target are one database: no row leaves it, Spark is not started"
        )
    if native_source:
        return Choice("path", "spark", "the source is files, which Spark reads and queries itself")
    if computes:
        return Choice("path", "spark", f"{computes} must be computed between source and target")
    return Choice("path", "copy", "two systems and nothing to compute: Arrow batches go straight to staging")


def _check_forced(
    spec: PipelineSpec, forced: str, *, same_database: bool, native_source: bool, computes: str | None
) -> None:
    problem = None
    if forced == "same_db" and not same_database:
        problem = "source and target are not the same database"
    elif forced == "copy" and native_source:
        problem = "a file source is read by Spark; there is nothing to copy from"
    elif forced == "copy" and computes:
        problem = f"{computes} must be computed, and the copy path computes nothing"
    if problem:
        raise Unsupported(
            f"pipeline {spec.name!r} asks for force_path={forced!r}, but {problem}",
            where=spec.where,
            next_step="leave force_path= out, or choose another path",
        )


def derive_guarantee(spec: PipelineSpec, target: Capabilities, target_kind: str) -> Choice:
    """What source, strategy and target can prove together; refuses a promise beyond it."""
    if target.transactions:
        given = Choice("guarantee", "exactly_once", "rows, ledger entry and watermark commit together")
    else:
        given = Choice(
            "guarantee", "at_least_once", f"a {target_kind} target has no transaction to commit with"
        )
    if spec.guarantee == "exactly_once" and given.value != "exactly_once":
        raise GuaranteeRefused(
            f"pipeline {spec.name!r} declares guarantee='exactly_once', which cannot be kept: {given.reason}",
            where=spec.where,
            next_step="declare guarantee='at_least_once', or load into a target with transactions",
        )
    return given
