"""Checks ``join=`` of a stream against its other options."""

from __future__ import annotations

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.joins import Join
from ematix_flow.spec.streams import StreamSpec


def check_join(spec: StreamSpec) -> None:
    """Raises DeclarationError for options that do not fit together."""
    if spec.join is None:
        for source in spec.sources:
            if source.columns is not None:
                raise DeclarationError(
                    f"columns= of source {source.query!r} is for join=, which is not set",
                    where=spec.where,
                    next_step="write  source_columns=  for the columns of all sources",
                )
        return
    if not isinstance(spec.join, Join):
        raise DeclarationError(f"join= takes Join(…), not {spec.join!r}", where=spec.where)
    if spec.window is not None:
        raise DeclarationError(
            "join= does not go together with window=",
            where=spec.where,
            next_step="load the joined rows into a topic, and declare another stream with the window over it",
        )
    if spec.columns is not None:
        raise DeclarationError(
            "source_columns= is for streams whose sources have the same columns; a join's sources have their "
            "own",
            where=spec.where,
            next_step="write  Source(…, columns=…)",
        )
    if len(spec.sources) != 2:
        raise DeclarationError(
            f"join= needs two sources, and the stream has {len(spec.sources)}",
            where=spec.where,
            next_step="write  sources=[Source(…), Source(…)]",
        )
    left, right = spec.joined_sources
    if left == right:
        raise DeclarationError("left_source= and right_source= are the same source", where=spec.where)
    if spec.join.late_data == "dlq" and spec.on_error != "dlq":
        raise DeclarationError(
            "late_data='dlq' stores late rows as dead letters, and the stream has no dead letters",
            where=spec.where,
            next_step='set  transform_on_error="dlq"',
        )
    join = spec.join
    empty = [join.prefixes[1]] * join.keeps_left + [join.prefixes[0]] * join.keeps_right
    for target in spec.targets:
        nullable = [key for key in target.keys if any(key.startswith(prefix) for prefix in empty if prefix)]
        if target.mode == "merge" and nullable and spec.transform_sql is None:
            raise DeclarationError(
                f"keys= of {target.label} has {nullable[0]!r}, which is null in rows without a partner",
                where=spec.where,
                next_step='use mode="append", or compute a key in transform_sql with coalesce()',
            )
        if target.mode == "scd2":
            raise DeclarationError(
                "mode='scd2' keeps versions of rows by one event time, and a joined row has two",
                where=spec.where,
                next_step='use mode="append", or mode="merge" with keys',
            )
