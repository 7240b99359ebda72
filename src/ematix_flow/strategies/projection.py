"""From the user's SQL to the declared columns: one SELECT that normalises, shapes and types the rows.

The user's SQL is the innermost subquery, word for word. Around it come, each only where it is needed:
the normalisers of the columns, the pre-transforms, and casts to the declared types. The result yields
the table's columns by name and in order. What a marker means on an engine lives in `functions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from ematix_flow.errors import SchemaMismatch, did_you_mean
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.transforms import DeduplicateBy, FilterWhere, Limit, PreTransform
from ematix_flow.spec.types import DataType
from ematix_flow.strategies import raw_sql
from ematix_flow.strategies.functions import functions_for
from ematix_flow.strategies.functions.base import SqlFunctions, TypedValue, number
from ematix_flow.strategies.functions.casts import cast, needs_cast
from ematix_flow.strategies.functions.column_site import ColumnSite
from ematix_flow.strategies.functions.markers import apply_marker
from ematix_flow.strategies.sql import column, identifier, verbatim, with_alias

_ROW = internal_name("row")


def needs_projection(
    table: TableSpec, pre: Sequence[PreTransform] = (), column_map: Mapping[str, str] | None = None
) -> bool:
    """Whether more happens to the rows than choosing columns by name."""
    renamed = any(target != source for target, source in (column_map or {}).items())
    return bool(pre) or renamed or any(c.normalizers for c in table.columns)


def check_columns(
    *,
    table: TableSpec,
    source_columns: Sequence[str],
    pre: Sequence[PreTransform] = (),
    column_map: Mapping[str, str] | None = None,
    dialect: str = "",
    where: SourceLocation | None = None,
) -> None:
    """SchemaMismatch when source and table do not name the same columns.

    A derived column needs no source; a source column that only an expression, a ``column_map`` or a
    pre-transform uses needs no target.
    """
    _match_columns(table, source_columns, pre, column_map or {}, dialect, where)


def build_projection(
    *,
    source_sql: str,
    table: TableSpec,
    source_columns: Sequence[str],
    source_types: Mapping[str, DataType] | None = None,
    pre: Sequence[PreTransform] = (),
    column_map: Mapping[str, str] | None = None,
    dialect: str,
    where: SourceLocation | None = None,
) -> str:
    """The SELECT, in ``dialect``: postgres, mysql, duckdb, sqlite or spark.

    ``source_types`` are the source's types where they are known; a column whose type is unknown and
    which has no normaliser is passed on as it is.
    """
    functions = functions_for(dialect)
    matched = _match_columns(table, source_columns, pre, column_map or {}, dialect, where)
    types = dict(source_types or {})
    chains = [
        _ColumnChain.start(spec, matched.sources[spec.name], types, functions) for spec in table.columns
    ]
    for chain in chains:
        chain.normalise(functions)
    if not pre:
        for chain in chains:
            chain.cast(functions)
    rows = verbatim(raw_sql.one_statement(source_sql, dialect))
    select = _levels(rows, chains, matched.extras, functions)
    if pre:
        names = [*table.column_names, *matched.extras]
        for transform in pre:
            select = _apply_transform(transform, select, names, functions)
        typed = [
            _ColumnChain(c.spec, [TypedValue(column(c.spec.name), c.value.type)], c.computed) for c in chains
        ]
        for chain in typed:
            chain.cast(functions)
        if matched.extras or any(not isinstance(c.value.tree, exp.Column) for c in typed):
            select = _levels(exp.Subquery(this=select), typed, (), functions)
    return select.sql(dialect=dialect)


# --- columns ---------------------------------------------------------------------------------------


@dataclass
class _ColumnChain:
    """The computation of one column, level by level.

    Each level refers to the column of the level inside it.
    """

    spec: ColumnSpec
    levels: list[TypedValue]
    computed: bool = False

    @classmethod
    def start(
        cls, spec: ColumnSpec, source: _ColumnSource, types: Mapping[str, DataType], functions: SqlFunctions
    ) -> _ColumnChain:
        if source.name is not None:
            found = types.get(source.name)
            return cls(spec, [TypedValue(functions.from_source(column(source.name), found), found)])
        raw = raw_sql.parse_expression(source.expression, functions.name, what=f"column {spec.name!r}")
        return cls(spec, [TypedValue(raw, None)], computed=True)

    @property
    def value(self) -> TypedValue:
        return self.levels[-1]

    def normalise(self, functions: SqlFunctions) -> None:
        for marker in self.spec.normalizers:
            self.computed = True
            if marker.name == "derive":  # it is where the chain starts
                continue
            if marker.name == "sql":
                what = f"column {self.spec.name!r}, sql()"
                value = self._compute_in_own_level(self.value).tree
                tree = raw_sql.parse_expression(marker["expr"], functions.name, value=value, what=what)
                self.levels[-1] = TypedValue(tree, None)
            else:
                self.levels[-1] = apply_marker(marker, self.value, self._site(functions))

    def cast(self, functions: SqlFunctions) -> None:
        if needs_cast(self.value.type, self.spec.type, computed=self.computed):
            value = self._compute_in_own_level(self.value)
            self.levels[-1] = cast(value, self.spec.type, self._site(functions))

    def _site(self, functions: SqlFunctions) -> ColumnSite:
        return ColumnSite(functions, self.spec.name, self._compute_in_own_level)

    def _compute_in_own_level(self, value: TypedValue) -> TypedValue:
        """Compute the value in its own level, and continue with its column."""
        if isinstance(value.tree, exp.Column):
            return value
        self.levels[-1] = value
        self.levels.append(TypedValue(column(self.spec.name), value.type))
        return self.value


def _levels(
    rows: exp.Subquery, chains: Sequence[_ColumnChain], extras: Sequence[str], functions: SqlFunctions
) -> exp.Select:
    """One SELECT for each level, from the inside out."""
    depth = max(len(chain.levels) for chain in chains)
    for level in range(depth):
        items: list[exp.Expression] = []
        for chain in chains:
            name = chain.spec.name
            tree = chain.levels[level].tree if level < len(chain.levels) else column(name)
            same = isinstance(tree, exp.Column) and tree.name == name
            items.append(tree if same else exp.Alias(this=tree, alias=identifier(name)))
        items += [column(extra) for extra in extras]
        with_alias(rows, f"level{level}")
        select = exp.select(*items).from_(rows)
        if level < depth - 1:
            rows = exp.Subquery(this=functions.fence(select))
    return select


# --- pre-transforms --------------------------------------------------------------------------------


def _apply_transform(
    transform: PreTransform, inner: exp.Select, names: Sequence[str], functions: SqlFunctions
) -> exp.Select:
    rows = with_alias(exp.Subquery(this=inner), "rows")
    select = exp.select(*[column(n) for n in names]).from_(rows)
    if isinstance(transform, FilterWhere):
        return select.where(raw_sql.parse_expression(transform.expr, functions.name, what="filter_where()"))
    if isinstance(transform, Limit):
        return select.limit(transform.n)
    if isinstance(transform, DeduplicateBy):
        return _deduplicate(transform, select, names, functions)
    return select.where(exp.LT(this=functions.random(), expression=number(transform.p)))


def _deduplicate(
    transform: DeduplicateBy, select: exp.Select, names: Sequence[str], functions: SqlFunctions
) -> exp.Select:
    for key in transform.keys:
        if key not in names:
            raise SchemaMismatch(f"deduplicate_by(): there is no column {key!r}.{did_you_mean(key, names)}")
    items = [
        raw_sql.ordering_tree(item, names, functions.name)
        for raw in transform.order_by
        for item in raw_sql.parse_orderings(raw, functions.name)
    ]
    keys: list[exp.Expression] = [column(k) for k in transform.keys]
    order = exp.Order(expressions=items or [exp.Ordered(this=k.copy(), nulls_first=False) for k in keys])
    place = exp.Window(this=exp.RowNumber(), partition_by=keys, order=order)
    numbered = select.select(exp.Alias(this=place, alias=identifier(_ROW)))
    rows = with_alias(exp.Subquery(this=numbered), "numbered")
    first = exp.EQ(this=column(_ROW), expression=number(1))
    return exp.select(*[column(n) for n in names]).from_(rows).where(first)


# --- which source column feeds which target column ---------------------------------------------------


@dataclass(frozen=True)
class _ColumnSource:
    """Where a column's value comes from: a source column by ``name``, or an ``expression``."""

    name: str | None = None
    expression: str = ""


