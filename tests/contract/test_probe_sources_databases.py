"""What a data probe does on every database: one statement, one snapshot, samples, errors of one assertion."""

from __future__ import annotations

import pytest

from ematix_probe import source
from ematix_probe.sources.base import Source
from ematix_probe.tester import Tester
from tests.contract.probe_setup import DATABASES, ROWS, Database, Watched, database_of, only, probe, verdicts
from tests.services.mysql_server import MySQLServer

NAMES = (
    "a.b",
    "a`b",
    "it's",
    'd"q',
    "\\n",
    "per%cent",
    ";",
    "select",
    "two words",
    "列",
    "$1",
    "{0}",
    ":a",
    "?",
)
# no process can write to a DuckDB file while another one reads it
WRITTEN_MEANWHILE = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture(params=DATABASES)
def shop(request: pytest.FixtureRequest) -> Database:
    return database_of(request)


def every_assertion(t: Tester) -> None:
    """All of them hold."""
    t.column("id").not_null().unique().between(0, 1000).is_in(range(ROWS))
    t.column("state").regex("^(?:new|paid)$").cardinality_between(2, 2)
    t.column("amount").sum_between(0, 10_000).percentile_between(0.5, 0, 100)
    t.column("customer_id").null_share(at_most=0.2)
    t.unique(["id", "state"]).row_count(at_least=ROWS, at_most=ROWS).expression("amount < 1000")
    t.foreign_key("id", references="orders", referenced_columns=["id"])
    t.schema_match(["id", "amount", "state", "customer_id"])
    t.column("amount").between(0, None, where="id >= 5")


def test_all_assertions_are_one_statement_of_one_row(shop: Database) -> None:
    watched = Watched(shop.source)
    report = probe(watched, every_assertion)
    assert set(verdicts(report)) == {"pass"}, report
    assert watched.rows == [1]


def test_only_samples_are_fetched_of_the_rows(shop: Database) -> None:
    watched = Watched(shop.source)
    report = probe(watched, lambda t: t.column("amount").between(1000, None).not_null())
    assert verdicts(report) == ["fail", "pass"]
    assert watched.rows == [1, 10]


def test_a_failing_assertion_brings_count_share_and_keys_of_ten_rows(shop: Database) -> None:
    result = only(probe(shop.source, lambda t: t.column("amount").between(None, 4)))
    assert (result.failing, result.checked, result.share) == (30, 40, 0.75)
    assert result.message == "30 of 40 rows (75 %) are not at most 4"
    assert [dict(each) for each in result.samples] == [{"id": i, "amount": i - 5} for i in range(10, 20)]


def test_an_assertion_that_cannot_be_measured_is_an_error_and_the_others_keep_theirs(shop: Database) -> None:
    def declare(t: Tester) -> None:
        t.column("amount").between(0, 100)
        t.column("amuont").not_null()
        t.column("state").between(1, 5)
        t.expression("no_such_function(amount) > 1")
        t.expression("amount >")
        t.expression("(" * 2000)
        t.column("id").not_null(where="nothing = 1")
        t.foreign_key("customer_id", references="nowhere", referenced_columns=["id"])
        t.foreign_key("customer_id", references="customers", referenced_columns=["key"])
        t.foreign_key("state", references="customers", referenced_columns=["id"])
        t.row_count_change(max_drop=0.1)
        t.drift("row_count")
        t.column("id").unique()

    report = probe(shop.source, declare)
    assert verdicts(report) == ["fail", *["error"] * 11, "pass"]
    assert (report.verdict, report.assertions[0].failing) == ("error", 5)
    said = [each.message for each in report.assertions]
    assert "there is no column 'amuont'; did you mean 'amount'?" in said[1]
    assert "compared with texts, not with 1" in said[2]
    assert "no_such_function" in said[3].lower()
    assert "the condition 'amount >' cannot be read" in said[4]
    assert "it is nested too deeply" in said[5]
    assert "nothing" in said[6]
    assert "nowhere" in said[7]
    assert "'customers' has no column 'key'; it has id" in said[8]
    assert "cannot be compared with 'id' of 'customers'" in said[9]
    assert "there is no history" in said[10] and "--history PATH" in said[11]


