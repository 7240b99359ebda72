"""Foreign and unique keys of many texts: each database plans them as joins, in a probe and in a gate.

What is asserted is the plan as the database explains it: no subquery that depends on a row, and no loop that
reads a whole table for each row of another one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlglot import exp

from ematix_flow.backends.sql.quarantine import fill_gated
from ematix_flow.backends.sql.rule_checks import column_infos
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.spec.expectations import Gate
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_probe.compiling import SampledAssertion, compile_assertions, sample_query
from ematix_probe.tester import Tester
from tests.contract.gate_setup import GateTarget, connection_of
from tests.contract.test_gates_files import rules

ROWS = 2_000
TEXT = DataType("text")
COLUMNS = (ColumnSpec("code", TEXT, nullable=True), ColumnSpec("part", TEXT))
PARENTS, CHILDREN = TableSpec("shop", "parents", COLUMNS), TableSpec("shop", "children", COLUMNS)
DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture(params=DATABASES)
def target(request: pytest.FixtureRequest) -> Iterator[GateTarget]:
    for connection in connection_of(request):
        found = GateTarget(connection)
        found.load([], [{"code": f"k{n}", "part": f"p{n % 7}"} for n in range(ROWS)], table=PARENTS)
        yield found


def declare(t: Tester) -> None:
    t.foreign_key("code", references="shop.parents", referenced_columns="code")
    t.foreign_key(["code", "part"], references="shop.parents", referenced_columns=["code", "part"])
    t.unique(["code"])
    t.unique(["part", "code"])


def child(number: int) -> dict[str, str | None]:
    """Of ten rows, one has no parent but for its case, one another part, one no key, and two are equal."""
    code: str | None = f"k{number}"
    if number % 10 == 0:
        code = f"K{number}"
    elif number % 10 == 2:
        code = None
    elif number % 10 == 4:
        code = f"k{number - 1} "
    part = number - 1 if number % 10 == 6 else number
    if number % 10 == 8:
        code, part = f"k{number - 1}", number - 1
    return {"code": code, "part": f"p{part % 7}"}


def test_a_gate_compares_keys_exactly(target: GateTarget) -> None:
    result = target.load(rules("quarantine", declare), [child(n) for n in range(ROWS)], table=CHILDREN)
    tenth = ROWS // 10
    assert [each.failing for each in result.expectations] == [2 * tenth, 3 * tenth, 2 * tenth, 2 * tenth]
    assert [each.quarantined for each in result.expectations] == [2 * tenth, tenth, 2 * tenth, 0]
    assert len(target.rows(CHILDREN)) == ROWS - 5 * tenth


def test_no_database_searches_all_keys_for_each_row(target: GateTarget) -> None:
    target.load([], [child(n) for n in range(ROWS)], table=CHILDREN)
    database = target.target
    assert isinstance(database, RelationalTarget)
    dialect, columns = database.dialect, column_infos(COLUMNS, database.dialect)
    table = dialect.table("shop", "children")
    rows = exp.select("*").from_(table.copy())

    def parents(name: str) -> exp.Table:
        return dialect.table("shop", "parents")

    checks = rules("quarantine", declare)
    assertions = [each.assertion for each in checks]
    names = ["code", "part"]
    gated = fill_gated(Gate(tuple(checks)), names, columns, dialect, rows, parents, table)
    statements = [
        gated.expression,
        compile_assertions(assertions, columns, dialect.name, rows, parents, with_keys=True).query,
        *(
            sample_query(
                [SampledAssertion(each)], columns, dialect.name, rows, parents, names, most=None
            ).query
            for each in assertions
        ),
    ]
    with database.session() as session:
        for statement in statements:
            assert loops_in_plan(session, dialect.name, dialect.render(statement)) == []


def loops_in_plan(session: SqlSession, dialect: str, sql: str) -> list[str]:
    """The steps of a plan that are done in full for each row of another step."""
    if dialect == "postgres":
        steps = [str(step) for (step,) in session.fetch(f"EXPLAIN {sql}")]
        return [step for step in steps if "SubPlan" in step or "Nested Loop" in step]
    if dialect == "sqlite":
        found = [(row[1], str(row[3])) for row in session.fetch(f"EXPLAIN QUERY PLAN {sql}")]
        scanned = [parent for parent, step in found if step.startswith("SCAN")]
        return [
            step
            for parent, step in found
            if "CORRELATED" in step or (step.startswith("SCAN") and scanned.count(parent) > 1)
        ]
    plan = [str(row) for row in session.fetch(f"EXPLAIN {sql}")]
    return [step for step in plan if "DEPENDENT SUBQUERY" in step or "join buffer" in step]
