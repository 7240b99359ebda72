"""Spark as a source: a frame, a table or a query on a session. Each statement is one job of Spark.

Only public API is used, so that a session of Spark Connect works as well as a local one.
"""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from ematix_probe.column_types import family_of, plain_type
from ematix_probe.errors import CannotConnect, DeclarationError, SourceFailed
from ematix_probe.extras import require
from ematix_probe.location import caller_location
from ematix_probe.sources.base import ColumnInfo, OpenSubject, Source, Subject

_PLAIN = {"timestamp": "timestamptz", "timestamp_ntz": "timestamp", "float": "real", "tinyint": "smallint"}


@dataclass(frozen=True, eq=False)
class SparkSource(Source):
    """A session of Spark. ``frame``, ``table`` or ``query`` is the subject of a probe that names none."""

    kind = "spark"
    session: Any = field(default=None, repr=False)
    frame: Any = field(default=None, repr=False)
    name: str = "frame"
    table: str | None = None
    query: str | None = None

    @property
    def label(self) -> str:
        if self.frame is not None:
            return f"{self.name} (spark)" if self.name != "frame" else "a frame of Spark"
        return "Spark"

    @property
    def default_subject(self) -> Subject | None:
        if self.frame is not None:
            return Subject(self.name)
        if self.table is not None:
            return Subject(self.table)
        return Subject(query=self.query) if self.query is not None else None

    @property
    def is_single(self) -> bool:
        return self.default_subject is not None

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        session = self.session or active_session() or _new_session()
        views: list[str] = []
        try:
            yield _SparkSubject(session, self, subject, views)
        finally:
            for view in views:
                _drop(session, view)


class _SparkSubject(OpenSubject):
    dialect = "spark"

    def __init__(self, session: Any, source: SparkSource, subject: Subject, views: list[str]) -> None:
        self._session, self._source, self._views = session, source, views
        with self._errors():
            frame = self._frame(subject)
            self._schema = frame.schema
            self._view = self._make_view(frame)

    def columns(self) -> Sequence[ColumnInfo]:
        return [_column_info(each) for each in self._schema.fields]

    def rows(self) -> exp.Query | exp.Table:
        return exp.Table(this=exp.to_identifier(self._view, quoted=True))

    def reference(self, table: str) -> exp.Query | exp.Table:
        if self._source.frame is not None and table == self._source.name:
            return self.rows()
        with self._errors():
            view = self._make_view(self._session.table(table))
        return exp.Table(this=exp.to_identifier(view, quoted=True))

    def reference_columns(self, table: str) -> Sequence[ColumnInfo]:
        if self._source.frame is not None and table == self._source.name:
            return self.columns()
        with self._errors():
            return [_column_info(each) for each in self._session.table(table).schema.fields]

    def fetch(self, query: exp.Query) -> list[tuple[Any, ...]]:
        with self._errors():
            found = self._session.sql(query.sql(dialect="spark"))
            if hasattr(found, "toArrow"):
                table = found.toArrow()
                columns = [column.to_pylist() for column in table.columns]
                return list(zip(*columns, strict=True))
            kinds = [each.dataType.typeName() for each in found.schema.fields]
            return [tuple(map(_with_zone, row, kinds)) for row in found.collect()]

    def _frame(self, subject: Subject) -> Any:
        source = self._source
        if source.frame is not None and subject == source.default_subject:
            return source.frame
        if subject.query is not None:
            return self._session.sql(self._with_frame(subject.query))
        return self._session.table(".".join(part for part in (subject.schema, subject.table) if part))

    def _with_frame(self, query: str) -> str:
        """The query with the frame in the place of its name."""
        if self._source.frame is None:
            return query
        from ematix_probe.compiling.user_sql import read_query

        view = self._make_view(self._source.frame)

        def replaced(tree: exp.Expression) -> exp.Expression:
            if not isinstance(tree, exp.Table) or tree.db or tree.name.lower() != self._source.name.lower():
                return tree
            alias = tree.args.get("alias") or exp.TableAlias(this=exp.to_identifier(tree.name, quoted=True))
            return exp.Table(this=exp.to_identifier(view, quoted=True), alias=alias.copy())

        return read_query(query, "spark").transform(replaced).sql(dialect="spark")

    def _make_view(self, frame: Any) -> str:
        name = f"ematix_probe_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not _is_sparks(error):
                raise
            raise SourceFailed(_first_line(error), where=self._source.label) from error


def active_session() -> Any:
    """The session that is there; None without one. It starts none, and imports no pyspark."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    try:
        return SparkSession.getActiveSession()
    except Exception:  # a session of another thread that has stopped
        return None


def _new_session() -> Any:
    require("pyspark", "spark", "a source of Spark")
    from pyspark.sql import SparkSession

    try:
        return SparkSession.builder.getOrCreate()
    except Exception as error:
        raise CannotConnect(f"Spark does not start: {_first_line(error)}") from error


def _drop(session: Any, view: str) -> None:
    try:
        session.catalog.dropTempView(view)
    except Exception:  # the session has stopped, and its views with it
        return


def _column_info(field: Any) -> ColumnInfo:
    native = field.dataType.simpleString()
    plain = _plain_of(native)
    return ColumnInfo(field.name, family_of(plain), plain, field.nullable, native)  # type: ignore[arg-type]


def _plain_of(native: str) -> str:
    base = native.partition("<")[0].partition("(")[0].strip()
    if base in ("array", "struct", "map"):
        return base
    if base in _PLAIN:
        return _PLAIN[base]
    try:
        return plain_type(native)
    except ValueError:
        return "other"


def _with_zone(value: Any, kind: str) -> Any:
    """Before Spark 4: an instant comes without a zone, in the local one."""
    if kind == "timestamp" and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.astimezone(dt.timezone.utc)
    return value


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "grpc")


def _first_line(error: Exception) -> str:
    get_message = getattr(error, "getMessage", None)
    text = ""
    if callable(get_message):
        try:
            text = str(get_message() or "")
        except Exception:
            text = ""
    return ((text or str(error)).strip().splitlines() or [type(error).__name__])[0]


def spark(session: Any = None, table: str | None = None, query: str | None = None) -> SparkSource:
    """A session of Spark: the given one, else the active one, else a new one. ``table`` or ``query`` is the
    subject; without both the probe names it."""
    if table is not None and query is not None:
        raise DeclarationError("source.spark() takes table= or query=, not both", where=caller_location())
    for option, value in (("table", table), ("query", query)):
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise DeclarationError(f"{option}= takes a text, not {value!r}", where=caller_location())
    if session is not None and not (hasattr(session, "sql") and hasattr(session, "catalog")):
        raise DeclarationError(
            f"source.spark() takes a SparkSession, not {type(session).__name__}", where=caller_location()
        )
    return SparkSource(session=session, table=table, query=query)
