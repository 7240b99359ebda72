"""The options of a streaming pipeline as a user writes them: each is declared here, once.

Decorator, call and TOML file fill the same value. The rules are in `api.stream_options`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ematix_flow.api.target import DeclaredTable, Target
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.declared_fields import check_location
from ematix_flow.spec.expectations import DeadLetters, OnFail
from ematix_flow.spec.joins import Join
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import ConnectionRef, DriftPolicy
from ematix_flow.spec.streams import DeadLetterKind, Delivery, ErrorPolicy, StreamMode
from ematix_flow.spec.udfs import PythonAggregateUdfHandle, PythonScalarUdfHandle
from ematix_flow.spec.windows import StateStore, Watermark, Window

_SINGLE_SOURCE_OPTIONS = (
    "source_query",
    "starting",
    "source_options",
    "csv_read_options",
    "json_read_options",
)
_SINGLE_TARGET_OPTIONS = (
    "target_table",
    "target_topic",
    "target_queue",
    "target_partition_key_prefix",
    "target_prefix",
    "target_message_key_column",
    "target_headers_column",
    "target_partition_column",
    "target_partition_by",
    "target_primary_key",
)


@dataclass(frozen=True)
class Source:
    """A connection and what the stream follows there: a topic, queue, subscription, folder or table."""

    connection: ConnectionRef
    query: str
    starting: str | dt.datetime | None = None  # "earliest", "latest" or a time
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Any = None  # of a source of a join: a declared table, as source_columns= takes it
    where: SourceLocation | None = field(
        default=None, repr=False, compare=False
    )  # set when a file declares it

    def __post_init__(self) -> None:
        check_location(self.where)


@dataclass(frozen=True)
class Lookup:
    """Rows of another connection for joins in ``transform_sql``: a ``query`` or a whole ``table``."""

    connection: ConnectionRef
    query: str | None = None
    table: DeclaredTable | str | tuple[str, str] | None = None
    schema: str = ""
    refresh_interval_ms: int | None = None
    where: SourceLocation | None = field(
        default=None, repr=False, compare=False
    )  # set when a file declares it

    def __post_init__(self) -> None:
        check_location(self.where)


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """All options of one stream."""

    name: str
    source: ConnectionRef | None = None
    source_query: str | None = None
    sources: Sequence[Source] | None = None
    source_columns: Any = None
    starting: str | dt.datetime | None = None
    source_options: Mapping[str, Any] | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    target: ConnectionRef | DeclaredTable | None = None  # with target_connection=, the table
    target_connection: ConnectionRef | None = None
    target_table: DeclaredTable | str | tuple[str, str] | None = None
    target_topic: str | None = None
    target_queue: str | None = None
    target_partition_key_prefix: str | None = None
    target_prefix: str | None = None
    target_message_key_column: str | None = None
    target_headers_column: str | None = None
    target_partition_column: str | None = None
    target_partition_by: Sequence[str] | None = None
    target_primary_key: Sequence[str] | None = None
    targets: Sequence[Target] | None = None
    mode: StreamMode | Literal["scd1"] = "append"
    keys: Sequence[str] | None = None
    update_columns: Sequence[str] | None = None
    compare_columns: Sequence[str] | None = None
    event_timestamp_column: str | None = None
    transform_sql: str | None = None
    transform_on_error: ErrorPolicy | None = None
    dialect: str | None = None
    lookups: Mapping[str, Lookup] | None = None
    udfs: Sequence[PythonScalarUdfHandle] | None = None
    aggregate_udfs: Sequence[PythonAggregateUdfHandle] | None = None
    window: Window | None = None
    join: Join | None = None
    watermark: Watermark | None = None
    state_store: StateStore | None = None
    cdc: CDC | None = None
    expectations: Any = None
    on_fail: OnFail | None = None
    on_quality_failure: OnFail | None = None
    alert_on_quality_warn: bool = False
    quarantine: str | DeadLetters | None = None
    dead_letter_topic: str | None = None
    dead_letter_table: str | None = None
    dead_letter_connection: ConnectionRef | None = None
    dlq_store: DeadLetterKind | None = None
    dlq_max_attempts: int | None = None
    idle_pause_ms: int = 500
    max_rows_per_batch: int | None = None
    delivery: Delivery | None = None
    guarantee: Delivery | None = None
    continue_on_target_failure: bool = False
    on_drift: DriftPolicy = "error"
    fail_on_data_loss: bool = True
    checkpoint: str | None = None
    description: str | None = None

    def check_alternatives(self, where: SourceLocation | None) -> None:
        """Refuse two options that say the same, and a missing source or target."""
        if (self.source is None) == (self.sources is None):
            raise DeclarationError(
                "a streaming pipeline takes source= with source_query=, or sources=: give one of them",
                where=where,
            )
        if (self.target is None and self.target_connection is None) == (self.targets is None):
            raise DeclarationError(
                "a streaming pipeline takes target= or targets=, exactly one of them", where=where
            )
        if self.delivery is not None and self.guarantee is not None:
            raise DeclarationError("delivery= and guarantee= mean the same: give one of them", where=where)
        if self.target is not None and self.target_connection is not None and self.target_table is not None:
            raise DeclarationError(
                "with target_connection=, both target= and target_table= name the table: give one of them",
                where=where,
            )

    def all_sources(self) -> Sequence[Source]:
        """The sources, or the single one that ``source=`` and its options describe."""
        if self.sources is not None:
            return self.sources
        assert self.source is not None
        return [
            Source(
                self.source,
                self.source_query or "",
                self.starting,
                self.csv_read_options,
                self.json_read_options,
                self.source_options or {},
            )
        ]

    def all_targets(self) -> Sequence[Target]:
        """The targets, or the single one that ``target=`` and its options describe."""
        if self.targets is not None:
            return self.targets
        # with target_connection=, target= is the declared table, as in a batch pipeline; `Target` checks both
        if self.target_connection is None:
            connection, table = cast("ConnectionRef | None", self.target), self.target_table
        else:
            connection = self.target_connection
            table = self.target_table if self.target is None else cast("DeclaredTable", self.target)
        return [
            Target(
                connection=connection,
                table=table,
                topic=self.target_topic,
                queue=self.target_queue,
                partition_key_prefix=self.target_partition_key_prefix,
                prefix=self.target_prefix,
                message_key_column=self.target_message_key_column,
                headers_column=self.target_headers_column,
                partition_column=self.target_partition_column,
                partition_by=self.target_partition_by,
                primary_key=self.target_primary_key,
            )
        ]

    def refuse_single_options(self, where: SourceLocation | None) -> None:
        """Refuse options for a single source or target next to ``sources=`` or ``targets=``."""
        refused = [
            *(("sources", option) for option in _SINGLE_SOURCE_OPTIONS if self.sources is not None),
            *(("targets", option) for option in _SINGLE_TARGET_OPTIONS if self.targets is not None),
        ]
        for several, option in refused:
            if getattr(self, option) is not None:
                each = "Source(…)" if several == "sources" else "Target(…)"
                raise DeclarationError(
                    f"{option}= is for a single {several[:-1]}; with {several}= set it in each {each}",
                    where=where,
                )
