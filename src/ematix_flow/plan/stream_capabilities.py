"""Refuses what a system cannot do in a stream: message parts, batch limits, error policies, dead letters.

Checked when a stream is declared, as far as its connections are known, and again when it is planned. Imports
nothing heavy, because declarations import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.streams import BROKERS, SPARK_DIALECTS, StreamSpec, StreamTargetSpec

STREAM_VIEW = "source"  # the name of the stream in transform_sql

_MISSING_IN_SOURCE = {"rabbitmq": ("_partition",), "pubsub": ("_partition",), "kinesis": ("_headers",)}
_MISSING_IN_TARGET = {
    "rabbitmq": ("partition_column",),
    "pubsub": ("partition_column",),
    "kinesis": ("headers_column", "partition_column"),
}
_BY_FILES, _BY_DELTA = '"max_files": 100', '"max_files_per_trigger": 100 or "max_bytes_per_trigger": "512m"'
_LIMITED_BY = {
    "object_store_local": _BY_FILES,
    "object_store_s3": _BY_FILES,
    "delta_local": _BY_DELTA,
    "delta_s3": _BY_DELTA,
}
_CHANGE_TARGETS = ("postgres", "mysql", "sqlite", "duckdb", "delta_local", "delta_s3")
_INSTEAD = {("kinesis", "partition_column"): "message_key_column= decides to which shard a record goes"}


def check_target_message_parts(
    target: StreamTargetSpec, kind: str | None, where: SourceLocation | None
) -> None:
    """Refuse column options of a target that messages of its broker do not have."""
    for option in _MISSING_IN_TARGET.get(kind or "", ()):
        if getattr(target, option) is not None:
            having = [broker for broker in BROKERS if option not in _MISSING_IN_TARGET.get(broker, ())]
            raise DeclarationError(
                f"{option}= is for a target of kind {' or '.join(having)}: "
                f"a message of {kind} has no {_part_name(option)}",
                where=where,
                next_step=_INSTEAD.get((kind or "", option), f"leave {option}= out"),
            )


def check_change_target(target: StreamTargetSpec, kind: str | None, where: SourceLocation | None) -> None:
    """Refuse ``cdc=`` for a target that cannot update and delete rows."""
    if kind in _CHANGE_TARGETS or (kind is None and not target.is_broker and target.prefix is None):
        return
    if kind is None or kind in BROKERS:
        reason = "a broker takes messages, and has no rows to update or delete"
    elif kind.startswith("object_store"):
        reason = "its files never change, so that a row cannot be updated or deleted"
    else:
        reason = "it is not tested with change events"
    raise DeclarationError(
        f"cdc= cannot load {target.label}{f' of kind {kind!r}' if kind else ''}: {reason}",
        where=where,
        next_step="load a database or a Delta table, which can lie in the same object store",
    )


def check_source_message_parts(spec: StreamSpec, kinds: Iterable[str | None]) -> None:
    """Refuse metadata columns that the declaration or the SQL names and the source's messages do not have."""
    for kind in kinds:
        for column in _MISSING_IN_SOURCE.get(kind or "", ()):
            named_by = _option_naming(spec, column)
            if named_by is not None:
                having = [broker for broker in BROKERS if column not in _MISSING_IN_SOURCE.get(broker, ())]
                raise DeclarationError(
                    f"{named_by} names {column}, and a message of {kind} has no {_part_name(column)}",
                    where=spec.where,
                    next_step=f"leave it out: it is there for messages of {', '.join(having)}",
                )


def check_batch_limit(spec: StreamSpec, kinds: Iterable[str | None]) -> None:
    """Refuse ``max_rows_per_batch=`` for a source that limits a batch by files or bytes."""
    if spec.max_rows_per_batch is None:
        return
    for kind in kinds:
        if kind in _LIMITED_BY:
            raise DeclarationError(
                f"max_rows_per_batch= counts messages, and a source of kind {kind} brings "
                f"{'versions of a table' if 'delta' in kind else 'whole files'}",
                where=spec.where,
                next_step=f"leave it out; source_options={{{_LIMITED_BY[kind]}}} limits a batch there",
            )


def check_error_policy(spec: StreamSpec, kinds: Iterable[str | None]) -> None:
    """Refuse an error policy for messages if the source has rows of files."""
    if spec.on_error == "fail":
        return
    for kind in kinds:
        if kind in _LIMITED_BY:
            raise DeclarationError(
                f"transform_on_error={spec.on_error!r} is for messages, and a source of kind {kind} brings "
                "rows of files: one that cannot be read stops the stream, and the error names file and line",
                where=spec.where,
                next_step="leave it out; move a file that cannot be fixed out of the folder, and run the "
                "stream with fail_on_data_loss=False, which goes on without it",
            )


