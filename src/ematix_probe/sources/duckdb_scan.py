"""Opens scans in a DuckDB database in memory: what files, lakes and data frames have in common.

The database takes at most half of the free memory and spills into a folder that is removed at the end. Each
table of a probe is a view there. Of Arrow batches a statement reads only the columns that it names.
"""

from __future__ import annotations

import re
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_probe.errors import ProbeError, SourceFailed
from ematix_probe.sources.base import ColumnInfo, OpenSubject, Source, Subject
from ematix_probe.sources.interrupting import run_interruptibly
from ematix_probe.sources.machine_limits import processors, scan_memory
from ematix_probe.sources.scans import BatchScan, Scan, SpooledScan, SqlScan

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_TAIL = re.compile(r"\n\s*\nLINE \d+:.*\Z|\n\s*LINE \d+:.*\Z", re.DOTALL)
_KIND = re.compile(r"\A[A-Z][A-Za-z ]* Error: ")
_STREAM = re.compile(r"\Areading the stream registered as '\w+' failed: (?:[A-Z]\w+(?: \w+)?: )?")
_TRACEBACK = re.compile(r"\.? Detail: Python exception:.*\Z", re.DOTALL)


class Workspace:
    """A DuckDB database in memory and a folder for what does not fit; both end together."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self.connection, self.folder = connection, folder

    def describe(self, query: exp.Query) -> list[tuple[str, str]]:
        """The names and DuckDB's types of a query's columns."""
        import duckdb

        try:
            found = self.connection.execute(f"DESCRIBE {query.sql(dialect='duckdb')}").fetchall()
        except duckdb.Error as error:
            raise SourceFailed(plain_message(str(error))) from error
        return [(name, native) for name, native, *_ in found]


@contextmanager
def open_workspace() -> Iterator[Workspace]:
    import duckdb

    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ematix-probe-", ignore_cleanup_errors=True)
        )
        settings: dict[str, Any] = {
            "memory_limit": scan_memory(),
            "threads": processors(),
            "temp_directory": str(Path(folder) / "spill"),
            "preserve_insertion_order": False,
            "python_enable_replacements": False,  # a name in SQL is never a variable of the program
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        connection = duckdb.connect(":memory:", config=settings)
        stack.callback(connection.close)
        connection.execute("SET TimeZone = 'UTC'")
        yield Workspace(connection, Path(folder))


class ScanSource(Source):
    """A source whose tables are scans."""

    @abstractmethod
    def scan(self, subject: Subject, workspace: Workspace) -> Scan:
        """The rows of a table of this source. SourceFailed when there is none of that name."""

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        with open_workspace() as workspace:
            yield ScannedSubject(workspace, lambda wanted: self.scan(wanted, workspace), subject, self.label)


class ScannedSubject(OpenSubject):
    """The OpenSubject over scans. ``find`` returns the scan of a table."""

    dialect = "duckdb"

    def __init__(
        self, workspace: Workspace, find: Callable[[Subject], Scan], subject: Subject, label: str
    ) -> None:
        self._connection = workspace.connection
        self._find, self._label = find, label
        self._views: dict[Subject, exp.Table] = {}
        self._scans: dict[str, Scan] = {}  # by the name of the view
        self._readers: dict[str, _Batches] = {}
        self._copies: dict[str, frozenset[str]] = {}  # the columns, in lower case, by the name of the view
        if subject.query is None:
            self._rows: exp.Query | exp.Table = self._view(subject)
        else:
            self._rows = self._rewritten(subject.query)
        self._columns = self._described(self._rows)

    # ------------------------------------------------------------------ the contract

    def columns(self) -> Sequence[ColumnInfo]:
        return self._columns

    def rows(self) -> exp.Query | exp.Table:
        rows = self._rows.copy()
        names = [self._rows.name] if isinstance(self._rows, exp.Table) else list(self._scans)
        rows.meta["costly"] = any(self._scans[name].costly and name not in self._copies for name in names)
        return rows

    def reference(self, table: str) -> exp.Query | exp.Table:
        schema, _, name = table.rpartition(".")
        try:
            return self._view(Subject(name, schema or None)).copy()
        except ProbeError:
            if not schema:
                raise
            return self._view(Subject(table)).copy()  # a file's name with its extension

    def reference_columns(self, table: str) -> Sequence[ColumnInfo]:
        return self._described(self.reference(table))

    def fetch(self, query: exp.Query) -> list[tuple[Any, ...]]:
        with self._narrowed(query) as narrow:
            return self._execute(narrow.sql(dialect="duckdb"))

    # ------------------------------------------------------------------ views

    def _view(self, subject: Subject) -> exp.Table:
        if subject not in self._views:
            name = f"ematix_probe_{len(self._views)}"
            self._add(name, self._find(subject))
            self._views[subject] = exp.Table(this=exp.to_identifier(name, quoted=True))
        return self._views[subject]

    def _add(self, name: str, scan: Scan) -> None:
        self._scans[name] = scan
        if isinstance(scan, SqlScan):
            self._run(f'CREATE TEMP VIEW "{name}" AS {scan.query.sql(dialect="duckdb")}')
        elif isinstance(scan, SpooledScan):
            with self._errors():
                self._connection.register(f"{name}_once", as_readable(scan.reader))
            self._run(f'CREATE TEMP TABLE "{name}" AS SELECT * FROM "{name}_once"')
            self._connection.unregister(f"{name}_once")
        elif isinstance(scan, BatchScan):
            self._readers[name] = _Batches(scan, tuple(readable_columns(scan.schema())))
            with self._errors():
                self._connection.register(name, self._readers[name])
        else:
            raise TypeError(f"unknown scan {scan!r}")

    def _rewritten(self, query: str) -> exp.Query:
        """The query with the views in the place of its tables."""
        from sqlglot.optimizer.scope import traverse_scope

        from ematix_probe.compiling.user_sql import read_query

        tree = read_query(query, "duckdb").copy()
        scopes = traverse_scope(tree)
        tables = [table for scope in scopes for table in scope.tables if _is_name(table, scope)]
        for table in tables:
            view = self._view(Subject(table.name, table.db or None)).copy()
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name, quoted=True))
            view.set("alias", alias.copy())
            table.replace(view)
        return tree

    def _described(self, rows: exp.Query | exp.Table) -> list[ColumnInfo]:
        from ematix_probe.sources.duckdb_types import column_info

        not_null: frozenset[str] = frozenset()
        if isinstance(rows, exp.Table):
            not_null = self._scans[rows.name].not_null
            rows = exp.select("*").from_(rows.copy())
        described = self._execute(f"DESCRIBE {rows.sql(dialect='duckdb')}")
        return [
            column_info(name, native, nullable=False if name in not_null else None)
            for name, native, *_ in described
            if name != NO_COLUMN
        ]

    # ------------------------------------------------------------------ statements

    @contextmanager
    def _narrowed(self, query: exp.Query) -> Iterator[exp.Query]:
        """The statement with a separate stream for each use of a table, of only the columns that it names.

        What is costly to read and used several times is copied first. The copy stays for later statements.
        """
        narrow = query.copy()
        uses: dict[str, list[exp.Table]] = {}
        for table in narrow.find_all(exp.Table):
            if table.name in self._scans and not table.db:
                uses.setdefault(table.name, []).append(table)
        registered: list[str] = []
        wanted = named_columns(narrow) if any(self._scans[name].costly for name in uses) else None
        try:
            for name, tables in uses.items():
                if self._has_copy(name, wanted) or (len(tables) > 1 and self._scans[name].costly):
                    self._copy(name, tables, wanted)
                elif name in self._readers:
                    registered += [self._stream(name, table, i) for i, table in enumerate(tables)]
            yield narrow
        finally:
            for each in registered:
                self._connection.unregister(each)

    def _stream(self, name: str, table: exp.Table, number: int) -> str:
        stream, batches = f"{name}_{number}", self._readers[name]
        select = table.find_ancestor(exp.Select)
        self._connection.register(stream, batches.only(named_columns(select) if select else None))
        _replace(table, stream)
        return stream

    def _has_copy(self, name: str, wanted: frozenset[str] | None) -> bool:
        """Whether there is a copy with these columns (in lower case); None: with all."""
        copied = self._copies.get(name)
        if copied is None:
            return False
        every = {each.lower() for each in self._column_names(name)}
        return copied >= (every if wanted is None else every & wanted)

    def _copy(self, name: str, tables: Sequence[exp.Table], wanted: frozenset[str] | None) -> None:
        """Let uses of a table be those of a copy, which is made if there is none with these columns."""
        copy = f"{name}_copy"
        if not self._has_copy(name, wanted):
            columns = self._column_names(name)
            chosen = [each for each in columns if wanted is None or each.lower() in wanted] or columns[:1]
            select = exp.select(
                *(exp.column(each, quoted=True) for each in chosen) if chosen else ("*",)
            ).from_(exp.Table(this=exp.to_identifier(name, quoted=True)))
            self._copies.pop(name, None)
            with self._narrowed(select) as narrow:
                self._run(f'CREATE OR REPLACE TEMP TABLE "{copy}" AS {narrow.sql(dialect="duckdb")}')
            self._copies[name] = frozenset(each.lower() for each in chosen)
        for table in tables:
            _replace(table, copy)

    def _column_names(self, name: str) -> list[str]:
        return [each.name for each in self._described(exp.Table(this=exp.to_identifier(name, quoted=True)))]

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        with self._errors():
            return run_interruptibly(lambda: fetch_rows(self._connection, sql), self._connection.interrupt)

    def _run(self, sql: str) -> None:
        with self._errors():
            run_interruptibly(lambda: self._connection.execute(sql), self._connection.interrupt)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import duckdb
        import pyarrow as pa

        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> SourceFailed:
        message = plain_message(str(error))
        for scan in self._scans.values():
            message = scan.explain(message)
        return SourceFailed(message, where=self._label)


NO_COLUMN = "ematix_probe_no_column"  # the column of a table without columns


class _Batches:
    """Batches as DuckDB takes them: it asks for a new stream for each use in a statement."""

    def __init__(self, scan: BatchScan, names: tuple[str, ...]) -> None:
        self._scan, self.names = scan, names

    def only(self, wanted: frozenset[str] | None) -> _Batches:
        """The batches with these columns (in lower case); None: all. There is at least one column."""
        if wanted is None:
            return self
        return _Batches(
            self._scan, tuple(name for name in self.names if name.lower() in wanted) or self.names[:1]
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        import pyarrow as pa

        if not self.names:
            empty = pa.schema([pa.field(NO_COLUMN, pa.bool_())]).empty_table()
            return empty.__arrow_c_stream__()
        return as_readable(self._scan.read(self.names)).__arrow_c_stream__()


def _replace(table: exp.Table, name: str) -> None:
    """Let a use of a table be one of another name, under the same alias."""
    if not table.alias:
        table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
    table.set("this", exp.to_identifier(name, quoted=True))


def named_columns(query: exp.Query | exp.Expression) -> frozenset[str] | None:
    """The names of all columns in a statement, in lower case; None when it may take all of them."""
    if query.find(exp.Columns, exp.Pivot) or any(
        not isinstance(star.parent, exp.Count) for star in query.find_all(exp.Star)
    ):
        return None
    # a.b may also be the field b of the column a
    names = {part.name.lower() for each in query.find_all(exp.Column) for part in each.parts}
    for join in query.find_all(exp.Join):
        if join.method == "NATURAL":
            return None
        names |= {each.name.lower() for each in join.args.get("using") or ()}
    firsts = {each.name.lower() for each in query.find_all(exp.Column) if not each.table}
    if firsts & {each.alias_or_name.lower() for each in query.find_all(exp.Table)}:
        return None  # the name of a table as a value: all of its row
    return frozenset(names)


def fetch_rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a statement. Times with a zone come through Arrow: DuckDB would need pytz for them."""
    found = connection.sql(sql)
    kinds = [str(kind) for kind in found.types]
    if not any("TIME ZONE" in kind or "TZ" in kind for kind in kinds):
        return [tuple(row) for row in found.fetchall()]
    table = found.to_arrow_table()
    columns = [_values(table.column(i), kind) for i, kind in enumerate(kinds)]
    return list(zip(*columns, strict=True))


