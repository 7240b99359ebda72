"""What the sources and a target of a stream can promise together, whatever its messages hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.base import Backend
from ematix_flow.backends.messages.contract import MessageTarget
from ematix_flow.engine.connections import Connections
from ematix_flow.errors import GuaranteeRefused, Unsupported
from ematix_flow.plan.definition import Choice
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec

_EXACT = ("kafka", "kinesis", "delta_local", "delta_s3", "object_store_local", "object_store_s3")


@dataclass(frozen=True)
class ExpectedTarget:
    """What is known of a target before the first message is: all but the columns it will get."""

    target: StreamTargetSpec
    guarantee: Choice

    @property
    def open_question(self) -> str:
        what = "what a message holds comes" if self.target.is_broker else "the table's columns come"
        return f"{what} with the first messages"

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target.label,
            "mode": self.target.mode,
            "keys": list(self.target.keys),
            "guarantee": self.guarantee.value,
            "reason": self.guarantee.reason,
            "changes": [],
            "warnings": [],
            "open": self.open_question,
        }


def expected_targets(spec: StreamSpec, connections: Connections) -> tuple[ExpectedTarget, ...]:
    """Every target as declared, with its guarantee; refuses what it cannot do whatever comes. Asks none."""
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


def describe_target(target: StreamTargetSpec, guarantee: Choice) -> list[str]:
    """A target's lines in a plan as text."""
    keys = f"  (keys {', '.join(target.keys)})" if target.keys else ""
    return [
        f"  {target.mode:9} into {target.label}{keys}",
        f"              {guarantee.value}: {guarantee.reason}",
    ]


def require_mode(target: StreamTargetSpec, backend: Backend) -> None:
    """Refuse a mode that tables of this kind cannot be loaded with."""
    if target.mode not in backend.capabilities.strategies:
        raise Unsupported(
            f"mode {target.mode!r} cannot be used with a target of kind {backend.kind!r}",
            next_step=f"modes of {backend.kind}: {', '.join(sorted(backend.capabilities.strategies))}",
        )


def stream_guarantee(
    spec: StreamSpec, target: StreamTargetSpec, connections: Connections, backend: Backend
) -> Choice:
    """What the sources and this target can prove together; refuses a promise beyond it."""
    loose = [s for s in spec.sources if connections.backend(s.connection).kind not in _EXACT]
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
        return Choice(
            "guarantee",
            "at_least_once",
            "messages are confirmed; delivery='exactly_once' sends them in transactions",
        )
    if reason is None:
        together = (
            "messages and the batch's name" if sends is not None else "rows and the ledger entry of the batch"
        )
        return Choice("guarantee", "exactly_once", f"{together} commit together")
    if spec.delivery == "exactly_once":
        raise GuaranteeRefused(
            f"pipeline {spec.name!r} declares delivery='exactly_once', which cannot be kept: {reason}",
            where=spec.where,
            next_step=next_step,
        )
    return Choice("guarantee", "at_least_once", reason)
