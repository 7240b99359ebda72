"""A declared stream: its sources, its transform, its targets. Frozen values with a JSON form.

A stream is one long-running load. The connection defines the format of the payloads; a target applies each
batch by the same strategy as a batch pipeline.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.expectations import NO_EXPECTATIONS, ExpectationsSpec
from ematix_flow.spec.joins import Join
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import (
    ConnectionRef,
    DriftPolicy,
    FileOptions,
    connection_label,
    connection_ref_from_json,
    connection_ref_to_json,
    require_connection_ref,
)
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.udfs import UdfHandle, function_reference, load_function
from ematix_flow.spec.windows import StateStore, Watermark, Window

StreamMode = Literal["append", "merge", "scd2"]
ErrorPolicy = Literal["fail", "drop", "dlq"]
DeadLetterKind = Literal["auto", "topic", "table", "broker"]
Delivery = Literal["auto", "at_least_once", "exactly_once"]
STREAM_MODES: tuple[StreamMode, ...] = get_args(StreamMode)
ERROR_POLICIES: tuple[ErrorPolicy, ...] = get_args(ErrorPolicy)
DEAD_LETTER_STORES: tuple[DeadLetterKind, ...] = get_args(DeadLetterKind)
DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)
SPARK_DIALECTS = ("spark", "datafusion")  # SQL in these dialects is passed to Spark unchanged
BROKERS = ("kafka", "rabbitmq", "pubsub", "kinesis")


def require_time_zone(starting: object) -> None:
    """Require a time zone in ``starting``: without one, the time would depend on the machine."""
    if isinstance(starting, dt.datetime) and starting.tzinfo is None:
        raise DeclarationError(
            f"starting={starting!s} has no time zone", next_step='write it as in "2026-01-31T00:00:00Z"'
        )


@dataclass(frozen=True)
class StreamSourceSpec:
    """One source of a stream: a topic, queue, subscription, Kinesis stream, folder or table."""

    connection: ConnectionRef
    query: str
    starting: str | dt.datetime | None = None  # None: the connection's setting, else earliest
    files: FileOptions = field(default_factory=FileOptions)
    options: tuple[tuple[str, str], ...] = ()
    columns: TableSpec | None = None  # of its payloads, if declared; for a source of a join

    def __post_init__(self) -> None:
        require_connection_ref(self.connection)

    @property
    def label(self) -> str:
        named = connection_label(self.connection)
        return f"{named}:{self.query}" if self.query else named

    def to_json(self) -> dict[str, Any]:
        starting = self.starting
        return {
            "connection": connection_ref_to_json(self.connection),
            "query": self.query,
            "starting": {"at": starting.isoformat()} if isinstance(starting, dt.datetime) else starting,
            "files": self.files.to_json(),
            "options": [list(pair) for pair in self.options],
            "columns": self.columns.to_json() if self.columns else None,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StreamSourceSpec:
        starting = value["starting"]
        if isinstance(starting, dict):
            starting = dt.datetime.fromisoformat(starting["at"])
        return cls(
            connection=connection_ref_from_json(value["connection"]),
            query=value["query"],
            starting=starting,
            files=FileOptions.from_json(value["files"]),
            options=tuple((pair[0], pair[1]) for pair in value["options"]),
            columns=TableSpec.from_json(value["columns"]) if value.get("columns") else None,
        )


@dataclass(frozen=True)
class StreamTargetSpec:
    """One target of a stream.

    A database or lake has a declared ``table`` or only a ``table_name``; files have a ``prefix``; a broker
    has a ``topic``, a ``queue`` or, for Kinesis, the stream of the connection.
    """

    connection: ConnectionRef
    table: TableSpec | None = None
    table_name: tuple[str | None, str] | None = None
    prefix: str | None = None
    topic: str | None = None
    queue: str | None = None
    partition_key_prefix: str | None = None
    message_key_column: str | None = None
    headers_column: str | None = None
    partition_column: str | None = None
    mode: StreamMode = "append"
    keys: tuple[str, ...] = ()
    update_columns: tuple[str, ...] | None = None
    compare_columns: tuple[str, ...] | None = None
    event_timestamp_column: str | None = None
    partition_by: tuple[str, ...] = ()
    files: FileOptions = field(default_factory=FileOptions)

    def __post_init__(self) -> None:
        require_connection_ref(self.connection)

    @property
    def destination(self) -> str:
        """The name of the target within its connection."""
        if self.table is not None:
            return self.table.label
        if self.table_name is not None:
            schema, name = self.table_name
            return f"{schema}.{name}" if schema else name
        return self.prefix or self.topic or self.queue or self.partition_key_prefix or ""

    @property
    def label(self) -> str:
        return f"{connection_label(self.connection)}:{self.destination}"

    @property
    def is_broker(self) -> bool:
        """Whether the target is a broker, which receives messages."""
        return self.table is None and self.table_name is None and self.prefix is None

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN_TARGET_FIELDS},
            "connection": connection_ref_to_json(self.connection),
            "table": self.table.to_json() if self.table else None,
            "table_name": list(self.table_name) if self.table_name else None,
            "keys": list(self.keys),
            "update_columns": None if self.update_columns is None else list(self.update_columns),
            "compare_columns": None if self.compare_columns is None else list(self.compare_columns),
            "partition_by": list(self.partition_by),
            "files": self.files.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StreamTargetSpec:
        def listed(names: list[str] | None) -> tuple[str, ...] | None:
            return None if names is None else tuple(names)

        named = value["table_name"]
        return cls(
            **{
                **value,
                "connection": connection_ref_from_json(value["connection"]),
                "table": TableSpec.from_json(value["table"]) if value["table"] else None,
                "table_name": (named[0], named[1]) if named else None,
                "keys": tuple(value["keys"]),
                "update_columns": listed(value["update_columns"]),
                "compare_columns": listed(value["compare_columns"]),
                "partition_by": tuple(value["partition_by"]),
                "files": FileOptions.from_json(value["files"]),
            }
        )


_PLAIN_TARGET_FIELDS = (
    "prefix",
    "topic",
    "queue",
    "partition_key_prefix",
    "message_key_column",
    "headers_column",
    "partition_column",
    "mode",
    "event_timestamp_column",
)


@dataclass(frozen=True)
class DeadLetterSpec:
    """Where messages go that cannot be loaded: into a table, and with a topic also there.

    ``store`` is ``table`` for the table alone; ``topic`` needs a topic. ``broker`` rejects the message at the
    source, for RabbitMQ's dead-letter exchange.
    """

    store: DeadLetterKind = "auto"
    topic: str | None = None
    table: str | None = None
    connection: ConnectionRef | None = (
        None  # of the table, or Kafka for the topic; None: the store on this machine
    )
    max_attempts: int = 3

    def __post_init__(self) -> None:
        require_connection_ref(self.connection)

    def to_json(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "topic": self.topic,
            "table": self.table,
            "connection": connection_ref_to_json(self.connection),
            "max_attempts": self.max_attempts,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DeadLetterSpec:
        return cls(**{**value, "connection": connection_ref_from_json(value["connection"])})


@dataclass(frozen=True)
class LookupSpec:
    """Rows for joins in ``transform_sql``: a table or a query of another connection."""

    name: str
    connection: ConnectionRef
    query: str | None = None
    table: str | None = None
    refresh_interval_ms: int | None = None

    def __post_init__(self) -> None:
        require_connection_ref(self.connection)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "connection": connection_ref_to_json(self.connection)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LookupSpec:
        return cls(**{**value, "connection": connection_ref_from_json(value["connection"])})


@dataclass(frozen=True)
class StreamSpec:
    """A streaming pipeline as declared."""

    name: str
    sources: tuple[StreamSourceSpec, ...]
    targets: tuple[StreamTargetSpec, ...]
    transform_sql: str | None = None
    dialect: str | None = None  # dialect of transform_sql, if it is not Spark's
    lookups: tuple[LookupSpec, ...] = ()
    functions: tuple[UdfHandle, ...] = ()  # that transform_sql calls
    window: Window | None = None
    join: Join | None = None
    watermark: Watermark | None = None
    state_store: StateStore | None = None
    cdc: CDC | None = None  # the messages are change events of a table
    expectations: ExpectationsSpec = NO_EXPECTATIONS
    on_error: ErrorPolicy = "fail"
    dead_letters: DeadLetterSpec = DeadLetterSpec()
    columns: TableSpec | None = None  # the columns of a payload, if declared
    idle_pause_ms: int = 500
    max_rows_per_batch: int | None = None
    delivery: Delivery = "auto"
    continue_on_target_failure: bool = False
    on_drift: DriftPolicy = "error"
    fail_on_data_loss: bool = True
    checkpoint: str | None = None  # a folder; None: below the state root
    description: str | None = None
    where: SourceLocation | None = field(default=None, compare=False)

    @property
    def connections(self) -> tuple[ConnectionRef, ...]:
        """The connections of its sources, lookups and targets."""
        read = (*(each.connection for each in self.sources), *(each.connection for each in self.lookups))
        return (*read, *(target.connection for target in self.targets))

    @property
    def is_stateful(self) -> bool:
        """Whether rows of one batch change what a later batch loads."""
        return self.window is not None or self.join is not None

    @property
    def joined_sources(self) -> tuple[int, int]:
        """The numbers of the left and of the right source of the join."""
        assert self.join is not None
        left, right = (self._source_number(name) for name in self.join.named_sources)
        return left, right

    def _source_number(self, name: str) -> int:
        """The number of the source with this query, or with this label if several have the query."""
        labels = [number for number, each in enumerate(self.sources) if each.label == name]
        found = labels or [number for number, each in enumerate(self.sources) if each.query == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise DeclarationError(
                f"two sources are called {name!r}",
                where=self.where,
                next_step=f"write  {self.sources[found[0]].label!r}  or  {self.sources[found[1]].label!r}",
            )
        names = [each.query for each in self.sources]
        hint = did_you_mean(name, names) or f" The sources are {', '.join(names)}"
        raise DeclarationError(
            f"the join names a source {name!r}, which is not there.{hint}", where=self.where
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN_STREAM_FIELDS},
            "sources": [s.to_json() for s in self.sources],
            "targets": [t.to_json() for t in self.targets],
            "lookups": [lookup.to_json() for lookup in self.lookups],
            "functions": [function_reference(function) for function in self.functions],
            "window": self.window.to_json() if self.window else None,
            "join": self.join.to_json() if self.join else None,
            "watermark": asdict(self.watermark) if self.watermark else None,
            "state_store": self.state_store.to_json() if self.state_store else None,
            "cdc": self.cdc.to_json() if self.cdc else None,
            "expectations": self.expectations.to_json(),
            "dead_letters": self.dead_letters.to_json(),
            "columns": self.columns.to_json() if self.columns else None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamSpec:
        return cls(
            **{
                **value,
                "sources": tuple(StreamSourceSpec.from_json(s) for s in value["sources"]),
                "targets": tuple(StreamTargetSpec.from_json(t) for t in value["targets"]),
                "lookups": tuple(LookupSpec.from_json(lookup) for lookup in value["lookups"]),
                "functions": tuple(load_function(reference) for reference in value.get("functions", ())),
                "window": Window.from_json(value["window"]) if value.get("window") else None,
                "join": Join.from_json(value["join"]) if value.get("join") else None,
                "watermark": Watermark(**value["watermark"]) if value.get("watermark") else None,
                "state_store": StateStore(**value["state_store"]) if value.get("state_store") else None,
                "cdc": CDC.from_json(value["cdc"]) if value.get("cdc") else None,
                "expectations": ExpectationsSpec.from_json(value.get("expectations")),
                "dead_letters": DeadLetterSpec.from_json(value["dead_letters"]),
                "columns": TableSpec.from_json(value["columns"]) if value["columns"] else None,
            }
        )


_PLAIN_STREAM_FIELDS = (
    "name",
    "transform_sql",
    "dialect",
    "on_error",
    "idle_pause_ms",
    "max_rows_per_batch",
    "delivery",
    "continue_on_target_failure",
    "on_drift",
    "fail_on_data_loss",
    "checkpoint",
    "description",
)