def _values(column: pa.ChunkedArray, kind: str) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # which Python does not hold
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    if kind in ("HUGEINT", "UHUGEINT"):
        return [None if value is None else int(value) for value in values]
    return values


def plain_message(message: str) -> str:
    """DuckDB's message without the statement, which the user did not write."""
    text = _KIND.sub("", _TAIL.sub("", message.strip()), count=1)
    return _TRACEBACK.sub("", _STREAM.sub("", text)).strip()


def _is_name(table: exp.Table, scope: Any) -> bool:
    """Whether it is a name to look up: no function, and no common table expression."""
    return isinstance(table.this, exp.Identifier) and scope.sources.get(table.alias_or_name) is table


# ------------------------------------------------------------------ Arrow types that DuckDB does not read


def readable_columns(schema: pa.Schema) -> list[str]:
    """The columns that DuckDB can read, if need be as another type (`as_readable`)."""
    return [field.name for field in schema if _readable_type(field.type) is not None]


def as_readable(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The batches with the types that DuckDB lacks replaced by wider ones."""
    import pyarrow as pa

    fields = [field.with_type(_readable_type(field.type) or field.type) for field in reader.schema]
    wanted = pa.schema(fields)
    if wanted.equals(reader.schema):
        return reader
    batches = (
        pa.RecordBatch.from_arrays(
            [array.cast(field.type) for array, field in zip(batch.columns, wanted, strict=True)],
            schema=wanted,
        )
        for batch in reader
    )
    return pa.RecordBatchReader.from_batches(wanted, batches)


def _readable_type(kind: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else pa.string()
    if pa.types.is_union(kind):
        return None
    return kind
