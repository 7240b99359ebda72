"""``CDC``: how the messages of a stream describe changes of a table, and how they are applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.declared_fields import check_location
from ematix_flow.spec.location import SourceLocation, caller_location

Envelope = Literal["debezium", "maxwell", "custom"]
DeleteMode = Literal["hard", "soft"]
SchemaEvolution = Literal["skip", "fail", "evolve"]
Operation = Literal["upsert", "delete", "truncate", "ignore"]
ENVELOPES: tuple[Envelope, ...] = get_args(Envelope)

_FIELDS = {
    "skip": "leaves out new fields",
    "fail": "refuses new fields",
    "evolve": "adds columns for new fields",
}

# what an operation may be called in op_map=
OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(("c", "create", "insert", "u", "update", "r", "read", "snapshot", "upsert"), "upsert"),
    **dict.fromkeys(("d", "delete"), "delete"),
    **dict.fromkeys(("t", "truncate"), "truncate"),
    **dict.fromkeys(("ignore", "skip"), "ignore"),
}


@dataclass(frozen=True)
class CDC:
    """Apply change events of a database's log to the target, instead of loading messages as rows.

    ``*_field`` are paths into the message, as in ``payload.after``; None means the envelope's own.
    """

    envelope: Envelope = "debezium"
    op_field: str | None = None
    before_field: str | None = None
    after_field: str | None = None
    key_field: str | Sequence[str] | None = None
    ts_field: str | None = None
    op_map: Mapping[str, str] = field(default_factory=dict, hash=False)
    delete_mode: DeleteMode = "hard"
    soft_delete_column: str | None = None
    schema_evolution: SchemaEvolution = "skip"
    out_of_order_tolerance_ms: int = 5_000
    where: SourceLocation | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_location(self.where)
        where = self.where or caller_location()
        for option, choices in (
            ("envelope", ENVELOPES),
            ("delete_mode", get_args(DeleteMode)),
            ("schema_evolution", get_args(SchemaEvolution)),
        ):
            value = getattr(self, option)
            if value not in choices:
                raise DeclarationError(
                    f"{option}= of CDC is one of {', '.join(choices)}, not {value!r}."
                    f"{did_you_mean(str(value), choices)}",
                    where=where,
                )
        for option in ("op_field", "before_field", "after_field", "ts_field", "soft_delete_column"):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, str) or not all(value.split("."))):
                raise DeclarationError(f"{option}= of CDC takes a name, not {value!r}", where=where)
        object.__setattr__(self, "key_field", _read_paths(self.key_field, where))
        object.__setattr__(self, "op_map", _read_op_map(self.op_map, where))
        tolerance = self.out_of_order_tolerance_ms
        if type(tolerance) is not int or tolerance < 0:
            raise DeclarationError(
                f"out_of_order_tolerance_ms= of CDC is a whole number from 0, not {tolerance!r}", where=where
            )
        self._check_combinations(where)

    def _check_combinations(self, where: SourceLocation | None) -> None:
        if (self.delete_mode == "soft") != (self.soft_delete_column is not None):
            raise DeclarationError(
                "delete_mode='soft' and soft_delete_column= belong together: give both or neither",
                where=where,
                next_step='write  delete_mode="soft", soft_delete_column="deleted_at"',
            )
        if self.envelope == "custom":
            missing = [name for name in ("op_field", "after_field", "op_map") if not getattr(self, name)]
            if missing:
                raise DeclarationError(
                    f"envelope='custom' needs {', '.join(f'{name}=' for name in missing)}", where=where
                )

    def __str__(self) -> str:
        """As in ``debezium changes in the order of the source's log; deletes rows; refuses new fields``."""
        order = f"of {self.ts_field}" if self.ts_field else "of the source's log"
        soft = self.soft_delete_column
        deletes = f"marks deleted rows in {soft}" if soft else "deletes rows"
        return f"{self.envelope} changes in the order {order}; {deletes}; {_FIELDS[self.schema_evolution]}"

    @property
    def adds_columns(self) -> bool:
        """Whether a table gets columns for new fields."""
        return self.schema_evolution == "evolve"

    @cached_property  # every message asks for it
    def paths(self) -> EnvelopePaths:
        """The paths of the envelope, with those that are declared."""
        found = _PATHS[self.envelope]
        declared = {name: getattr(self, f"{name}_field") for name in ("op", "before", "after", "ts")}
        return replace(found, **{name: tuple(v.split(".")) for name, v in declared.items() if v})

    @property
    def key_paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths of the key: those declared, else ``id`` of the row."""
        if self.key_field is not None:
            return tuple(tuple(path.split(".")) for path in self.key_field)
        return ((*self.paths.after, "id"),)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key, for a target that declares none."""
        return tuple(path[-1] for path in self.key_paths)

    def to_json(self) -> dict[str, Any]:
        found = asdict(replace(self, where=None))
        del found["where"]
        return {**found, "key_field": list(self.key_field) if self.key_field else None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CDC:
        return cls(**value)


@dataclass(frozen=True)
class EnvelopePaths:
    """Where an envelope has its parts."""

    op: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    ts: tuple[str, ...]


_PATHS = {
    "debezium": EnvelopePaths(("op",), ("before",), ("after",), ("source", "ts_ms")),
    "maxwell": EnvelopePaths(("type",), ("old",), ("data",), ("ts",)),
    "custom": EnvelopePaths((), (), (), ()),
}
CDC_OPTIONS = tuple(option.name for option in fields(CDC) if option.name != "where")


def _read_paths(given: Any, where: SourceLocation | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, (list, tuple)) or not listed:
        raise DeclarationError(
            f"key_field= of CDC takes a path or a list of them, not {given!r}", where=where
        )
    for path in listed:
        if not isinstance(path, str) or not all(path.split(".")):
            raise DeclarationError(
                f"key_field= of CDC takes paths such as 'after.id', not {path!r}", where=where
            )
    columns = [path.rpartition(".")[2] for path in listed]
    repeated = next((name for name in columns if columns.count(name) > 1), None)
    if repeated is not None:
        paths = ", ".join(repr(path) for path in listed if path.rpartition(".")[2] == repeated)
        raise DeclarationError(
            f"key_field= of CDC has several paths of the name {repeated!r} ({paths}), and a path is the "
            "column of its last name",
            where=where,
            next_step="name each part of the key once; parts of one name need other names in the messages",
        )
    return tuple(listed)


def _read_op_map(given: Any, where: SourceLocation | None) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise DeclarationError(
            f"op_map= of CDC takes operations by their names in the messages, not {given!r}", where=where
        )
    for name, operation in given.items():
        if not isinstance(name, str) or not isinstance(operation, str) or operation not in OPERATIONS:
            raise DeclarationError(
                f"op_map= of CDC maps {name!r} to {operation!r}, and the operations are "
                "insert, update, delete, read, truncate and ignore."
                f"{did_you_mean(str(operation), OPERATIONS)}",
                where=where,
            )
    return dict(given)