@dataclass
class _MatchedColumns:
    sources: dict[str, _ColumnSource] = field(default_factory=dict)
    extras: list[str] = field(default_factory=list)  # source columns that only pre-transforms use


def _match_columns(
    table: TableSpec,
    source_columns: Sequence[str],
    pre: Sequence[PreTransform],
    column_map: Mapping[str, str],
    dialect: str,
    where: SourceLocation | None,
) -> _MatchedColumns:
    for target in column_map:
        if target not in table.column_names:
            raise SchemaMismatch(
                f"column_map names {target!r}, which {table.label} does not declare."
                f"{did_you_mean(target, table.column_names)}",
                where=where,
            )
    _refuse_repeated_columns(source_columns, where)
    folds_case = dialect != "" and functions_for(dialect).folds_case
    matched, used, missing = _MatchedColumns(), set[str](), []
    for spec in table.columns:
        expression = spec.normalizers[0]["expr"] if _is_derived(spec) else column_map.get(spec.name)
        if expression is None:
            expression = spec.name
        name = None if _is_derived(spec) else _find_column(expression, source_columns, folds_case)
        if name is not None:
            used.add(name)
            matched.sources[spec.name] = _ColumnSource(name)
        elif _is_derived(spec) or spec.name in column_map:
            matched.sources[spec.name] = _ColumnSource(None, expression)
        else:
            missing.append(spec.name)
    expressions = [s.expression for s in matched.sources.values() if s.expression]
    expressions += [n["expr"] for c in table.columns for n in c.normalizers if n.name == "sql"]
    in_columns = _mentioned_columns(expressions, source_columns, dialect)
    in_pre = _mentioned_columns(_expressions_of(pre), source_columns, dialect)
    unknown = [n for n in source_columns if n not in used | in_columns | in_pre]
    if missing or unknown:
        raise _mismatch_error(table, source_columns, missing, unknown, where)
    matched.extras = [n for n in source_columns if n in in_pre and n not in table.column_names]
    return matched


