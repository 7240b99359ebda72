"""Dates and times of PostgreSQL that Python's types do not hold: infinity, BC, and years after 9999."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import Error
from psycopg.types.datetime import DateLoader, IntervalLoader, TimeLoader, TimestampLoader, TimestamptzLoader

if TYPE_CHECKING:
    from psycopg.adapt import AdaptersMap, Loader

_LOADERS: dict[str, Any] = {
    "date": DateLoader,
    "time": TimeLoader,
    "timestamp": TimestampLoader,
    "timestamptz": TimestamptzLoader,
    "interval": IntervalLoader,
}


def return_them_as_texts(adapters: AdaptersMap) -> None:
    """Let a connection or cursor return such a value as the text that PostgreSQL writes for it."""
    for kind, loader in _LOADERS.items():
        adapters.register_loader(kind, _or_text(loader))


def _or_text(kind: Any) -> type[Loader]:
    class OrText(kind):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except (Error, NotImplementedError):  # the latter for a style of dates that it does not read
                return bytes(data).decode()

    return OrText