def check_quarantine(spec: StreamSpec, kinds: Sequence[str | None]) -> None:
    """Refuse ``quarantine=ematix.DEAD_LETTERS`` where a failing row is not that of one message.

    ``kinds`` are those of the sources; None if not known.
    """
    if not spec.expectations.to_dead_letters:
        return
    files = [kind for kind in kinds if kind in _LIMITED_BY]
    table, reason = "leave quarantine= out: failing rows then go to the table <table>__quarantine", ""
    if files:
        reason = f"a source of kind {files[0]} brings rows, not messages"
    elif spec.transform_sql is not None:
        reason = "a row of transform_sql= may come from several messages, or from none"
    elif spec.is_stateful:
        reason = f"a row of a {'window' if spec.join is None else 'join'} comes from several messages"
    elif any(target.mode == "merge" for target in spec.targets):
        reason = (
            "mode='merge' loads the last message of each key, and a dead letter that is replayed later "
            "would replace a newer row"
        )
        table += ", which loses those that a later row replaces"
    elif spec.on_error != "dlq":
        reason, table = "the stream has no dead letters", "set transform_on_error='dlq'"
    elif spec.dead_letters.store == "broker":
        reason = "dlq_store='broker' hands a message back to the broker, which cannot replay it"
        table = f"leave dlq_store= out; or {table}"
    elif len(spec.targets) > 1 and not spec.continue_on_target_failure:
        reason = "a message that fails for one of several targets would be in the others already"
        table = f"set continue_on_target_failure=True, which loads each target by itself; or {table}"
    if reason:
        raise DeclarationError(
            f"quarantine=ematix.DEAD_LETTERS cannot put failing rows aside here: {reason}",
            where=spec.where,
            next_step=table,
        )


def check_dead_letters(spec: StreamSpec, kinds: Sequence[str | None], store_kind: str | None) -> None:
    """Refuse a dead letter topic without a Kafka connection, and ``broker`` without RabbitMQ.

    ``kinds`` are those of the sources, ``store_kind`` that of ``dead_letter_connection=``; None if not known.
    """
    letters = spec.dead_letters
    others = [kind for kind in kinds if kind is not None and kind != "rabbitmq"]
    if letters.store == "broker" and others:
        raise DeclarationError(
            "dlq_store='broker' works with RabbitMQ, whose queues have dead-letter exchanges, "
            f"and a source is of kind {others[0]}",
            where=spec.where,
            next_step="leave dlq_store= out: dead letters are then kept in a table",
        )
    is_known = None not in kinds and (store_kind is not None or letters.connection is None)
    if letters.topic is not None and is_known and "kafka" not in (*kinds, store_kind):
        store = f" and dead_letter_connection= is of kind {store_kind}" if store_kind is not None else ""
        raise DeclarationError(
            "dead_letter_topic= needs a Kafka connection, but the source is of kind "
            f"{' and '.join(sorted({str(kind) for kind in kinds}))}{store}",
            where=spec.where,
            next_step="pass a Kafka connection as dead_letter_connection=, or leave dead_letter_topic= out",
        )


def _part_name(part: str) -> str:
    return "headers" if "headers" in part else "partition"


def _option_naming(spec: StreamSpec, column: str) -> str | None:
    if spec.columns is not None and column in {each.name for each in spec.columns.columns}:
        return "source_columns="
    if spec.transform_sql is not None:
        return "transform_sql" if _sql_reads(spec, column) else None
    for target in spec.targets:
        if target.table is not None and column in {each.name for each in target.table.columns}:
            return f"table {target.table.label}"
    return None


def _sql_reads(spec: StreamSpec, column: str) -> bool:
    """Whether the SQL certainly reads this column from the stream, instead of computing or joining it."""
    sql = spec.transform_sql or ""
    if not re.search(rf"(?<!\w){column}(?!\w)", sql, re.IGNORECASE):
        return False
    from sqlglot import exp, parse_one
    from sqlglot.errors import SqlglotError

    spoken = "spark" if spec.dialect is None or spec.dialect in SPARK_DIALECTS else spec.dialect
    try:
        tree = parse_one(sql, read=spoken)
    except (SqlglotError, ValueError):  # Spark reports the error when it runs the SQL
        return False
    if any(alias.alias.lower() == column for alias in tree.find_all(exp.Alias)):
        return False
    stream = [table for table in tree.find_all(exp.Table) if table.name.lower() == STREAM_VIEW]
    qualifiers = {table.alias_or_name.lower() for table in stream}
    if not spec.lookups:
        qualifiers.add("")
    found = (each for each in tree.find_all(exp.Column) if each.name.lower() == column)
    return any(each.table.lower() in qualifiers for each in found)
