"""One table of a TOML file: its values and the line of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.config.interpolate import expand
from ematix_flow.config.toml_file import TomlFile
from ematix_flow.errors import DeclarationError, FlowError, did_you_mean
from ematix_flow.spec.location import SourceLocation, TableLocation


@dataclass(frozen=True)
class TomlTable:
    """The values at a path of a file; the empty path is the file itself.

    ``elsewhere`` has the location of each key that was taken from another place.
    """

    file: TomlFile
    path: tuple[str, ...]
    values: Mapping[str, Any]
    other_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of_file(cls, file: TomlFile) -> TomlTable:
        return cls(file, (), file.tables)

    @property
    def label(self) -> str:
        """``[transform.lookups.users]``, ``[[targets]]``, or the name of the file."""
        names = [name for name in self.path if not name.isdigit()]
        if not names:
            return self.file.path.name
        brackets = "[[{}]]" if self.path[-1].isdigit() else "[{}]"
        return brackets.format(".".join(names))

    def where(self, *keys: str) -> SourceLocation:
        """The line of a key within; without one, of the table."""
        if keys and keys[0] in self.other_paths:
            return self.file.where(*self.other_paths[keys[0]], *keys[1:])
        return self.file.where(*self.path, *keys)

    def location(self) -> TableLocation:
        """The line of the table, and those of its keys."""
        own = self.where()
        return TableLocation(own.file, own.line, {key: self.where(key) for key in self.values})

    def error(self, what: str, *keys: str, next_step: str | None = None) -> DeclarationError:
        """An error that names the table and points at the key's line."""
        return DeclarationError(f"{self.label}: {what}", where=self.where(*keys), next_step=next_step)

    def table(self, key: str) -> TomlTable | None:
        """The nested table of this key, or None. Raises DeclarationError when the value is not a table."""
        if key not in self.values:
            return None
        found = self.values[key]
        if not isinstance(found, Mapping):
            raise self.error(f"{key} is a table, and {type(found).__name__} is given", key)
        return TomlTable(self.file, (*self.path, key), found)

    def tables(self, key: str) -> list[TomlTable] | None:
        """The tables of an array such as ``[[targets]]``; None when there is none."""
        if key not in self.values:
            return None
        found = self.values[key]
        if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
            raise self.error(f"{key} is written [[{key}]], once for each", key)
        return [TomlTable(self.file, (*self.path, key, str(n)), item) for n, item in enumerate(found)]

    def text(self, key: str) -> str | None:
        """The text of this key with its ``${…}`` references replaced, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(f"{key} takes text, not {value!r}", key)
        try:
            return str(expand(value, used_by=f"{self.label} {key}"))
        except FlowError as error:
            raise error.with_location(self.where(key)) from None

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise DeclarationError with a suggestion for the first key that is not known."""
        known = set(known)
        for key in self.values:
            if key not in known:
                raise self.error(f"there is no key {key!r}.{did_you_mean(key, known)}", key)

    def where_named(self, words: str) -> SourceLocation:
        """The line of the first key of this table that a message names, else the line of the table."""
        for word in re.findall(r"\w+", words):
            if word in self.values:
                return self.where(word)
        return self.where()
