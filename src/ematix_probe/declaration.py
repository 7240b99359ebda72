"""``@probe.data``: turns a function into a data probe."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_probe.assertions import Assertion
from ematix_probe.errors import DeclarationError
from ematix_probe.location import caller_location, calling_module_body
from ematix_probe.report import RunReport
from ematix_probe.sources.base import Source, Subject
from ematix_probe.tester import Tester
from ematix_probe.unknown_options import refuse_unknown_options

if TYPE_CHECKING:
    from ematix_probe.history.store import RunHistory


_CHANGES = r"(?i)\s*(?:insert|update|delete|merge|drop|create|alter|truncate)\s"


@dataclass(frozen=True)
class DataPlan:
    """What a data probe will check: its source, its subject and its assertions."""

    name: str
    source: Source
    subject: Subject
    assertions: tuple[Assertion, ...]
    where: str | None = dataclasses.field(default=None, compare=False)
    description: str | None = None


class DataProbe:
    """A declared data probe. ``run()`` checks it; nothing is read before."""

    def __init__(self, plan: DataPlan) -> None:
        self._plan = plan
        self.declared_in = calling_module_body()
        self.__name__ = plan.name
        self.__doc__ = plan.description

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def source(self) -> Source:
        return self._plan.source

    @property
    def table(self) -> str:
        return self._plan.subject.table

    @property
    def schema(self) -> str | None:
        return self._plan.subject.schema

    def plan(self) -> DataPlan:
        return self._plan

    def assertion_names(self) -> list[str]:
        return [assertion.label for assertion in self._plan.assertions]

    def run(self, *, history: RunHistory | str | os.PathLike[str] | None = None) -> RunReport:
        """Check all assertions. ``history`` gives assertions about change their past, and records the run.

        It is a `RunHistory`, or the path or URL of one.
        """
        from ematix_probe.history.given import history_of
        from ematix_probe.running import run_data_probe

        return run_data_probe(self._plan, history=history_of(history))

    def __repr__(self) -> str:
        return (
            f"<data probe {self.name}: {len(self._plan.assertions)} assertions on {self._plan.subject.label}>"
        )


@refuse_unknown_options("@probe.data")
def data(
    *misplaced: Any,
    source: Any = None,
    table: str | None = None,
    query: str | None = None,
    schema: str | None = None,
    name: str | None = None,
) -> Callable[[Callable[[Tester], object]], DataProbe]:
    """Declare a data probe over a table or a query. The function gets a `Tester` and adds assertions.

    ``source`` is one of `ematix_probe.source`, a data frame, or the name of a connection of ``ematix_flow``.
    """
    from ematix_probe.sources.resolving import resolve_source

    where = caller_location()
    if misplaced or source is None:
        raise DeclarationError(
            "@probe.data needs source=, and takes arguments by name only",
            where=where,
            next_step='write  @probe.data(source=…, table="orders")',
        )
    _check_texts({"name": name}, where)
    opened = resolve_source(source, where)
    subject = build_subject(opened, table, query, schema, where)

    def declare(function: Callable[[Tester], object]) -> DataProbe:
        _check_function(function, where)
        refuse_deferred_body(function, where)
        refuse_replaced_probe(function, where)
        tester = Tester()
        function(tester)
        if not tester.assertions:
            raise DeclarationError(
                f"the probe {function.__name__!r} has no assertion",
                where=where,
                next_step='add one in its body, as in  t.column("id").not_null()',
            )
        refuse_repeated_labels(function.__name__, tester.assertions, where)
        return DataProbe(
            DataPlan(
                name or function.__name__,
                opened,
                subject,
                tester.assertions,
                where,
                (function.__doc__ or "").strip() or None,
            )
        )

    return declare


def build_subject(
    source: Source, table: str | None, query: str | None, schema: str | None, where: str | None
) -> Subject:
    """The subject of a probe; DeclarationError unless it is a table or a query, exactly one of them."""
    _check_texts({"table": table, "query": query, "schema": schema}, where)
    if table is None and query is None and source.default_subject is not None:
        return source.default_subject
    if (table is None) == (query is None):
        raise DeclarationError(
            "a data probe takes table= or query=, exactly one of them",
            where=where,
            next_step='write  table="orders"  or  query="SELECT …"',
        )
    if query is not None and schema is not None:
        raise DeclarationError(
            "schema= belongs to table=, and this probe has query=",
            where=where,
            next_step="name the schema in the query",
        )
    if query is not None and re.match(_CHANGES, query):
        raise DeclarationError(
            f"query= is one SELECT, not {' '.join(query.split())[:60]!r}",
            where=where,
            next_step='write  query="SELECT …"',
        )
    return Subject(table or "", schema, query)


def refuse_replaced_probe(function: Any, where: str | None) -> None:
    """Refuse a function with the name of an earlier probe of the file, which nothing would find any more."""
    body = calling_module_body()
    name = getattr(function, "__name__", None)
    earlier = getattr(function, "__globals__", {}).get(name)
    if body is None or earlier is None or getattr(type(earlier), "assertion_names", None) is None:
        return
    declared = earlier.plan().where if hasattr(earlier, "plan") else None
    if getattr(earlier, "declared_in", None) is body and declared != where:
        from ematix_probe.loading import short

        raise DeclarationError(
            f"two functions of probes are called {name!r}, and the second replaces the first",
            where=f"{short(declared)} and {short(where)}",
            next_step="rename one of the functions",
        )


def refuse_repeated_labels(probe: str, assertions: Sequence[Assertion], where: str | None) -> None:
    """The history, trends and reports know an assertion by its label: two of one label would be mixed up."""
    for label, times in Counter(assertion.label for assertion in assertions).items():
        if times > 1:
            raise DeclarationError(
                f"{'two' if times == 2 else times} assertions of the probe {probe!r} are called {label!r}",
                where=where,
                next_step="give one of them another name, with name=",
            )


def _check_texts(given: Mapping[str, Any], where: str | None) -> None:
    for option, value in given.items():
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise DeclarationError(
                f"{option}= is a text that is not empty, not {value!r}",
                where=where,
                next_step=f'write  @probe.data(source=…, {option}="…")',
            )


def _check_function(function: Any, where: str | None) -> None:
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        name = getattr(function, "__name__", function)
        raise DeclarationError(
            f"@probe.data stands above a function of one argument, not above {name!r}",
            where=where,
            next_step="write  def orders(t): …  below it",
        ) from None


def refuse_deferred_body(function: Any, where: str | None) -> None:
    """Refuse a function whose body does not run when it is called, so that no assertion would be added."""
    name = getattr(function, "__name__", function)
    step = None
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        found, step = f"async def {name}", f"write  def {name}(t): …"
    elif inspect.isgeneratorfunction(function):
        found, step = f"{name}() with yield in its body", "call the methods of t without  yield"
    if step is not None:
        raise DeclarationError(f"a probe is a plain function, not {found}", where=where, next_step=step)
