"""Tables as a user declares them: annotated `ManagedTable` subclasses and the ``table`` decorator.

Both end in a `spec.tables.TableSpec`, built when the class is. What an annotation means is read by
`api.annotations`; this module owns which columns, names and keys make up the table.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, overload

from ematix_flow.api.annotations import DeclaredColumn, Scope, declared_columns
from ematix_flow.api.unknown_class_names import refuse_unknown_names
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import ColumnSpec, TableSpec, snake_case

if TYPE_CHECKING:
    from ematix_flow.engine.live_connection import LiveConnection
    from ematix_flow.spec.pipelines import ConnectionRef, DeclaredMode, DriftPolicy

_OWN_COLUMNS = "__declared_columns__"
_OTHER_FRAMEWORKS = {
    "__dataclass_fields__": "a dataclass",
    "__attrs_attrs__": "an attrs class",
    "__pydantic_core_schema__": "a pydantic model",
    "__pydantic_fields__": "a pydantic model",
}


class TableMeta(type):
    """Shows a table by its columns in a shell or a notebook."""

    def __repr__(cls) -> str:
        spec = vars(cls).get("__table_spec__")
        if not isinstance(spec, TableSpec):
            return super().__repr__()
        width = max(len(c.name) for c in spec.columns)
        lines = [f"  {c.name:<{width}}  {_describe_column(c)}" for c in spec.columns]
        return "\n".join([f"table {spec.label}", *lines])


class ManagedTable(metaclass=TableMeta):
    """The base class of tables that are declared by subclassing::

        class Events(ManagedTable):
            __schema__ = "analytics"

            event_id: Annotated[BigInt, pk()]
            name: Text | None

    ``__tablename__`` is by default the class's name in snake case. Without ``__schema__`` the table is in the
    connection's default schema. ``__merge_keys__`` and ``__unique_constraints__`` name columns. A class with
    ``__abstract__ = True`` declares no table; its subclasses inherit its columns.
    """

    __abstract__: ClassVar[bool] = True
    __schema__: ClassVar[str | None] = None
    __tablename__: ClassVar[str]
    __merge_keys__: ClassVar[tuple[str, ...]] = ()
    __unique_constraints__: ClassVar[tuple[tuple[str, ...], ...]] = ()
    __table_spec__: ClassVar[TableSpec]

    spec: ClassVar[TableSpec]
    columns: ClassVar[tuple[ColumnSpec, ...]]

    def __init_subclass__(cls, **named: Any) -> None:
        frame = _user_frame()
        where = SourceLocation(frame.f_code.co_filename, frame.f_lineno) if frame else None
        if named:
            option = next(iter(named))
            raise DeclarationError(
                f"class {cls.__name__}(…, {option}=…): a table class has no option {option!r}",
                where=where,
                next_step=f"write  __{option}__ = …  in its body"
                if option in ("schema", "tablename", "abstract")
                else "write the settings of a table in its body: __schema__, __tablename__, columns",
            )
        super().__init_subclass__()
        try:
            _refuse_other_frameworks(cls)
            refuse_unknown_names(cls)
            setattr(cls, _OWN_COLUMNS, declared_columns(cls, _annotation_scope(cls, frame)))
            if not vars(cls).get("__abstract__", False):
                spec = _build_spec(cls, where)
                cls.__table_spec__ = cls.spec = spec
                cls.columns = spec.columns
                cls.__schema__, cls.__tablename__ = spec.schema, spec.name
        except DeclarationError as error:
            raise error.with_location(where) from None

    @classmethod
    def ensure(
        cls,
        conn: LiveConnection | ConnectionRef,
        on_drift: DriftPolicy = "error",
        *,
        mode: DeclaredMode = "append",
    ) -> dict[str, Any]:
        """Create the table if it is missing; otherwise compare it with its declaration.

        ``conn`` is an open connection (`ematix_flow.connect`) or the name of one. ``mode`` is the mode of the
        pipeline that loads the table: it decides which columns the table has beyond the declared ones.
        Returns ``{"action": "created" | "unchanged" | "evolved" | "drift", "differences": […]}``. With
        ``on_drift="error"`` a difference raises an error, as in a run.
        """
        from ematix_flow.api.option_checks import check_choice, normalize_mode, resolve_keys
        from ematix_flow.run.ensure_table import ensure_table
        from ematix_flow.spec.pipelines import DRIFT_POLICIES

        where, spec = _user_location(), table_spec(cls)
        check_choice("on_drift", on_drift, DRIFT_POLICIES, where)
        load_mode = normalize_mode(mode, where)
        keys = resolve_keys(spec, (), load_mode, where, stacklevel=3)
        return ensure_table(spec, conn, on_drift, load_mode, keys, where)

    @classmethod
    def _repr_html_(cls) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(c.name)}</td><td>{html.escape(_describe_column(c))}</td></tr>"
            for c in cls.spec.columns
        )
        return f"<table><caption>{html.escape(cls.spec.label)}</caption>{rows}</table>"


@overload
def table(declared: type, /) -> type[ManagedTable]: ...
@overload
def table(*, schema: str | None = None, name: str | None = None) -> Callable[[type], type[ManagedTable]]: ...
def table(
    declared: type | None = None, /, *, schema: str | None = None, name: str | None = None
) -> type[ManagedTable] | Callable[[type], type[ManagedTable]]:
    """Declare a table by a class whose annotations are its columns.

    ``@table(schema="analytics")`` returns a `ManagedTable`. Without ``schema`` the table is in the
    connection's default schema; without ``name`` it has the class's name in snake case.
    """

    def decorate(cls: type) -> type[ManagedTable]:
        given: object = cls
        if not isinstance(given, type):
            raise DeclarationError(f"@table decorates a class, not {given!r}", where=_user_location())
        try:
            _refuse_other_frameworks(cls)
        except DeclarationError as error:
            raise error.with_location(_user_location()) from None
        body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__", _OWN_COLUMNS)}
        if schema is not None:
            body["__schema__"] = schema
        if name is not None:
            body["__tablename__"] = name
        bases = tuple(b for b in cls.__bases__ if b is not object)
        if not issubclass(cls, ManagedTable):
            bases = (*bases, ManagedTable)
        body["__qualname__"] = cls.__qualname__
        made: type[ManagedTable] = TableMeta(cls.__name__, bases, body)  # type: ignore[assignment]
        return made

    return decorate if declared is None else decorate(declared)


def table_spec(declared: object) -> TableSpec:
    """The spec of a declared table. Raises DeclarationError for anything else."""
    spec = getattr(declared, "__table_spec__", None)
    if isinstance(spec, TableSpec):
        return spec
    if isinstance(declared, type) and issubclass(declared, ManagedTable):
        raise DeclarationError(f"{declared.__name__} is abstract: subclass it to declare a table")
    raise DeclarationError(
        f"{declared!r} is not a table",
        next_step="give a ManagedTable, or a class decorated with @ematix.table(schema=…)",
    )


# --- building --------------------------------------------------------------------------------------


def _build_spec(cls: type[ManagedTable], where: SourceLocation | None) -> TableSpec:
    columns = _all_columns(cls)
    own = vars(cls)
    tablename = own.get("__tablename__")
    for what, value in (("__schema__", cls.__schema__), ("__tablename__", tablename)):
        if value is not None and (not isinstance(value, str) or not value or "\x00" in value):
            raise DeclarationError(f"{cls.__name__}: {what} must be a name, not {value!r}")
    groups: dict[str, list[str]] = {}
    for declared in columns.values():
        for group in declared.natural_keys:
            groups.setdefault(group, []).append(declared.spec.name)
    return TableSpec(
        schema=cls.__schema__,
        name=tablename or snake_case(cls.__name__),
        columns=tuple(d.spec for d in columns.values()),
        unique=_unique_constraints(cls),
        merge_keys=_column_names(cls, "__merge_keys__", cls.__merge_keys__),
        natural_keys=tuple(tuple(groups[label]) for label in sorted(groups)),
        doc=own.get("__doc__"),
        where=where,
    )


def _all_columns(cls: type) -> dict[str, DeclaredColumn]:
    """All columns by attribute, those of the bases first. A redeclared column keeps its position."""
    columns: dict[str, DeclaredColumn] = {}
    for base in reversed(cls.__mro__):
        if base in (object, ManagedTable) or base.__module__ in ("typing", "abc"):
            continue
        found = vars(base).get(_OWN_COLUMNS)
        columns.update(declared_columns(base, _annotation_scope(base, None)) if found is None else found)
    return columns


def _unique_constraints(cls: type[ManagedTable]) -> tuple[tuple[str, ...], ...]:
    given: Any = cls.__unique_constraints__
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DeclarationError(
            f"{cls.__name__}: __unique_constraints__ must list groups of columns, not {given!r}",
            next_step='write __unique_constraints__ = (("a", "b"),)',
        )
    return tuple(_column_names(cls, "__unique_constraints__", group) for group in given)


def _column_names(cls: type, what: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise DeclarationError(f"{cls.__name__}: {what} must name columns, not {name!r}")
    return names


def _refuse_other_frameworks(cls: type) -> None:
    for attribute, kind in _OTHER_FRAMEWORKS.items():
        if hasattr(cls, attribute):
            raise DeclarationError(
                f"{cls.__name__} is {kind}; a table is declared with a plain class",
                next_step="remove the other decorator or base, and keep the annotations",
            )


def _describe_column(column: ColumnSpec) -> str:
    parts = [str(column.type)]
    if column.primary_key:
        parts.append("primary key")
    elif not column.nullable:
        parts.append("not null")
    parts += [n.name for n in column.normalizers]
    return ", ".join(parts)


# --- where the user is -----------------------------------------------------------------------------


def _user_frame() -> FrameType | None:
    """The nearest frame outside this package, which contains the class statement."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "ematix_flow":
        frame = frame.f_back
    return frame


def _user_location() -> SourceLocation | None:
    frame = _user_frame()
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno) if frame else None


def _annotation_scope(cls: type, frame: FrameType | None) -> Scope:
    """The namespaces for the names in a string annotation, innermost first."""
    module = sys.modules.get(cls.__module__)
    layers: list[Mapping[str, Any]] = [vars(cls)]
    if frame is not None:
        layers += [frame.f_locals, frame.f_globals]
    if module is not None:
        layers.append(vars(module))
    return tuple(layers)