def _is_derived(spec: ColumnSpec) -> bool:
    return bool(spec.normalizers) and spec.normalizers[0].name == "derive"


def _find_column(name: str, source_columns: Sequence[str], folds_case: bool) -> str | None:
    if name in source_columns:
        return name
    alike = [n for n in source_columns if folds_case and n.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _expressions_of(pre: Sequence[PreTransform]) -> list[str]:
    out: list[str] = []
    for transform in pre:
        if isinstance(transform, FilterWhere):
            out.append(transform.expr)
        elif isinstance(transform, DeduplicateBy):
            out += [*(f'"{key}"' for key in transform.keys), *transform.order_by]
    return out


def _mentioned_columns(expressions: Sequence[str], source_columns: Sequence[str], dialect: str) -> set[str]:
    words = {word.lower() for raw in expressions for word in raw_sql.names_in(raw, dialect)}
    return {name for name in source_columns if name.lower() in words}


def _refuse_repeated_columns(source_columns: Sequence[str], where: SourceLocation | None) -> None:
    twice = sorted({n for n in source_columns if list(source_columns).count(n) > 1})
    if twice:
        raise SchemaMismatch(
            f"the source yields column {twice[0]!r} twice",
            where=where,
            next_step="give one of them another name with AS, or leave it out",
        )


def _mismatch_error(
    table: TableSpec,
    source_columns: Sequence[str],
    missing: Sequence[str],
    unknown: Sequence[str],
    where: SourceLocation | None,
) -> SchemaMismatch:
    messages = [
        f"{table.label} declares {name!r}, and the source has no such column."
        f"{did_you_mean(name, source_columns)}"
        for name in missing
    ]
    messages += [
        f"the source yields {name!r}, and {table.label} declares no such column."
        f"{did_you_mean(name, table.column_names)}"
        for name in unknown
    ]
    return SchemaMismatch(
        " ".join(messages),
        where=where,
        state=f"{table.label} is unchanged",
        next_step="name the columns with AS in the source SQL, use column_map=, or declare them",
    )
