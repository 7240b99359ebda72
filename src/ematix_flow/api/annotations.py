"""Reads the annotation of a column: its type, whether it takes nulls, its keys and its normalisers.

Annotations are objects or, under ``from __future__ import annotations``, strings. Names in a string are
looked up where the class is defined.
"""

from __future__ import annotations

import builtins
import difflib
import types
import typing
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ematix_flow.api import types as column_types
from ematix_flow.api.markers import NaturalKey, Nullable, PrimaryKey
from ematix_flow.api.types import Column, ColumnTypeMeta, data_type_of
from ematix_flow.errors import DeclarationError, closest_name, did_you_mean
from ematix_flow.spec.normalize import Normalizer, check_normalizers
from ematix_flow.spec.normalizer_arguments import ARGUMENT_CHECKS as NORMALIZERS
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.transforms import is_pre_transform

Scope = tuple[Mapping[str, Any], ...]
MARKERS = ("pk", "natural_key", "nullable", "not_null_or", *NORMALIZERS)


@dataclass(frozen=True)
class DeclaredColumn:
    """A column and the labels of the natural keys it is in."""

    spec: ColumnSpec
    natural_keys: tuple[str, ...] = ()


@dataclass
class _ColumnParts:
    """The parts of one annotation that were read so far."""

    type: Any = None
    nullable: bool = False
    primary_key: bool = False
    natural_keys: list[str] = field(default_factory=list)
    normalizers: list[Normalizer] = field(default_factory=list)


def declared_columns(cls: type, scope: Scope) -> dict[str, DeclaredColumn]:
    """The columns that the class itself declares, by attribute, without those of its bases."""
    own = vars(cls)
    columns: dict[str, DeclaredColumn] = {}
    for name, annotation in own.get("__annotations__", {}).items():
        if name.startswith("__") or isinstance(own.get(name), Column):
            continue
        meaning = _evaluate_annotation(cls, name, annotation, scope)
        if typing.get_origin(meaning) is typing.ClassVar or meaning is typing.ClassVar:
            continue
        if name in own:
            raise DeclarationError(
                f"column {name!r} of {cls.__name__} has a value assigned",
                next_step="to replace NULL use the marker default(…), as in"
                f" {name}: Annotated[Text, default('x')]",
            )
        columns[name] = _column_from_annotation(cls, name, meaning, scope)
    for name, value in own.items():
        if isinstance(value, Column):
            columns[name] = _column_from_object(cls, name, value)
    return columns


def _column_from_annotation(cls: type, name: str, annotation: Any, scope: Scope) -> DeclaredColumn:
    reading = _ColumnParts()
    _read_annotation(cls, name, annotation, scope, reading)
    if reading.primary_key and reading.nullable:
        raise DeclarationError(
            f"column {name!r} of {cls.__name__} is in the primary key and may be null",
            next_step="remove '| None' or nullable(): a key column is never null",
        )
    return _build_column(cls, name, reading)


def _column_from_object(cls: type, name: str, column: Column) -> DeclaredColumn:
    normalizers = tuple(column.normalizers)
    for marker in normalizers:
        if not isinstance(marker, Normalizer):
            raise _marker_not_called_error(cls, name, marker)
    reading = _ColumnParts(
        type=column.type,
        nullable=column.nullable and not column.primary_key,
        primary_key=column.primary_key,
        normalizers=list(normalizers),
    )
    return _build_column(cls, column.name or name, reading)


def _build_column(cls: type, name: str, reading: _ColumnParts) -> DeclaredColumn:
    try:
        data_type = data_type_of(reading.type)
    except DeclarationError as error:
        raise DeclarationError(
            f"column {name!r} of {cls.__name__}: {error.what}", next_step=error.next_step
        ) from None
    check_normalizers(reading.normalizers, name, data_type)
    spec = ColumnSpec(name, data_type, reading.nullable, reading.primary_key, tuple(reading.normalizers))
    return DeclaredColumn(spec, tuple(reading.natural_keys))


