"""Refuses names in the body of a table class that look like a declaration but have no effect."""

from __future__ import annotations

import difflib
import types
import typing
from typing import Any

from ematix_flow.api.markers import NaturalKey, Nullable, PrimaryKey
from ematix_flow.api.types import ColumnTypeMeta
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.normalize import Normalizer
from ematix_flow.spec.types import DataType

TABLE_SETTINGS = ("__schema__", "__tablename__", "__merge_keys__", "__unique_constraints__", "__abstract__")
_SETTING_SYNONYMS = {
    "__table__": "__tablename__",
    "__table_name__": "__tablename__",
    "__name__": "__tablename__",
    "__primary_key__": "pk()",
    "__keys__": "__merge_keys__",
    "__unique__": "__unique_constraints__",
}
# names that Python itself writes into a class body, or this package into a table
_PYTHON_NAMES = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
        *("__conditional_annotations__", "__annotations_cache__", "__firstlineno__", "__static_attributes__"),
        *("__dict__", "__weakref__", "__slots__", "__orig_bases__", "__parameters__", "__hash__"),
        *("__type_params__", "__classcell__", "__match_args__", "__table_spec__", "__declared_columns__"),
    }
)


def refuse_unknown_names(cls: type) -> None:
    """Raise DeclarationError for an unknown setting and for a column without an annotation."""
    for name, value in vars(cls).items():
        if name.startswith("__") and name.endswith("__"):
            _check_setting(cls, name, value)
        elif not name.startswith("_") and _is_column(value):
            raise DeclarationError(
                f"{name} = {_source_text(value)} in {cls.__name__} declares no column",
                next_step=f"a column is annotated: write  {name}: {_source_text(value)}",
            )


def _check_setting(cls: type, name: str, value: Any) -> None:
    if name in TABLE_SETTINGS or name in _PYTHON_NAMES or callable(value):
        return
    if isinstance(value, classmethod | staticmethod | property):
        return
    meant = _SETTING_SYNONYMS.get(name)
    if meant is None:
        meant = next(iter(difflib.get_close_matches(name, TABLE_SETTINGS, n=1, cutoff=0.7)), None)
    hint = f" Did you mean {meant}?" if meant else f" There are {', '.join(TABLE_SETTINGS)}."
    raise DeclarationError(
        f"{cls.__name__} sets {name}, which is not a setting of a table.{hint}",
        next_step=f"write {meant} instead" if meant else "remove it, or call it without the underscores",
    )


def _is_column(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_column, value))
    if isinstance(value, types.UnionType) or typing.get_origin(value) in (typing.Union, typing.Annotated):
        return any(map(_is_column, typing.get_args(value)))
    return isinstance(value, ColumnTypeMeta | DataType | Normalizer | PrimaryKey | NaturalKey | Nullable)


def _source_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"Annotated[{', '.join(map(_source_text, value))}]"
    if isinstance(value, PrimaryKey):
        return "pk()"
    if isinstance(value, NaturalKey):
        return f"natural_key({value.group!r})" if value.group else "natural_key()"
    if isinstance(value, Nullable):
        return "nullable()"
    if typing.get_origin(value) is typing.Annotated:
        return f"Annotated[{', '.join(map(_source_text, typing.get_args(value)))}]"
    return repr(value)
