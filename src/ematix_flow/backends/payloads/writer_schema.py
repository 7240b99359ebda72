"""Chooses the registered schema that Avro and Protobuf encoders write with.

That is the subject's latest schema if it holds the columns. Otherwise, if registration is allowed, it is a
new one made from the columns. The choice is made once, on the driver.
"""

from __future__ import annotations

from collections.abc import Callable

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.registry import RegisteredSchema
from ematix_flow.backends.payloads.registry_clients import registry_of, subject_of
from ematix_flow.errors import SchemaMismatch


def target_record_name(payload: PayloadSpec) -> str:
    """The full name of the record that rows of this topic are written as."""
    return payload.message or f"ematix_flow.{payload.topic or 'record'}"


def choose_schema(
    payload: PayloadSpec,
    kind: str,
    why_not: Callable[[RegisteredSchema], str],
    derived: Callable[[RegisteredSchema | None], str],
) -> RegisteredSchema:
    """The schema to write with. ``why_not`` returns why the latest cannot hold the columns, or nothing."""
    registry = registry_of(payload)
    subject = subject_of(payload, lambda: target_record_name(payload))
    latest = registry.latest_schema(subject)
    why = "there is none yet"
    if latest is not None:
        why = why_not(latest) if latest.type == kind else f"it is {latest.type.title()}, not {kind.title()}"
        if not why:
            return latest
    if not payload.register or (latest is not None and latest.type != kind):
        raise SchemaMismatch(
            f"the columns cannot be written with the latest schema of subject {subject!r}: {why}",
            state="nothing was sent",
            next_step="register a schema that holds these columns, or send to another topic",
        )
    text = derived(latest)
    return RegisteredSchema(registry.register(subject, text, kind), text, kind)


# a column of the first kind fits into a field of any of the others without loss
WIDER_KINDS = {
    "small_int": ("integer", "big_int", "float", "double"),
    "integer": ("big_int", "double"),
    "float": ("double",),
    "string": ("text",),
    "text": ("string",),
    "json": ("text", "jsonb"),
    "jsonb": ("text", "json"),
    "uuid": ("text",),
}


def fits_without_loss(column_kind: str, field_kind: str) -> bool:
    return column_kind == field_kind or field_kind in WIDER_KINDS.get(column_kind, ())
