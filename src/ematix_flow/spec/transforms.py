"""Pre-transforms as declared values: what happens to rows between normalising and loading.

They run in the order in which they are listed, each on the rows of the one before. Nothing here knows
SQL; the compilation lives in ``strategies/projection.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ematix_flow.errors import DeclarationError, did_you_mean


@dataclass(frozen=True)
class DeduplicateBy:
    """One row per key: the first by ``order_by``, by default with nulls last.

    Of rows that are equal in keys and order, any one is kept.
    """

    name: ClassVar[str] = "deduplicate_by"

    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.keys:
            raise DeclarationError(
                "deduplicate_by() needs at least one key",
                next_step='write deduplicate_by("id", order_by="updated_at desc")',
            )
        given: tuple[tuple[str, tuple[object, ...]], ...] = (("key", self.keys), ("order_by", self.order_by))
        for what, names in given:
            for name in names:
                if not isinstance(name, str) or not name.strip():
                    raise DeclarationError(f"deduplicate_by(): a {what} must be a name, not {name!r}")
        if len(set(self.keys)) != len(self.keys):
            raise DeclarationError(f"deduplicate_by(): a key is named twice in {list(self.keys)}")

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "keys": list(self.keys), "order_by": list(self.order_by)}


@dataclass(frozen=True)
class FilterWhere:
    """Only the rows for which a condition in the source's SQL dialect is true."""

    name: ClassVar[str] = "filter_where"

    expr: str

    def __post_init__(self) -> None:
        given: object = self.expr
        if not isinstance(given, str) or not given.strip():
            raise DeclarationError(f"filter_where() needs a condition, not {given!r}")

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "expr": self.expr}


@dataclass(frozen=True)
class Limit:
    """At most ``n`` rows, any of them: for a trial run."""

    name: ClassVar[str] = "limit"

    n: int

    def __post_init__(self) -> None:
        given: object = self.n
        if not isinstance(given, int) or isinstance(given, bool) or given < 0:
            raise DeclarationError(f"limit() needs a whole number from 0, not {given!r}")

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "n": self.n}


@dataclass(frozen=True)
class SamplePct:
    """Each row with probability ``p``, from 0 to 1."""

    name: ClassVar[str] = "sample_pct"

    p: float

    def __post_init__(self) -> None:
        given: object = self.p
        if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 <= given <= 1:
            raise DeclarationError(
                f"sample_pct() needs a fraction from 0 to 1, not {given!r}",
                next_step="write sample_pct(0.1) for a tenth of the rows",
            )

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "p": self.p}


PreTransform = DeduplicateBy | FilterWhere | Limit | SamplePct


def pre_transform_from_json(value: Mapping[str, Any]) -> PreTransform:
    name = value["name"]
    if name == "deduplicate_by":
        return DeduplicateBy(tuple(value["keys"]), tuple(value["order_by"]))
    if name == "filter_where":
        return FilterWhere(value["expr"])
    if name == "limit":
        return Limit(value["n"])
    if name == "sample_pct":
        return SamplePct(value["p"])
    known = ("deduplicate_by", "filter_where", "limit", "sample_pct")
    raise DeclarationError(f"there is no pre-transform {name!r}.{did_you_mean(str(name), known)}")


def is_pre_transform(value: object) -> bool:
    return isinstance(value, (DeduplicateBy, FilterWhere, Limit, SamplePct))


def deduplicate_by(
    *columns: str,
    keys: str | Iterable[str] | None = None,
    order_by: str | Iterable[str] | None = None,
) -> DeduplicateBy:
    """Keep one row per key: ``deduplicate_by("id", order_by="updated_at desc")`` keeps the newest.

    The keys may also be given as ``keys=("id",)``.
    """
    if columns and keys is not None:
        raise DeclarationError("deduplicate_by() takes its keys as arguments or as keys=, not both")
    return DeduplicateBy(_names(columns if keys is None else keys), _names(order_by or ()))


def filter_where(expr: str) -> FilterWhere:
    """Keep only the rows for which the condition is true, as in ``filter_where("name IS NOT NULL")``."""
    return FilterWhere(expr)


def limit(n: int) -> Limit:
    """Keep at most ``n`` rows."""
    return Limit(n)


def sample_pct(p: float) -> SamplePct:
    """Keep each row with probability ``p``: ``sample_pct(0.1)`` keeps about a tenth."""
    return SamplePct(p)


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
