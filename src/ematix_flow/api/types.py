"""The column types that a user writes: ``BigInt``, ``Text``, ``String[256]``, ``Numeric[10, 2]`` and so on.

Each is a class, parametrised ones too, so that all of them work in ``Annotated[...]``, ``X | None`` and
``Optional[X]`` on every supported Python. Each represents a `spec.types.DataType`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.normalize import Normalizer
from ematix_flow.spec.types import DataType


class ColumnTypeMeta(type):
    """Makes ``String[256]`` and ``String(256)`` return a class, the same one each time."""

    data_type: DataType | None
    parameters: tuple[str, ...]

    def __getitem__(cls, given: Any) -> ColumnTypeMeta:
        return cls._with_parameters(given if isinstance(given, tuple) else (given,))

    def __call__(cls, *given: Any, **named: Any) -> Any:
        """``Text()`` is ``Text``; ``String(length=256)`` is ``String[256]``."""
        unknown = sorted(set(named) - set(cls.parameters))
        if unknown:
            raise DeclarationError(f"{cls.__name__} takes no {unknown[0]!r}")
        rest = cls.parameters[len(given) :]
        return cls._with_parameters(given + tuple(named[name] for name in rest if name in named))

    def _with_parameters(cls, given: tuple[Any, ...]) -> ColumnTypeMeta:
        if not given and cls.data_type is not None:
            return cls
        if cls.data_type is not None or not cls.parameters:
            raise DeclarationError(f"{cls.__name__} takes no parameter, not {given!r}")
        if len(given) != len(cls.parameters):
            raise DeclarationError(f"{cls.__name__} needs {_with_brackets(cls)}, not {len(given)} parameters")
        for value in given:
            if not isinstance(value, int) or isinstance(value, bool):
                raise DeclarationError(
                    f"{cls.__name__} needs {_with_brackets(cls)} in whole numbers, not {value!r}"
                )
        return _parametrised_type(cls, given)

    def __repr__(cls) -> str:
        return cls.__name__


class ColumnType(metaclass=ColumnTypeMeta):
    """Base of all column types. ``data_type`` is None while parameters are missing."""

    data_type: ClassVar[DataType | None] = None
    parameters: ClassVar[tuple[str, ...]] = ()


@cache
def _parametrised_type(base: ColumnTypeMeta, given: tuple[int, ...]) -> ColumnTypeMeta:
    data_type = DataType(base.__name__.lower(), **dict(zip(base.parameters, given, strict=True)))
    return ColumnTypeMeta(str(data_type), (base,), {"data_type": data_type, "__module__": base.__module__})


def _with_brackets(cls: ColumnTypeMeta) -> str:
    return f"{cls.__name__}[{', '.join(cls.parameters)}]"


class SmallInt(ColumnType):
    """A whole number of 16 bits."""

    data_type = DataType("small_int")


class Integer(ColumnType):
    """A whole number of 32 bits."""

    data_type = DataType("integer")


class BigInt(ColumnType):
    """A whole number of 64 bits."""

    data_type = DataType("big_int")


class Float(ColumnType):
    """A binary fraction of 32 bits."""

    data_type = DataType("float")


class Double(ColumnType):
    """A binary fraction of 64 bits."""

    data_type = DataType("double")


class Numeric(ColumnType):
    """``Numeric[precision, scale]``: an exact decimal number."""

    parameters = ("precision", "scale")


class Boolean(ColumnType):
    """True or false."""

    data_type = DataType("boolean")


class Text(ColumnType):
    """Text of any length."""

    data_type = DataType("text")


class String(ColumnType):
    """``String[length]``: text of at most ``length`` characters. A longer value is an error."""

    parameters = ("length",)


class Date(ColumnType):
    """A calendar day."""

    data_type = DataType("date")


class Timestamp(ColumnType):
    """A date and time without zone, to the microsecond."""

    data_type = DataType("timestamp")


class TimestampTZ(ColumnType):
    """A point in time, to the microsecond."""

    data_type = DataType("timestamp_tz")


class JSON(ColumnType):
    """A JSON document, kept as written where the database can."""

    data_type = DataType("json")


class JSONB(ColumnType):
    """A JSON document in the database's own binary form where it has one."""

    data_type = DataType("jsonb")


class UUID(ColumnType):
    """A universally unique identifier."""

    data_type = DataType("uuid")


class Bytes(ColumnType):
    """Raw bytes."""

    data_type = DataType("bytes")


@dataclass(frozen=True)
class Column:
    """The imperative form of a column: ``id = Column(BigInt, primary_key=True)``.

    Nullable by default; a primary key never is. ``name`` is by default the name of the attribute.
    """

    type: Any  # a column type or a DataType; resolved when the table is built
    nullable: bool = True
    primary_key: bool = False
    name: str = ""
    normalizers: Iterable[Normalizer] = ()


_SUGGESTED_TYPES: dict[type, str] = {
    bool: "Boolean",
    int: "BigInt",
    float: "Double",
    str: "Text",
    bytes: "Bytes",
    dt.datetime: "TimestampTZ",
    dt.date: "Date",
    decimal.Decimal: "Numeric[38, 9]",
    uuid.UUID: "UUID",
    dict: "JSONB",
    list: "JSONB",
}


def data_type_of(given: object) -> DataType:
    """The canonical type of a column type. Raises DeclarationError with what to write instead."""
    if isinstance(given, DataType):
        return given
    if isinstance(given, ColumnTypeMeta):
        if given.data_type is not None:
            return given.data_type
        if given.parameters:
            other = " or Text" if given is String else ""
            raise DeclarationError(f"{given!r} needs its parameters: write {_with_brackets(given)}{other}")
    if isinstance(given, type) and given in _SUGGESTED_TYPES:
        raise DeclarationError(
            f"{given.__name__} is not a column type",
            next_step=f"write {_SUGGESTED_TYPES[given]}, from ematix_flow.types",
        )
    raise DeclarationError(
        f"{given!r} is not a column type",
        next_step="write a type from ematix_flow.types, such as BigInt or Text | None",
    )