def _read_annotation(cls: type, name: str, annotation: Any, scope: Scope, reading: _ColumnParts) -> None:
    """Read ``Annotated``, a union or a type, nested in any order."""
    annotation = _evaluate_annotation(cls, name, annotation, scope)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = typing.get_args(annotation)
        _read_annotation(cls, name, inner, scope, reading)
        for marker in metadata:
            _apply_marker(cls, name, marker, reading)
    elif origin is typing.Union or isinstance(annotation, types.UnionType):
        members = [_evaluate_annotation(cls, name, a, scope) for a in typing.get_args(annotation)]
        kept = [m for m in members if m is not type(None)]
        reading.nullable = reading.nullable or len(kept) < len(members)
        if len(kept) != 1:
            shown = " | ".join(repr(m) if isinstance(m, ColumnTypeMeta) else str(m) for m in members)
            raise DeclarationError(f"column {name!r} of {cls.__name__} has several types: {shown}")
        _read_annotation(cls, name, kept[0], scope, reading)
    elif isinstance(annotation, Column):
        raise DeclarationError(
            f"column {name!r} of {cls.__name__} is annotated with a Column",
            next_step=f"write  {name} = Column(…)  or annotate with a type",
        )
    else:
        reading.type = annotation


def _apply_marker(cls: type, name: str, marker: Any, reading: _ColumnParts) -> None:
    """Apply one marker of ``Annotated``. Anything else is refused, because it would have no effect."""
    if isinstance(marker, Normalizer):
        reading.normalizers.append(marker)
    elif isinstance(marker, PrimaryKey):
        reading.primary_key = True
    elif isinstance(marker, NaturalKey):
        reading.natural_keys.append(marker.group)
    elif isinstance(marker, Nullable):
        reading.nullable = True
    elif is_pre_transform(marker):
        raise DeclarationError(
            f"column {name!r} of {cls.__name__}: {marker.name}() works on rows, not on a column",
            next_step="put it into the pipeline's transforms_pre=[…]",
        )
    elif callable(marker) and str(getattr(marker, "__module__", "")).split(".")[0] == "ematix_flow":
        raise _marker_not_called_error(cls, name, marker)
    else:
        raise _unknown_marker_error(cls, name, marker)


def _unknown_marker_error(cls: type, name: str, marker: Any) -> DeclarationError:
    """The error for something that is not a marker. A text is often the name of one, or a description."""
    what = f"column {name!r} of {cls.__name__}: {marker!r} in Annotated[…] is not a marker"
    if isinstance(marker, str):
        word = marker.strip().removesuffix("()")
        close = difflib.get_close_matches(word.lower(), MARKERS, n=1, cutoff=0.75)
        if close:
            return DeclarationError(f"{what}. Did you mean {close[0]}()?", next_step=f"write {close[0]}(…)")
    return DeclarationError(
        what,
        next_step="remove it: markers are calls such as trim() or pk(); write remarks as comments",
    )


def _marker_not_called_error(cls: type, name: str, marker: Any) -> DeclarationError:
    shown = getattr(marker, "__name__", repr(marker))
    return DeclarationError(
        f"column {name!r} of {cls.__name__}: {shown} is not called", next_step=f"write {shown}()"
    )


def _evaluate_annotation(cls: type, name: str, annotation: Any, scope: Scope) -> Any:
    """The object that a string or a forward reference names."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return type(None) if annotation is None else annotation
    names: ChainMap[str, Any] = ChainMap(*scope, vars(builtins))  # type: ignore[arg-type]  # only read
    try:
        return eval(annotation, {"__builtins__": {}}, names)
    except DeclarationError as error:
        raise DeclarationError(
            f"column {name!r} of {cls.__name__}: {error.what}", next_step=error.next_step
        ) from None
    except NameError as error:
        missing = str(getattr(error, "name", "") or error)
        known = [k for layer in scope for k in layer if not k.startswith("_")]
        importable = hasattr(column_types, missing) or missing in MARKERS
        close = None if importable else closest_name(missing, known)
        raise DeclarationError(
            f"column {name!r} of {cls.__name__} is annotated {annotation!r}, and {missing!r} is not defined"
            f" there.{did_you_mean(missing, known)}",
            next_step="import it at the top of the module"
            if close is None
            else f"correct the spelling: {close}",
        ) from None
    except Exception as error:
        raise DeclarationError(
            f"column {name!r} of {cls.__name__}: the annotation {annotation!r} fails: {error}"
        ) from error
