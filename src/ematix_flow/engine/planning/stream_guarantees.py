"""The delivery guarantee that the sources and a target of a stream can give together."""

from __future__ import annotations

from ematix_flow.backends.base import Backend
from ematix_flow.backends.messages.base import MessageTarget
from ematix_flow.engine.connections import Connections
from ematix_flow.errors import GuaranteeRefused, Unsupported
from ematix_flow.plan.decisions import Decision
from ematix_flow.plan.stream_definition import ExpectedTarget
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec

_SOURCES_WITH_POSITIONS = (
    "kafka",
    "kinesis",
    "delta_local",
    "delta_s3",
    "object_store_local",
    "object_store_s3",
)


def expected_targets(spec: StreamSpec, connections: Connections) -> tuple[ExpectedTarget, ...]:
    """Every declared target with its guarantee. Refuses unsupported modes; connects to no target."""
    found: list[ExpectedTarget] = []
    for target in spec.targets:
        backend = connections.backend(target.connection)
        guarantee = stream_guarantee(spec, target, connections, backend)
        if backend.message_target() is None:
            try:
                require_mode(target, backend)
            except Unsupported as error:
                raise error.with_location(spec.where) from None
        found.append(ExpectedTarget(target, guarantee))
    return tuple(found)


def require_mode(target: StreamTargetSpec, backend: Backend) -> None:
    """Refuse a mode that targets of this kind do not support."""
    if target.mode not in backend.capabilities.strategies:
        raise Unsupported(
            f"mode {target.mode!r} cannot be used with a target of kind {backend.kind!r}",
            next_step=f"modes of {backend.kind}: {', '.join(sorted(backend.capabilities.strategies))}",
        )


def stream_guarantee(
    spec: StreamSpec, target: StreamTargetSpec, connections: Connections, backend: Backend
) -> Decision:
    """The guarantee of the sources and this target. Refuses a stronger ``delivery=``."""
    loose = [s for s in spec.sources if connections.backend(s.connection).kind not in _SOURCES_WITH_POSITIONS]
    sends = backend.message_target()
    reason, next_step = None, "declare delivery='at_least_once', or leave it out"
    if loose:
        kind = connections.backend(loose[0].connection).kind
        reason = f"{kind} has no positions: what a crash left unacknowledged may come again under no name"
    elif isinstance(sends, MessageTarget) and not sends.transactions:
        reason = f"a target of kind {backend.kind!r} has no transactions"
    elif sends is None and not backend.capabilities.transactions:
        reason = f"a target of kind {backend.kind!r} has no transaction to commit with"
    if reason is None and sends is not None and spec.delivery != "exactly_once":
        return Decision(
            "guarantee",
            "at_least_once",
            "messages are confirmed; delivery='exactly_once' sends them in transactions",
        )
    if reason is None:
        together = (
            "messages and the batch's name" if sends is not None else "rows and the ledger entry of the batch"
        )
        return Decision("guarantee", "exactly_once", f"{together} commit together")
    if spec.delivery == "exactly_once":
        raise GuaranteeRefused(
            f"pipeline {spec.name!r} declares delivery='exactly_once', which cannot be kept: {reason}",
            where=spec.where,
            next_step=next_step,
        )
    return Decision("guarantee", "at_least_once", reason)
