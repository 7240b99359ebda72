"""What all kinds of connections share: fields by keyword, checks, masking, JSON.

A kind is a frozen dataclass with its fields and rules. A value that contains a ``${…}`` reference is not
checked until `config.interpolate` has replaced the reference.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar, cast
from urllib.parse import unquote

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.connections.references import ExpandedText, has_reference, holds_secret, mask_secret
from ematix_flow.spec.connections.urls import UrlPieces, is_conninfo, mask_url, split_url
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_probe.redaction import mask

KINDS: dict[str, type[Connection]] = {}
"""The connection classes by kind."""

C = TypeVar("C", bound="Connection")
_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.%\w]+\](?::\d*)?|[^\[\]]*")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class DriverProperties(Mapping[str, str]):
    """Driver settings without a field: an immutable mapping that masks secrets."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, object] | Iterable[tuple[str, object]] = ()) -> None:
        pairs = dict(items).items()
        self._items = {str(key): _text(value) for key, value in pairs}

    def __getitem__(self, key: str) -> str:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self.masked())

    def masked(self) -> dict[str, str]:
        return {key: _masked_value(key, value) for key, value in self._items.items()}


class _ConnectionMeta(type):
    """Turns Python's TypeError about keywords into an error with the user's line and a suggestion."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        kind = cast("type[Connection]", cls)
        try:
            if args:
                raise DeclarationError(f"{cls.__name__} takes its fields by keyword, as in  name=…, url=…")
            kind.check_names(values)
            return super().__call__(**values)
        except DeclarationError as error:
            raise error.with_location(caller_location()) from None


@dataclass(frozen=True, kw_only=True, repr=False)
class Connection(metaclass=_ConnectionMeta):
    """A named way to reach one system.

    Every kind accepts ``url``: database kinds keep it, other kinds read their fields from it. An explicit
    field overrides the same field in the URL.
    """

    kind: ClassVar[str] = ""
    schemes: ClassVar[tuple[str, ...]] = ()
    keeps_url: ClassVar[bool] = False
    required: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}

    name: str
    url: str = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        if not self.name:
            raise DeclarationError(f"a {self.kind} connection needs a name")
        for field in fields(self):
            self._set(field.name, self._coerce(field.name, str(field.type), getattr(self, field.name)))
        if self.url and not self.url_has_reference:
            self._check_scheme()
            self._check_address()
            if not self.keeps_url:
                self._read_url()
        for name, allowed in self.choices.items():
            value = getattr(self, name)
            if value not in (None, "") and not has_reference(value) and value not in allowed:
                raise self._error(f"{name} is {value!r}; it is one of {', '.join(allowed)}")
        for name in self.required:
            if not getattr(self, name) and not self.url_has_reference:
                raise self._error(f"it needs {name}", next_step=f'add  {name} = "…"')
        self._check()

    @property
    def declared_at(self) -> SourceLocation | None:
        """Where a file declares an inline connection; None for others."""
        found: SourceLocation | None = self.__dict__.get("_declared_at")
        return found

    def with_location(self: C, where: SourceLocation) -> C:
        """A copy of the connection with the location of its declaration."""
        located = copy.copy(self)
        located.__dict__["_declared_at"] = where
        return located

    def _check(self) -> None:
        """Check the rules of the kind. A field that contains a reference must pass."""

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Raise DeclarationError for a field that this kind does not have."""
        known = cls.field_names()
        for name in names:
            if name not in known:
                hint = " Did you mean 'url'?" if name in ("dsn", "uri") else did_you_mean(name, known)
                raise DeclarationError(f"a {cls.kind} connection has no field {name!r}.{hint}")
        if "name" not in names:
            raise DeclarationError(f"a {cls.kind} connection needs  name=")

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        """The fields that the URL's address and path define for this kind."""
        raise NotImplementedError

    @property
    def url_has_reference(self) -> bool:
        """Whether the URL contains a reference, so that its parts are not known yet."""
        return has_reference(self.url)

    def to_json(self, *, reveal: bool = False) -> dict[str, Any]:
        """The fields that differ from their default. Secrets are masked unless ``reveal``."""
        out: dict[str, Any] = {"kind": self.kind}
        for name, value in self._given_fields():
            if isinstance(value, Connection):
                out[name] = value.to_json(reveal=reveal)
            elif isinstance(value, DriverProperties):
                out[name] = dict(value) if reveal else value.masked()
            elif isinstance(value, str):
                out[name] = str(value) if reveal else _masked_value(name, value)
            else:
                out[name] = value
        return out

    @classmethod
    def from_json(cls: type[C], value: Mapping[str, Any]) -> C:
        """Read the result of `to_json`. On the class of a kind, the connection must be of that kind."""
        found = connection_from_json(value)
        if not isinstance(found, cls):
            raise DeclarationError(f"a {found.kind} connection is not a {cls.__name__}")
        return found

    def __repr__(self) -> str:
        shown = ((n, _masked_value(n, v) if isinstance(v, str) else v) for n, v in self._given_fields())
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in shown)})"

    __str__ = __repr__

    def _given_fields(self) -> Iterator[tuple[str, Any]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                yield field.name, value

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _coerce(self, name: str, declared: str, value: object) -> object:
        """The value in the type of its field: text from a TOML file or URL becomes a number or boolean."""
        if value is None or has_reference(value) or isinstance(value, (Connection, DriverProperties)):
            return value
        if declared.startswith("Mapping"):
            if not isinstance(value, Mapping):
                raise self._error(f"{name} must be a table of names and values, not {type(value).__name__}")
            return DriverProperties(value)
        if declared.startswith("bool"):
            lowered = str(value).lower()
            if isinstance(value, (bool, str)) and lowered in _TRUE + _FALSE:
                return lowered in _TRUE
            raise self._error(f"{name} must be true or false")
        if declared.startswith("int"):
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if isinstance(value, str) and value.strip().isdigit():
                return int(value)
            raise self._error(f"{name} must be a whole number")
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if not isinstance(value, str):
            raise self._error(f"{name} must be text, not {type(value).__name__}")
        if name in self.choices:
            return self.aliases.get(value.lower().replace("_", "-"), value)
        return value

    def _check_scheme(self) -> None:
        if is_conninfo(self.url):
            if self.kind != "postgres":
                raise self._error(f"url has the form host=… of PostgreSQL; write {self.schemes[0]}://…")
            return
        scheme = split_url(self.url).scheme
        plain = scheme.partition("+")[0] if self.keeps_url else scheme  # mysql+pymysql is mysql
        if plain not in self.schemes:
            owner = next((kind for kind, cls in KINDS.items() if scheme in cls.schemes), None)
            what = f"begins with {scheme}://, the scheme of kind {owner}" if owner else "has no valid scheme"
            step = f"write {' or '.join(f'{s}://…' for s in self.schemes)}"
            raise self._error(f"url {what}", next_step=step)

    def _check_address(self) -> None:
        """Require that brackets enclose an IPv6 address."""
        address = "" if is_conninfo(self.url) else split_url(self.url).address
        for entry in address.split(",") if "[" in address or "]" in address else ():
            if not has_reference(entry) and not _BRACKETED.fullmatch(entry):
                raise self._error(
                    "url has an address with an unmatched bracket",
                    next_step=f"write {self.schemes[0]}://user@[::1]:port/…",
                )

    def _read_url(self) -> None:
        pieces = split_url(self.url)
        found = {**self.fields_from_url(pieces), **dict(pieces.parameters)}
        self.check_names({"name", *found})
        final = isinstance(self.url, ExpandedText)
        types = {field.name: (str(field.type), field.default) for field in fields(self)}
        for name, value in found.items():
            declared, default = types[name]
            if value not in (None, "") and getattr(self, name) == default:
                coerced = self._coerce(name, declared, value)
                self._set(name, ExpandedText(coerced) if final and isinstance(coerced, str) else coerced)
        self._set("url", "")

    def _error(self, what: str, *, next_step: str | None = None) -> DeclarationError:
        return DeclarationError(f"{self.kind} connection {self.name!r}: {what}", next_step=next_step)

    def _require_all_or_none(self, *names: str) -> None:
        """Require all of these fields, or none."""
        given = [name for name in names if getattr(self, name)]
        if given and len(given) < len(names):
            missing = next(name for name in names if name not in given)
            raise self._error(f"{given[0]} is given without {missing}")


def connection_from_json(value: Mapping[str, Any]) -> Connection:
    """The connection behind `Connection.to_json`."""
    rest = dict(value)
    cls = kind_class(rest.pop("kind", None))
    for name, item in rest.items():
        if isinstance(item, Mapping) and "kind" in item:
            rest[name] = connection_from_json(item)
    return cls(**rest)


# names of a kind in other tools for which the closest match would be another kind
_FIELD_SYNONYMS = {"confluent_schema_registry": "schema_registry", "confluent": "schema_registry"}


def kind_class(kind: object) -> type[Connection]:
    """The class of a kind. Raises DeclarationError with a suggestion."""
    if not isinstance(kind, str) or kind not in KINDS:
        hint = f" Known: {', '.join(sorted(KINDS))}."
        if isinstance(kind, str):
            hint = did_you_mean(_FIELD_SYNONYMS.get(kind, kind), KINDS)
        raise DeclarationError(f"there is no connection kind {kind!r}.{hint}")
    return KINDS[kind]


def redact(field: str, value: object) -> object:
    """A field's value as it may be shown: secrets and URL passwords masked, ``${VAR}`` readable."""
    return _masked_value(field, value) if isinstance(value, str) else value


def decode_url_piece(piece: str | None) -> str:
    """A piece of a URL without percent-encoding; references are unchanged."""
    if piece is None or has_reference(piece):
        return piece or ""
    return unquote(piece)


def _masked_value(name: str, value: str) -> str:
    if holds_secret(name):
        return mask_secret(value)
    if "://" in value or name.endswith("url"):
        return mask_url(value)
    return mask(value) if "=" in value else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