@pytest.mark.parametrize("shop", WRITTEN_MEANWHILE, indirect=True)
def test_every_statement_of_a_probe_sees_the_rows_of_its_start(shop: Database) -> None:
    def write() -> None:
        shop.execute("INSERT INTO orders VALUES (-1, -100, 'gone', 99)")
        shop.execute("UPDATE orders SET amount = -7 WHERE id > 30")

    watched = Watched(shop.source, after_first=write)

    def declare(t: Tester) -> None:
        t.row_count(at_most=ROWS)
        t.column("amount").between(0, None)
        t.expression("no_such_function(amount) > 1")  # so that each assertion has a separate statement
        t.column("state").is_in(["new", "paid"])

    report = probe(watched, declare)
    assert verdicts(report) == ["pass", "fail", "error", "pass"]
    assert report.assertions[1].failing == 5
    assert [each["id"] for each in report.assertions[1].samples] == [0, 1, 2, 3, 4]
    assert verdicts(probe(shop.source, declare)) == ["fail", "fail", "error", "fail"]


def test_where_tolerate_and_severity_decide_the_verdict(shop: Database) -> None:
    def declare(t: Tester) -> None:
        amount = t.column("amount")
        amount.between(0, None, where="id >= 5").between(0, None, where="id < 5", severity="warn")
        amount.between(0, None, tolerate=0.125).between(0, None, tolerate=0.1249)
        t.column("customer_id").not_null(where="state = 'new'", tolerate=0.2)
        t.expression("amount > 0", where="id < 0", name="of no rows")

    report = probe(shop.source, declare)
    assert verdicts(report) == ["pass", "warn", "pass", "fail", "pass", "pass"]
    counted = [(each.failing, each.checked) for each in report.assertions]
    assert counted == [(0, 35), (5, 5), (5, 40), (5, 40), (4, 20), (0, 0)]
    assert "12.5 % are tolerated" in report.assertions[2].message
    assert report.assertions[5].message == "there are no rows to check"
    assert report.assertions[5].name == "of no rows"


def test_a_foreign_key_names_the_rows_without_a_parent(shop: Database) -> None:
    key = {"references": "customers", "referenced_columns": "id"}
    result = only(probe(shop.source, lambda t: t.foreign_key("customer_id", **key)))
    assert (result.failing, result.checked) == (1, 36)  # 4 have no customer
    assert result.samples == [{"id": 39, "customer_id": 40}]
    assert result.message == "1 of 36 rows (2.78 %) has no row in customers"


def test_a_query_is_a_subject_with_comments_and_a_with_clause(shop: Database) -> None:
    query = """
        WITH paid AS (SELECT id, amount, state FROM orders WHERE state = 'paid')
        SELECT amount % 4 AS rest, amount, state AS "the state" FROM paid -- only paid ones;
    """.replace('"', shop.quote("x")[0])

    def declare(t: Tester) -> None:
        t.row_count(at_least=20, at_most=20)
        t.column("amount").unique()
        t.column("rest").unique(where="amount > 0")
        t.column("the state").is_in(["paid"])
        t.expression("amount > 0")

    report = probe(shop.source, declare, query=query)
    assert verdicts(report) == ["pass", "pass", "fail", "pass", "fail"], report
    assert len(report.assertions[2].samples) == 10
    assert set(report.assertions[4].samples[0]) == {"amount"}


def test_a_percentile_says_whether_it_is_exact(shop: Database) -> None:
    def declare(t: Tester) -> None:
        t.column("amount").percentile_between(0.1, -2, -2)
        t.column("amount").percentile_between(90, 0, 100, method="sketch")

    exact, asked_for_sketch = probe(shop.source, declare).assertions
    assert exact.message == "p10 is -2 (exact); asked for: -2 … -2"
    assert ("(by a sketch)" if shop.kind == "duckdb" else "(exact)") in asked_for_sketch.message
    assert asked_for_sketch.verdict == "pass"


