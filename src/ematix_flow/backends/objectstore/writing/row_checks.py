"""Checks the rows of files with DuckDB: what each rule finds, and which rows fail the rules of a quarantine.

The rows are copied into a DuckDB database in memory, which spills to disk: rules may read them several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow.backends.base import Load
from ematix_flow.backends.sql.rule_checks import check_rows, column_infos, diagnose
from ematix_flow.errors import ExpectationFailed, FlowError, TargetFailed
from ematix_flow.spec.expectations import Expectation, ExpectationResult, Gate
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.strategies.sql import column, identifier

if TYPE_CHECKING:
    import duckdb
    import numpy
    import pyarrow as pa

ReadRows = Callable[[], Iterable["pa.RecordBatch"]]
ReadTable = Callable[[str], tuple[Sequence[ColumnSpec], Iterable["pa.RecordBatch"]]]
"""The columns and rows of another table, by the name that a rule gives it."""

_ROWS, _FAILING, _RULE = internal_name("rows"), internal_name("failing"), internal_name("rule")
_PIECE, _PLACE = internal_name("piece"), internal_name("place")
_INSERTED_ROWS = 262_144


@dataclass(frozen=True)
class FailingRows:
    """The rows of a piece that fail: their places in it, and the number of the rule that each fails first."""

    places: numpy.ndarray[Any, Any]
    rules: numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class CheckedPieces:
    """What the rules found, and the rows to set aside by the number of their piece."""

    results: tuple[ExpectationResult, ...] = ()
    failing: Mapping[int, FailingRows] = field(default_factory=dict)

    @property
    def quarantined(self) -> int:
        return sum(len(rows.places) for rows in self.failing.values())


def check_pieces(load: Load, gate: Gate, pieces: Sequence[ReadRows], read_table: ReadTable) -> CheckedPieces:
    """Evaluate the rules on the rows of all pieces together. Raises ExpectationFailed."""
    from ematix_probe.sources.duckdb_scan import open_workspace

    with open_workspace() as workspace:
        checks = _Checks(workspace.connection, load, gate, read_table)
        checks.copy_rows(pieces)
        results = checks.evaluate_all()
        if gate.quarantine is None or not any(r.failing for r in results if r.action == "quarantine"):
            return CheckedPieces(results)
        return checks.divide(results)


class _Checks:
    def __init__(
        self, engine: duckdb.DuckDBPyConnection, load: Load, gate: Gate, read_table: ReadTable
    ) -> None:
        self._engine, self._load, self._gate, self._read_table = engine, load, gate, read_table
        self._columns = column_infos(load.table.columns, None)
        self._tables: dict[str, exp.Table] = {}

    def copy_rows(self, pieces: Sequence[ReadRows]) -> None:
        import numpy
        import pyarrow as pa

        fields = [(_PIECE, pa.int32()), (_PLACE, pa.int64())]
        table = _Table(self._engine, _ROWS, self._load.table.columns, fields)
        for number, read in enumerate(pieces):
            start = 0
            for batch in read():
                places = pa.array(numpy.arange(start, start + batch.num_rows, dtype="int64"))
                table.add([pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows), places], batch)
                start += batch.num_rows
        table.flush()

    def evaluate_all(self) -> tuple[ExpectationResult, ...]:
        try:
            return self._evaluate(self._gate)
        except ExpectationFailed:
            raise
        except FlowError as error:
            found = diagnose(self._gate, error, self._run_alone, self._load)
            raise found from (error.__cause__ if found is error else error)

    def _run_alone(self, rule: Expectation) -> None:
        self._evaluate(replace(self._gate, rules=(rule,), enforced=False))

    def _evaluate(self, gate: Gate) -> tuple[ExpectationResult, ...]:
        rows = self._select_rows()
        return check_rows(
            gate, self._load, self._columns, "duckdb", rows, self._reference, self._fetch, self._fetch
        )

    def divide(self, results: tuple[ExpectationResult, ...]) -> CheckedPieces:
        """Find the failing rows, each with the first rule that it fails."""
        from ematix_probe.compiling import ROWS, failing_rows

        rows = self._select_rows(_PIECE, _PLACE)
        rules = self._gate.set_aside_rules
        cases = []
        for number, rule in enumerate(rules):
            failing = failing_rows(
                rule.assertion, self._columns, "duckdb", rows, self._reference, case=number
            )
            cases.append(exp.If(this=failing.condition, true=exp.Literal.number(number)))
        named: list[exp.Expr] = [
            exp.Column(this=identifier(name), table=identifier(ROWS)) for name in (_PIECE, _PLACE)
        ]
        first = exp.alias_(exp.Case(ifs=cases), _RULE, quoted=True)
        checked = exp.Subquery(this=rows, alias=exp.TableAlias(this=identifier(ROWS)))
        select = exp.select(*named, first).from_(checked).sql(dialect="duckdb")
        with _errors():
            self._engine.execute(
                f'CREATE TABLE "{_FAILING}" AS SELECT * FROM ({select}) WHERE "{_RULE}" IS NOT NULL'
            )
        counted = self._fetch(f'SELECT "{_RULE}", count(*) FROM "{_FAILING}" GROUP BY ALL')
        counts = {rules[int(number)].label: int(count) for number, count in counted}
        found = self._fetch(f'SELECT DISTINCT "{_PIECE}" FROM "{_FAILING}"')
        return CheckedPieces(
            tuple(
                replace(each, quarantined=counts.get(each.rule, 0)) if each.action == "quarantine" else each
                for each in results
            ),
            {int(piece): self._failing_rows(int(piece)) for (piece,) in found},
        )

    def _failing_rows(self, piece: int) -> FailingRows:
        with _errors():
            found = self._engine.execute(
                f'SELECT "{_PLACE}" AS place, CAST("{_RULE}" AS SMALLINT) AS rule FROM "{_FAILING}" '
                f'WHERE "{_PIECE}" = ? ORDER BY ALL',
                [piece],
            ).fetchnumpy()
        return FailingRows(found["place"], found["rule"])

    def _select_rows(self, *more: str) -> exp.Select:
        names = [*self._load.table.column_names, *more]
        return exp.select(*map(column, names)).from_(exp.Table(this=identifier(_ROWS)))

    def _reference(self, table: str) -> exp.Table:
        if table not in self._tables:
            name = internal_name(f"table_{len(self._tables)}")
            columns, batches = self._read_table(table)
            copied = _Table(self._engine, name, columns)
            for batch in batches:
                copied.add([], batch)
            copied.flush()
            self._tables[table] = exp.Table(this=identifier(name))
        return self._tables[table].copy()

    def _fetch(self, sql: str) -> list[tuple[Any, ...]]:
        from ematix_probe.sources.duckdb_scan import fetch_rows

        with _errors():
            return fetch_rows(self._engine, sql)


class _Table:
    """A table of DuckDB that is filled batch by batch."""

    def __init__(
        self,
        engine: duckdb.DuckDBPyConnection,
        name: str,
        columns: Sequence[ColumnSpec],
        more: Sequence[tuple[str, pa.DataType]] = (),
    ) -> None:
        import pyarrow as pa

        self._engine, self._name = engine, name
        self._names = [c.name for c in columns]
        self._schema = pa.schema([*more, *[(c.name, c.type.arrow()) for c in columns]])
        self._waiting: list[pa.RecordBatch] = []
        self._run(self._schema.empty_table(), f'CREATE TABLE "{name}" AS SELECT * FROM piece')

    def add(self, more: Sequence[pa.Array], batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        arrays = [*more, *(batch.column(name) for name in self._names)]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        if sum(waiting.num_rows for waiting in self._waiting) >= _INSERTED_ROWS:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            rows = pa.Table.from_batches(self._waiting, schema=self._schema)
            self._run(rows, f'INSERT INTO "{self._name}" SELECT * FROM piece')
            self._waiting = []

    def _run(self, rows: pa.Table, sql: str) -> None:
        with _errors():
            self._engine.register("piece", rows)
            self._engine.execute(sql)
            self._engine.unregister("piece")


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what DuckDB refuses as an error of this product."""
    import duckdb

    from ematix_probe.sources.duckdb_scan import plain_message

    try:
        yield
    except duckdb.Error as error:
        raise TargetFailed(
            f"checking the rows failed: {plain_message(str(error))}", state="the table is unchanged"
        ) from error
