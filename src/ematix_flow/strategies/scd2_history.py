"""SCD2: computes the history of each touched key again from all its points in time, and writes what differs.

A point is a stored version, the end of one, or an event. Each opens a version, changes nothing, or is a
delete.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import (
    BATCH_ID,
    EVENT_AT,
    IS_CURRENT,
    IS_DELETE,
    LOADED_AT,
    ROW_HASH,
    VALID_FROM,
    VALID_TO,
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies import scd2_ttl
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.row_comparison import null_safe_equal
from ematix_flow.strategies.scd2_new_events import (
    AT,
    EVENTS,
    GONE,
    HASH,
    IS_NEW,
    IS_STORED,
    content_hash,
    event_columns,
)
from ematix_flow.strategies.sql import (
    IncomingRows,
    StrategyDialect,
    StrategyStep,
    ascending,
    column,
    equal_keys,
    insert_into,
    subquery,
    table_as,
)

TOUCHED, HISTORY = "touched", "history"
KIND, VERSION = internal_name("kind"), 0
_SAME, _DELETE = 1, 2
_UNTIL, _FROM_TABLE = internal_name("until"), internal_name("derived")
_PLACE = internal_name("place")
_HASH_BEFORE, _GONE_BEFORE = internal_name("hash_before"), internal_name("gone_before")
_AT_BEFORE = internal_name("at_before")
_ENDED = internal_name("ended")  # the current end of the stored version
_BOOLEAN, _MOMENT = DataType("boolean"), DataType("timestamp_tz")


def history_columns(table: TableSpec) -> tuple[ColumnSpec, ...]:
    """The columns of a point: those of an event, the end of its version, and what it does."""
    return (
        *event_columns(table),
        ColumnSpec(_ENDED, _MOMENT, nullable=True),
        ColumnSpec(_UNTIL, _MOMENT, nullable=True),
        ColumnSpec(KIND, DataType("small_int")),
        ColumnSpec(_FROM_TABLE, _BOOLEAN),
    )


def _points(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Expr:
    """All points in time of the touched keys, stored and new, including several at one time."""
    names, keys = table.column_names, incoming.matching.keys
    false, true = dialect.literal(False, _BOOLEAN), dialect.literal(True, _BOOLEAN)
    target = dialect.table(table.schema, table.name)

    def of_touched_keys(source: exp.Expr) -> exp.Select:
        on = exp.and_(*equal_keys(keys, "p", "k"))
        return exp.select().from_(source).join(table_as(incoming.work[TOUCHED], "k"), on=on)

    def with_labels(*values: exp.Expr) -> list[exp.Expr]:
        labels = (AT, HASH, GONE, IS_STORED, IS_NEW, LOADED_AT, BATCH_ID, _FROM_TABLE, _ENDED)
        return [exp.alias_(v, n, quoted=True) for n, v in zip(labels, values, strict=True)]

    fields = (AT, HASH, GONE, IS_STORED, IS_NEW, LOADED_AT, BATCH_ID)
    new = exp.select(
        *[column(n, "p") for n in names],
        *with_labels(*[column(f, "p") for f in fields], false.copy(), dialect.literal(None, _MOMENT)),
    ).from_(table_as(incoming.work[EVENTS], "p"))
    versions = of_touched_keys(table_as(target, "p")).select(
        *[column(n, "p") for n in names],
        *with_labels(
            column(VALID_FROM, "p"),
            content_hash(dialect, table, incoming.matching.compare, "p"),
            false.copy(),
            true.copy(),
            false.copy(),
            column(LOADED_AT, "p"),
            column(BATCH_ID, "p"),
            false.copy(),
            column(VALID_TO, "p"),
        ),
    )
    parts: list[exp.Expr] = [new, versions]
    if table.keeps == "versions" or incoming.matching.ttl_seconds is None:
        # where a version ends and none begins; the end of a time to live is computed again instead
        nothing: list[exp.Expr] = [
            column(n, "p") if n in keys else _null(dialect, table.column(n).type, n) for n in names
        ]
        ends = of_touched_keys(table_as(target, "p")).select(
            *nothing,
            *with_labels(
                column(VALID_TO, "p"),
                dialect.literal(None, DataType("bytes")),
                true.copy(),
                false.copy(),
                false.copy(),
                column(LOADED_AT, "p"),
                column(BATCH_ID, "p"),
                true.copy(),
                dialect.literal(None, _MOMENT),
            ),
        )
        parts.append(ends.where(exp.not_(exp.Is(this=column(VALID_TO, "p"), expression=exp.Null()))))
    companion = table.companion()
    if companion is not None and table.keeps == "events":
        others = of_touched_keys(table_as(dialect.table(companion.schema, companion.name), "p")).select(
            *[column(n, "p") for n in names],
            *with_labels(
                column(EVENT_AT, "p"),
                content_hash(dialect, table, incoming.matching.compare, "p"),
                column(IS_DELETE, "p"),
                false.copy(),
                false.copy(),
                column(LOADED_AT, "p"),
                column(BATCH_ID, "p"),
                false.copy(),
                dialect.literal(None, _MOMENT),
            ),
        )
        parts.append(others)
    return exp.union(*parts, distinct=False)


def _null(dialect: StrategyDialect, data_type: DataType, name: str) -> exp.Expr:
    return exp.alias_(dialect.literal(None, data_type), name, quoted=True)


def fill_history(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Insert:
    """Keep one value for each time, join consecutive equal ones, and compute the end of each version."""
    matching, names = incoming.matching, table.column_names
    true = dialect.literal(True, _BOOLEAN)
    by_key = [dialect.comparable(column(k, "p"), table.column(k).type) for k in matching.keys]
    fields = (*names, AT, HASH, GONE, IS_STORED, IS_NEW, LOADED_AT, BATCH_ID, _FROM_TABLE, _ENDED)

    def in_order(*order: exp.Expr) -> dict[str, object]:
        return {"partition_by": [k.copy() for k in by_key], "order": exp.Order(expressions=list(order))}

    def selected(
        inner: exp.Expr, carried: tuple[str, ...], extra: Mapping[str, exp.Expr] | None = None
    ) -> exp.Select:
        added = [exp.alias_(v, n, quoted=True) for n, v in (extra or {}).items()]
        rows = exp.select(*[column(f, "p") for f in carried], *added)
        return rows.from_(subquery(inner, "p"), copy=False)

    # an event ranks before a delete, a new event before the stored one that it outranks; a change that is
    # applied is the newest, also if it is a delete
    ranks = [ascending(column(GONE, "p")), exp.Ordered(this=column(IS_NEW, "p"), desc=True)]
    if table.keeps == "change_versions":
        ranks.reverse()
    place = exp.Window(
        this=exp.RowNumber(),
        partition_by=[*[k.copy() for k in by_key], column(AT, "p")],
        order=exp.Order(expressions=[*ranks, ascending(column(_FROM_TABLE, "p"))]),
    )
    numbered = selected(_points(dialect, table, incoming), fields, {_PLACE: place})
    first = exp.EQ(this=column(_PLACE, "p"), expression=exp.Literal.number(1))
    winners = selected(numbered, fields).where(first, copy=False)

    at = ascending(column(AT, "p"))
    before = selected(
        winners,
        fields,
        {
            _HASH_BEFORE: exp.Window(this=exp.Lag(this=column(HASH, "p")), **in_order(at.copy())),
            _GONE_BEFORE: exp.Window(this=exp.Lag(this=column(GONE, "p")), **in_order(at.copy())),
            _AT_BEFORE: exp.Window(this=exp.Lag(this=column(AT, "p")), **in_order(at.copy())),
        },
    )
    is_gone = exp.EQ(this=column(GONE, "p"), expression=true.copy())
    opens: list[exp.Expr] = [
        exp.Is(this=column(_AT_BEFORE, "p"), expression=exp.Null()),
        exp.EQ(this=column(_GONE_BEFORE, "p"), expression=true.copy()),
        exp.NEQ(this=column(_HASH_BEFORE, "p"), expression=column(HASH, "p")),
    ]
    if table.keeps == "events" and matching.ttl_seconds is not None:
        expired = dialect.add_seconds(column(_AT_BEFORE, "p"), matching.ttl_seconds)
        opens.append(exp.GT(this=column(AT, "p"), expression=expired))
    kind = exp.Case(
        ifs=[
            exp.If(this=is_gone, true=exp.Literal.number(_DELETE)),
            exp.If(this=exp.paren(exp.or_(*opens)), true=exp.Literal.number(VERSION)),
        ],
        default=exp.Literal.number(_SAME),
    )
    kinds = selected(before, fields, {KIND: kind})
    # for each point the next one that is not a repetition: the smallest of those after it
    boundary = exp.Case(
        ifs=[
            exp.If(
                this=exp.NEQ(this=column(KIND, "p"), expression=exp.Literal.number(_SAME)),
                true=column(AT, "p"),
            )
        ]
    )
    following = exp.WindowSpec(
        kind="ROWS", start="1", start_side="FOLLOWING", end="UNBOUNDED", end_side="FOLLOWING"
    )
    until = exp.Window(this=exp.Min(this=boundary), **in_order(at.copy()), spec=following)
    ends = selected(kinds, (*fields, KIND), {_UNTIL: until})
    if table.keeps == "events" and matching.ttl_seconds is not None:
        ends = scd2_ttl.end_expired_versions(
            dialect,
            incoming,
            ends,
            (*fields, KIND, _UNTIL),
            by_key,
            at=AT,
            until=_UNTIL,
            kind=KIND,
            version=VERSION,
            delete=_DELETE,
        )
    columns = [*fields, KIND, _UNTIL]
    return insert_into(incoming.work[HISTORY], columns, selected(ends, tuple(columns)))


# ------------------------------------------------------------------ making the tables equal to it


def write_steps(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> list[StrategyStep | LoadGuard]:
    target, history = dialect.table(table.schema, table.name), incoming.work[HISTORY]
    keys, names = incoming.matching.keys, table.column_names
    true, false = dialect.literal(True, _BOOLEAN), dialect.literal(False, _BOOLEAN)
    is_version = exp.EQ(this=column(KIND, "s"), expression=exp.Literal.number(VERSION))
    is_stored = exp.EQ(this=column(IS_STORED, "s"), expression=true.copy())
    is_open = exp.Is(this=column(_UNTIL, "s"), expression=exp.Null())
    is_current = exp.Case(ifs=[exp.If(this=is_open, true=true.copy())], default=false.copy())
    place = {**{k: k for k in keys}, VALID_FROM: AT}

    absorbed = dialect.delete_from(
        target, history, place, exp.and_(is_stored.copy(), exp.not_(is_version.copy()))
    )
    values: dict[str, exp.Expr] = {n: column(n, "s") for n in names if n not in keys}
    values |= {
        VALID_TO: column(_UNTIL, "s"),
        IS_CURRENT: is_current,
        ROW_HASH: column(HASH, "s"),
        LOADED_AT: column(LOADED_AT, "s"),
        BATCH_ID: column(BATCH_ID, "s"),
    }
    is_new = exp.EQ(this=column(IS_NEW, "s"), expression=true.copy())
    ends_elsewhere = exp.not_(null_safe_equal(dialect, column(_ENDED, "s"), column(_UNTIL, "s"), _MOMENT))
    changed = exp.and_(
        is_version.copy(),
        is_stored.copy(),
        exp.paren(exp.or_(is_new, ends_elsewhere)),
        *equal_keys(keys, "t", "s"),
        exp.EQ(this=column(VALID_FROM, "t"), expression=column(AT, "s")),
    )
    inserted = {**{k: column(k, "s") for k in keys}, VALID_FROM: column(AT, "s"), **values}
    unstored = exp.EQ(this=column(IS_STORED, "s"), expression=false.copy())
    opened = (
        exp.select(*[v.copy() for v in inserted.values()])
        .from_(table_as(history, "s"))
        .where(is_version.copy(), unstored)
    )
    out: list[StrategyStep | LoadGuard] = [
        StrategyStep("delete", absorbed),
        StrategyStep("update", dialect.update_from(target, history, values, changed)),
        StrategyStep("insert", insert_into(target, list(inserted), opened)),
    ]
    companion = table.companion()
    if companion is not None and table.keeps == "events":
        companion_table = dialect.table(companion.schema, companion.name)
        out.append(
            StrategyStep(
                "work",
                dialect.delete_from(companion_table, incoming.work[TOUCHED], {k: k for k in keys}, None),
            )
        )
        derived = exp.EQ(this=column(_FROM_TABLE, "s"), expression=true.copy())
        kept = {
            **{n: column(n, "s") for n in names},
            EVENT_AT: column(AT, "s"),
            IS_DELETE: column(GONE, "s"),
            ROW_HASH: column(HASH, "s"),
            LOADED_AT: column(LOADED_AT, "s"),
            BATCH_ID: column(BATCH_ID, "s"),
        }
        others = (
            exp.select(*kept.values())
            .from_(table_as(history, "s"))
            .where(exp.not_(is_version.copy()), exp.not_(derived))
        )
        out.append(StrategyStep("work", insert_into(companion_table, list(kept), others)))
    return out
