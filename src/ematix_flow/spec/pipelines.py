"""A pipeline, its targets and transforms as frozen values with a JSON round trip.

A spec says what was declared. The function behind it is named, not held; the registry holds it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.connections import Connection, connection_from_json
from ematix_flow.spec.expectations import NO_EXPECTATIONS, ExpectationsSpec
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.retry_policy import RetryPolicy
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.transforms import PreTransform, pre_transform_from_json
from ematix_flow.spec.udfs import UdfHandle, function_reference, load_function

Mode = Literal["append", "truncate", "merge", "scd2"]
DeclaredMode = Mode | Literal["scd1"]  # as a user may write it: scd1 is another name of merge
DeletePolicy = Literal["hard", "soft"]
DriftPolicy = Literal["error", "warn", "evolve"]
ForcedPath = Literal["same_db", "copy", "spark", "cross_db"]
Guarantee = Literal["exactly_once", "at_least_once"]
MODES: tuple[Mode, ...] = get_args(Mode)
DELETE_POLICIES: tuple[DeletePolicy, ...] = get_args(DeletePolicy)
DRIFT_POLICIES: tuple[DriftPolicy, ...] = get_args(DriftPolicy)
FORCED_PATHS: tuple[ForcedPath, ...] = get_args(ForcedPath)
GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)

ConnectionRef = str | Connection


def require_connection_ref(reference: object) -> None:
    """Raise DeclarationError unless the value is a connection, the name of one, or None."""
    if reference is not None and not isinstance(reference, str | Connection):
        raise DeclarationError(
            f"expected a connection or its name, not {reference!r}",
            next_step='write its name, as in target_connection="warehouse"',
        )


def connection_label(reference: ConnectionRef) -> str:
    return reference if isinstance(reference, str) else reference.name


def connection_ref_to_json(reference: ConnectionRef | None) -> Any:
    return reference.to_json() if isinstance(reference, Connection) else reference


def connection_ref_from_json(value: Any) -> Any:
    return connection_from_json(value) if isinstance(value, dict) else value


def refuse_incremental_truncate(mode: Mode, where: SourceLocation | None) -> None:
    """Refuse ``truncate`` for an incremental pipeline: it would delete the rows of earlier ranges."""
    if mode == "truncate":
        raise DeclarationError(
            "mode='truncate' replaces all rows: it cannot be used with incremental=True", where=where
        )


Catchup = Literal["none", "last", "all"]  # which missed slots are run later


@dataclass(frozen=True)
class FileOptions:
    """How files are written and read. Options that were not set are None."""

    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: tuple[tuple[str, Any], ...] = ()
    json_read_options: tuple[tuple[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        value["csv_read_options"] = [list(p) for p in self.csv_read_options]
        value["json_read_options"] = [list(p) for p in self.json_read_options]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FileOptions:
        return cls(
            **{
                **value,
                "csv_read_options": tuple((p[0], p[1]) for p in value["csv_read_options"]),
                "json_read_options": tuple((p[0], p[1]) for p in value["json_read_options"]),
            }
        )


@dataclass(frozen=True)
class SourceSpec:
    """Where rows come from. Without ``table`` the pipeline's function returns the SQL."""

    connection: ConnectionRef | None = None  # None: the first target's
    table: str | None = None
    column_map: tuple[tuple[str, str], ...] = ()
    watermark_column: str | None = None
    lag_seconds: float = 0.0
    files: FileOptions = FileOptions()

    def __post_init__(self) -> None:
        require_connection_ref(self.connection)

    @property
    def incremental(self) -> bool:
        return self.watermark_column is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "connection": connection_ref_to_json(self.connection),
            "table": self.table,
            "column_map": [list(pair) for pair in self.column_map],
            "watermark_column": self.watermark_column,
            "lag_seconds": self.lag_seconds,
            "files": self.files.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SourceSpec:
        return cls(
            connection=connection_ref_from_json(value["connection"]),
            table=value["table"],
            column_map=tuple((pair[0], pair[1]) for pair in value["column_map"]),
            watermark_column=value["watermark_column"],
            lag_seconds=value["lag_seconds"],
            files=FileOptions.from_json(value["files"]),
        )