def test_hostile_names_of_tables_and_columns_are_read(shop: Database) -> None:
    for name in (
        "a.b",
        "a`b",
        "it's",
        'd"q',
        "\\n",
        "per%cent",
        ";",
        "select",
        "two words",
        "列",
        "$1",
        "{0}",
    ):
        table, column = shop.quote(f"t {name}"), shop.quote(name)
        shop.execute(f"CREATE TABLE {table} ({column} integer)")
        shop.execute(f"INSERT INTO {table} VALUES (1), (1), (NULL)")
        report = probe(shop.source, lambda t, name=name: hostile(t, name), table=f"t {name}")
        assert verdicts(report) == ["fail", "fail", "pass", "pass"], report
        assert [each.failing for each in report.assertions] == [1, 2, 0, 0]


def hostile(t: Tester, name: str) -> None:
    t.column(name).not_null().unique().between(0, 1)
    if "." in name:  # of a reference, what is before the last point is the schema
        t.foreign_key(name, references="customers", referenced_columns=["id"])
    else:
        t.foreign_key(name, references=f"t {name}")


def test_a_missing_table_is_an_error_of_every_assertion(shop: Database) -> None:
    report = probe(shop.source, lambda t: t.row_count(at_least=0).column("id").not_null(), table="ordres")
    assert verdicts(report) == ["error", "error"]
    assert "ordres" in report.assertions[0].message


# --- sources that cannot be reached ---


def all_are_errors(given: Source, *said: str) -> None:
    report = probe(given, lambda t: t.row_count(at_least=0).column("id").not_null())
    assert verdicts(report) == ["error", "error"]
    message = report.assertions[1].message
    for each in said:
        assert each in message
    assert "geheim" not in message
    assert "next: " in message


@pytest.mark.postgres
def test_a_wrong_password_of_postgres_is_an_error_that_does_not_show_it(pg_database: str) -> None:
    port, name = pg_database.rpartition(":")[2].partition("?")[0].split("/")
    wrong = f"postgres://nobody:geheim%2F1@127.0.0.1:{port}/{name}"
    all_are_errors(source.postgres(wrong), "PostgreSQL cannot be reached", f"nobody@127.0.0.1:{port}")


def test_a_dead_postgres_is_an_error_with_a_next_step() -> None:
    all_are_errors(source.postgres("postgres://u:geheim@127.0.0.1:1/d"), "check the url, the user")


def test_a_wrong_password_of_mariadb_is_an_error_that_does_not_show_it(mariadb: MySQLServer) -> None:
    mariadb.start()
    given = source.mysql(f"mysql://nobody:geheim@127.0.0.1:{mariadb.port}/shop")
    all_are_errors(given, "MySQL cannot be reached", "nobody")


def test_a_dead_mysql_is_an_error_with_a_next_step() -> None:
    all_are_errors(source.mysql("mysql://u:geheim@127.0.0.1:1/d"), "check the url, the user")


def test_a_url_with_an_unknown_variable_is_an_error_that_names_it() -> None:
    all_are_errors(source.postgres("postgres://u:${NO_SUCH_VARIABLE}@127.0.0.1/d"), "NO_SUCH_VARIABLE")


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_missing_file_is_an_error_with_a_next_step(kind: str) -> None:
    all_are_errors(getattr(source, kind)("nowhere/shop.db"), "nowhere/shop.db", "correct the path")


def test_a_missing_table_with_a_dot_in_its_name_is_told_how_schemas_are_written(shop: Database) -> None:
    (result,) = probe(shop.source, lambda t: t.row_count(at_least=0), table="sales.orders").assertions
    assert result.verdict == "error"
    assert 'write  schema="sales", table="orders"' in result.message
    (other,) = probe(shop.source, lambda t: t.row_count(at_least=0), table="no_such_table").assertions
    assert "schema=" not in other.message
