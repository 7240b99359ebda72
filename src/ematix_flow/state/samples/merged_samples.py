"""Merges neighbouring samples in the database: a long span costs as many rows as its chart has points."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from ematix_flow.state.samples.base import COUNTS, PHASES, StreamSample
from ematix_flow.state.samples.tables import samples
from ematix_flow.state.sql.dialects import is_readable_by_postgres

_PLAIN_NAME = re.compile(r"[\w ]+")  # needs no escape in a path


def read_merged_samples(
    connection: sa.Connection,
    chosen: Sequence[sa.ColumnElement[bool]],
    size: int,
    most: int,
    dialect: str,
) -> Iterator[StreamSample]:
    """Yield one sample for each ``size`` neighbours: their counts added, and the rest of the last of them."""
    newest = connection.scalar(
        sa.select(samples.c.sample).where(*chosen).order_by(samples.c.at.desc()).limit(1)
    )
    later_phases = [name for name in (newest or {}).get("phases") or {} if _PLAIN_NAME.fullmatch(name)]
    phases = list(dict.fromkeys([*PHASES, *later_phases]))
    for row in connection.execute(_merged_statement(chosen, size, most, phases, dialect)).mappings():
        counts = {name: int(row[f"count_{name}"] or 0) for name in COUNTS}
        values = {**row["sample"], **counts, "phases": _phases_of(row, phases)}
        yield StreamSample.from_store(row["stream"], row["run_id"], row["at"], values)


def _phases_of(row: Mapping[Any, Any], phases: Sequence[str]) -> dict[str, float]:
    seconds = ((name, row[f"phase_{number}"]) for number, name in enumerate(phases))
    return {name: round(float(each), 3) for name, each in seconds if each is not None}


def _merged_statement(
    chosen: Sequence[sa.ColumnElement[bool]], size: int, most: int, phases: Sequence[str], dialect: str
) -> sa.Select[Any]:
    number = sa.func.row_number().over(order_by=(samples.c.at, samples.c.run_id)) - 1
    numbered = sa.select(samples, number.label("number")).where(*chosen).cte("numbered")
    first = (numbered.c.number - numbered.c.number % size).label("first_number")
    grouped = sa.select(numbered, first).subquery("grouped")
    counts = (
        sa.func.sum(_json_number(grouped.c.sample, (name,), dialect)).label(f"count_{name}")
        for name in COUNTS
    )
    seconds = (
        sa.func.sum(_json_number(grouped.c.sample, ("phases", name), dialect)).label(f"phase_{n}")
        for n, name in enumerate(phases)
    )
    merged = (
        sa.select(sa.func.max(grouped.c.number).label("last_number"), *counts, *seconds)
        .group_by(grouped.c.first_number)
        .subquery("merged")
    )
    last = numbered.alias("last_sample")
    joined = merged.join(last, last.c.number == merged.c.last_number)
    shown = (last.c.stream, last.c.run_id, last.c.at, last.c.sample)
    return sa.select(merged, *shown).select_from(joined).order_by(last.c.number).limit(most)


def _json_number(document: Any, path: Sequence[str], dialect: str) -> Any:
    """The number at a path of a document; null if there is none."""
    if dialect == "postgresql":
        number = sa.cast(sa.func.json_extract_path_text(document, *path), sa.Double)
        return sa.case((is_readable_by_postgres(document), number))
    found = sa.func.json_extract(document, "$" + "".join(f'."{name}"' for name in path))
    return sa.cast(found, sa.Double) if dialect == "duckdb" else found
