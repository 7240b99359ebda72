"""Types of columns in plain words: how they are written, their families, and when two of them agree."""

from __future__ import annotations

import difflib
import re

_ALIASES = {
    "boolean": ("bool", "logical"),
    "smallint": ("int2", "int16", "short", "tinyint", "int8_t", "small_int"),
    "integer": ("int", "int4", "int32", "mediumint", "serial"),
    "bigint": ("int8", "int64", "long", "bigserial", "big_int"),
    "hugeint": ("int128",),
    "real": ("float4", "float32"),
    "double": ("double precision", "float8", "float64", "float"),
    "numeric": ("decimal", "dec", "number"),
    "text": ("string", "str", "clob", "utf8", "large_string"),
    "varchar": ("character varying", "nvarchar"),
    "char": ("character", "bpchar", "nchar"),
    "bytes": ("binary", "blob", "bytea", "varbinary", "large_binary"),
    "date": ("date32",),
    "timestamp": ("datetime", "timestamp without time zone", "timestamp_ntz"),
    "timestamptz": ("timestamp with time zone", "timestamp_tz", "timestamp_ltz"),
    "time": ("time without time zone",),
    "timetz": ("time with time zone",),
    "interval": (),
    "json": ("jsonb", "variant"),
    "uuid": ("guid",),
    "array": ("list",),
    "struct": ("row", "record"),
    "map": (),
    "other": (),
}
_PLAIN = {alias: plain for plain, aliases in _ALIASES.items() for alias in (plain, *aliases)}
_WITH_ARGUMENTS = {"numeric": 2, "varchar": 1, "char": 1}
_FAMILIES = {
    "boolean": "boolean",
    **dict.fromkeys(("smallint", "integer", "bigint", "hugeint"), "integer"),
    **dict.fromkeys(("real", "double"), "float"),
    "numeric": "decimal",
    **dict.fromkeys(("text", "varchar", "char", "uuid"), "text"),
    "bytes": "bytes",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamp_tz",
    "time": "time",
}
_TYPE = re.compile(r"([a-z][a-z0-9_ ]*?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.ASCII)
_ZONED = re.compile(r"(time|timestamp)\s*(?:\(\s*\d+\s*\))?\s*(with|without) time zone")


def plain_type(text: object) -> str:
    """The type in plain words: ``int8`` is ``bigint``, ``decimal(10, 2)`` is ``numeric(10,2)``."""
    if not isinstance(text, str):
        raise ValueError(f"a type is a text such as 'bigint' or 'numeric(10,2)', not {text!r}")
    written = " ".join(text.lower().split())
    if zoned := _ZONED.fullmatch(written):
        return zoned[1] + ("tz" if zoned[2] == "with" else "")
    found = _TYPE.fullmatch(written)
    plain = _PLAIN.get(found[1]) if found else None
    if found is None or plain is None:
        raise ValueError(f"there is no type {text!r}{_similar(found[1] if found else written)}")
    arguments = [part for part in (found[2], found[3]) if part is not None]
    most = _WITH_ARGUMENTS.get(plain, 0)
    if plain == "numeric" and len(arguments) == 1:
        arguments.append("0")
    if not arguments or (most == 0 and plain in ("timestamp", "timestamptz", "time", "real", "double")):
        return plain
    if len(arguments) > most:
        raise ValueError(f"the type {plain!r} takes no such arguments: {text!r}")
    return f"{plain}({','.join(str(int(part)) for part in arguments)})"


def family_of(plain: str) -> str:
    """The family of a type in plain words, as `sources.base.ValueFamily` names it."""
    return _FAMILIES.get(base_of(plain), "other")


def base_of(plain: str) -> str:
    return plain.partition("(")[0]


def precision_and_scale(plain: str) -> tuple[int, int] | None:
    """Those of ``numeric(10,2)``; None for a type that does not say."""
    found = re.fullmatch(r"numeric\((\d+),(\d+)\)", plain)
    return (int(found[1]), int(found[2])) if found else None


def types_agree(asked: str, found: str) -> bool:
    """Whether a column's type is the asked one. A type without arguments takes any: ``numeric``, ``varchar``.

    ``text`` takes every length of text.
    """
    if asked == found:
        return True
    if "(" in asked:
        return False
    return base_of(found) == asked or (asked == "text" and base_of(found) in ("varchar", "char"))


def _similar(written: str) -> str:
    near = difflib.get_close_matches(written, _PLAIN, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; types are {', '.join(_ALIASES)}"
