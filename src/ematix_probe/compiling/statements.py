"""The statement of the measures, and what is read from its row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from ematix_probe.compiling.conditions import Rows
from ematix_probe.compiling.repeated_keys import RepeatedKeys, read_keys

Row = Sequence[Any]
Reader = Callable[[Row], Mapping[str, Any]]
SHARED_ROWS = "ematix_probe_rows"


@dataclass(frozen=True)
class Measured:
    """What was measured of an assertion. ``repeated_keys``: some that `unique` found, for samples."""

    values: Mapping[str, Any]
    repeated_keys: RepeatedKeys | None = None


@dataclass(frozen=True)
class CompiledMeasures:
    """One statement for all assertions. An assertion that cannot be compiled has the measure ``error``.

    ``places_of_keys``: where the row has the repeated keys of each assertion.
    """

    query: exp.Select
    readers: tuple[Reader, ...]
    places_of_keys: tuple[int | None, ...]

    def read(self, row: Row) -> list[Measured]:
        """The measures of each assertion, in order, from the statement's one row."""
        return [
            Measured(reader(row), None if place is None else read_keys(row[place]))
            for reader, place in zip(self.readers, self.places_of_keys, strict=True)
        ]


def share_rows(query: exp.Select, rows: Rows) -> None:
    """Let the rows be a common table expression, unless the statement reads them only once."""
    uses = [each for each in query.find_all(exp.Table) if each.name == SHARED_ROWS]
    if len(uses) == 1:
        single = rows.copy()
        single.set("alias", uses[0].args["alias"])
        uses[0].replace(single)
        return
    inner = rows.this.this if isinstance(rows, exp.Table) else rows.copy()
    name = exp.TableAlias(this=exp.to_identifier(SHARED_ROWS, quoted=True))
    others = query.args["with_"].expressions if query.args.get("with_") else []
    query.set("with_", exp.With(expressions=[exp.CTE(this=inner.copy(), alias=name), *others]))


def structure(part: Any) -> Hashable:
    """Equal for equal trees. It takes a fraction of the time of writing them as SQL; sqlglot's own equality
    does not tell cases apart."""
    if isinstance(part, exp.Expression):
        return (type(part), *((name, structure(each)) for name, each in part.args.items()))
    return tuple(structure(each) for each in part) if isinstance(part, list) else part