@dataclass(frozen=True)
class TargetSpec:
    """One target of a pipeline, and the strategy of the load."""

    connection: ConnectionRef
    table: TableSpec | None = None
    mode: Mode = "append"
    prefix: str | None = None
    keys: tuple[str, ...] = ()
    update_columns: tuple[str, ...] | None = None
    compare_columns: tuple[str, ...] | None = None
    event_timestamp_column: str | None = None
    handle_deletes: DeletePolicy | None = None
    ttl_seconds: float | None = None
    partition_by: tuple[str, ...] = ()
    max_shrink: float = 0.5
    allow_empty: bool = False
    column_map: tuple[tuple[str, str], ...] = ()  # in addition to the source's
    files: FileOptions = FileOptions()

    def __post_init__(self) -> None:
        require_connection_ref(self.connection)

    @property
    def label(self) -> str:
        """The name of this target in ledger, run log and output."""
        what = self.table.label if self.table is not None else (self.prefix or "")
        return f"{connection_label(self.connection)}:{what}"

    def to_json(self) -> dict[str, Any]:
        return {
            "connection": connection_ref_to_json(self.connection),
            "table": self.table.to_json() if self.table else None,
            "mode": self.mode,
            "prefix": self.prefix,
            "keys": list(self.keys),
            "update_columns": None if self.update_columns is None else list(self.update_columns),
            "compare_columns": None if self.compare_columns is None else list(self.compare_columns),
            "event_timestamp_column": self.event_timestamp_column,
            "handle_deletes": self.handle_deletes,
            "ttl_seconds": self.ttl_seconds,
            "partition_by": list(self.partition_by),
            "max_shrink": self.max_shrink,
            "allow_empty": self.allow_empty,
            "column_map": [list(pair) for pair in self.column_map],
            "files": self.files.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TargetSpec:
        def optional(names: list[str] | None) -> tuple[str, ...] | None:
            return None if names is None else tuple(names)

        return cls(
            **{
                **value,
                "connection": connection_ref_from_json(value["connection"]),
                "table": TableSpec.from_json(value["table"]) if value["table"] else None,
                "keys": tuple(value["keys"]),
                "update_columns": optional(value["update_columns"]),
                "compare_columns": optional(value["compare_columns"]),
                "partition_by": tuple(value["partition_by"]),
                "column_map": tuple((pair[0], pair[1]) for pair in value["column_map"]),
                "files": FileOptions.from_json(value["files"]),
            }
        )


@dataclass(frozen=True)
class PostTransform:
    """A step after the load: SQL on the target, a named transform, a function of the module, or a probe."""

    kind: Literal["sql", "reference", "function", "probe"]
    text: str

    @property
    def label(self) -> str:
        first = " ".join(self.text.split())
        return first if len(first) <= 60 else first[:57] + "…"


@dataclass(frozen=True)
class PipelineSpec:
    """A batch pipeline as declared."""

    name: str
    function: str
    targets: tuple[TargetSpec, ...]
    source: SourceSpec = SourceSpec()
    arguments: int = 0
    schedule: str | None = None
    timezone: str | None = None
    catchup: Catchup = "last"
    tags: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    upstream_freshness_seconds: float | None = None
    freshness_seconds: float | None = None  # it is stale after this long without a success
    freshness_column: str | None = None  # its newest value in the target replaces the last success
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    transforms_pre: tuple[PreTransform, ...] = ()
    probes_pre: tuple[str, ...] = ()  # names of the data probes that run before anything is staged
    expectations: ExpectationsSpec = NO_EXPECTATIONS
    transforms_post: tuple[PostTransform, ...] = ()
    continue_on_failure_post: bool = False
    continue_on_target_failure: bool = False
    on_drift: DriftPolicy = "error"
    force_path: ForcedPath | None = None
    guarantee: Guarantee | None = None
    functions: tuple[UdfHandle, ...] = ()  # that the SQL of the source calls
    description: str | None = None
    where: SourceLocation | None = field(default=None, compare=False)

    @property
    def connections(self) -> tuple[ConnectionRef, ...]:
        """The connections of the source, if it has its own, and of each target."""
        own = () if self.source.connection is None else (self.source.connection,)
        return (*own, *(target.connection for target in self.targets))

    @property
    def transform_references(self) -> tuple[str, ...]:
        return tuple(step.text for step in self.transforms_post if step.kind == "reference")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "function": self.function,
            "targets": [t.to_json() for t in self.targets],
            "source": self.source.to_json(),
            "arguments": self.arguments,
            "schedule": self.schedule,
            "timezone": self.timezone,
            "catchup": self.catchup,
            "tags": list(self.tags),
            "depends_on": list(self.depends_on),
            "upstream_freshness_seconds": self.upstream_freshness_seconds,
            "freshness_seconds": self.freshness_seconds,
            "freshness_column": self.freshness_column,
            "retry": asdict(self.retry),
            "transforms_pre": [t.to_json() for t in self.transforms_pre],
            "probes_pre": list(self.probes_pre),
            "expectations": self.expectations.to_json(),
            "transforms_post": [asdict(t) for t in self.transforms_post],
            "continue_on_failure_post": self.continue_on_failure_post,
            "continue_on_target_failure": self.continue_on_target_failure,
            "on_drift": self.on_drift,
            "force_path": self.force_path,
            "guarantee": self.guarantee,
            "functions": [function_reference(function) for function in self.functions],
            "description": self.description,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PipelineSpec:
        return cls(
            **{
                **value,
                "targets": tuple(TargetSpec.from_json(t) for t in value["targets"]),
                "source": SourceSpec.from_json(value["source"]),
                "tags": tuple(value["tags"]),
                "depends_on": tuple(value["depends_on"]),
                "retry": RetryPolicy(**value["retry"]),
                "transforms_pre": tuple(pre_transform_from_json(t) for t in value["transforms_pre"]),
                "probes_pre": tuple(value.get("probes_pre", ())),
                "expectations": ExpectationsSpec.from_json(value.get("expectations")),
                "transforms_post": tuple(PostTransform(**t) for t in value["transforms_post"]),
                "functions": tuple(load_function(reference) for reference in value.get("functions", ())),
            }
        )


@dataclass(frozen=True)
class TransformSpec:
    """A named transform: a function of the target connection, run by reference or by hand."""

    name: str
    function: str
    arguments: int
    target_connection: ConnectionRef | None = None
    schedule: str | None = None
    where: SourceLocation | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        require_connection_ref(self.target_connection)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "function": self.function,
            "arguments": self.arguments,
            "target_connection": connection_ref_to_json(self.target_connection),
            "schedule": self.schedule,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TransformSpec:
        return cls(**{**value, "target_connection": connection_ref_from_json(value["target_connection"])})
