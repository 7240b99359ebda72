"""What a load probe refuses when it is declared, and what it says that it will do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import basic, bearer, check, feed, http, probe, sql
from ematix_probe.errors import DeclarationError
from ematix_probe.load.declaration import LoadProbe

TARGET = http("GET", "http://127.0.0.1/orders")
ROWS = [{"id": 1}]


def declared(declare: Callable[[Any], object] = lambda t: t.p99_under("1s"), **given: Any) -> LoadProbe:
    options = {"target": TARGET, "rate": 10, "duration": "1s", **given}
    options = {name: value for name, value in options.items() if value is not ...}

    def load(t: Any) -> None:
        declare(t)

    return probe.load(**options)(load)


STAGED: dict[str, Any] = {"rate": ..., "duration": ...}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"target": "http://x"}, "takes target=http(…) or target=sql(…), not 'http://x'"),
        ({"users": 5}, "rate= or users=, exactly one"),
        ({"rate": ...}, "rate= or users=, exactly one"),
        ({"duration": ...}, "takes duration=, or stages="),
        ({"duration": "soon"}, "duration=: 'soon' is not a duration"),
        ({"duration": 0}, "duration=0 is no time"),
        ({"rate": 0}, "rate=0 sends nothing"),
        ({"rate": -1}, "rate= is a number of requests a second from 0 to 1,000,000, not -1"),
        ({"rate": 1e9}, "rate= is a number of requests a second from 0 to 1,000,000, not 1000000000.0"),
        ({"rate": float("nan")}, "rate= is a number"),
        ({"rate": True}, "rate= is a number"),
        ({"rate": ..., "users": 1.5}, "users= is a whole number from 1 to 100,000, not 1.5"),
        ({"rate": ..., "users": 0}, "users= is a whole number"),
        ({"stages": [("1s", 5)]}, "stages= takes the place of"),
        ({**STAGED, "stages": []}, "takes pairs of a duration and a level"),
        ({**STAGED, "stages": "1s"}, "takes pairs of a duration and a level"),
        ({**STAGED, "stages": [("1s",)]}, "takes pairs of a duration and a level, not ('1s',)"),
        ({**STAGED, "stages": [("1s", 0)]}, "send nothing"),
        ({**STAGED, "stages": [("1s", 1.5)], "model": "closed"}, "a number of users in stages= is a whole"),
        ({**STAGED, "stages": [("1s", 1)], "model": "half-open"}, 'model= is "open" or "closed"'),
        ({"warmup": "1s"}, "leaves nothing to measure of 1s"),
        ({"warmup": -1}, "warmup=: -1 is not a duration"),
        ({"timeout": 0}, "timeout=0 is no time"),
        ({"max_in_flight": 0}, "max_in_flight= is a whole number from 1"),
        ({"rate": ..., "users": 1, "max_in_flight": 5}, "max_in_flight= belongs to rate="),
        ({"think_time": 1}, "think_time= belongs to users="),
        ({"rate": ..., "users": 1, "think_time": (2, 1)}, "the shorter time comes first"),
        ({"processes": 0}, "processes= is a whole number from 1 to 256"),
        ({"seed": -1}, "seed= is a whole number"),
        ({"name": " "}, "name= takes a text"),
        ({"allow_hosts": "api.example"}, "takes a list of hosts"),
        ({"allow_hosts": ["http://x"]}, "'http://x' in allow_hosts= is no host"),
        (
            {"target": http("GET", "http://x/{n}", feeder=iter([{"n": 1}])), "processes": 2},
            "serves one process",
        ),
        (
            {"target": http("GET", "http://127.0.0.1", keep_cookies=True)},
            "keep_cookies=True belongs to users=",
        ),
        (
            {"target": sql("duckdb:///x", "SELECT 1"), "processes": 2},
            "one process open a file for writing",
        ),
        ({"declare": lambda t: None}, "the probe 'load' has no assertion"),
        (
            {"target": sql("sqlite:///x", "SELECT 1"), "declare": lambda t: t.status_in([200])},
            "is about HTTP",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_its_value_and_place(given: dict[str, Any], why: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declared(**given)
    assert why in refused.value.what
    assert refused.value.where is not None
    assert Path(__file__).name in refused.value.where


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: http("FETCH", "http://x"), "knows the methods GET, HEAD"),
        (lambda: http("GET", "ftp://x"), "begins with http:// or https:// and a host"),
        (lambda: http("GET", "http:///x"), "begins with http:// or https:// and a host"),
        (lambda: http("GET", "http://x/a b"), "a URL without blanks"),
        (lambda: http("GET", "http://x:99999/"), "cannot read the URL"),
        (lambda: http("GET", "http://x:0/"), "the port 0"),
        (lambda: http("GET", "http://me:opensesame@x/"), "takes no user or password in the URL"),
        (lambda: http("GET", "http://{host}/", feeder=[{"host": "x"}]), "takes no column"),
        (lambda: http("GET", "http://x/{id}"), "the URL has {id}, and there is no feeder="),
        (lambda: http("GET", "http://x/{no}", feeder=ROWS), "the feeder has no column 'no'; it has id"),
        (lambda: http("POST", "http://x", json=1, body="x"), "takes one of json=, form= and body="),
        (lambda: http("POST", "http://x", json=float("nan")), "takes a JSON value"),
        (lambda: http("POST", "http://x", body=7), "takes a text or bytes"),
        (lambda: http("GET", "http://x", headers={"A B": "c"}), "'A B' is no name of a header"),
        (lambda: http("GET", "http://x", headers={"A": "b\r\nC: d"}), "has a line break"),
        (lambda: http("GET", "http://x", headers={"Host": "y"}), "Host is set by the probe itself"),
        (lambda: http("GET", "http://x", headers="A: b"), "headers=) takes a mapping"),
        (lambda: http("GET", "http://x", query=[("a",)]), "takes pairs of a name and a value"),
        (lambda: http("GET", "http://x", verify="no"), "verify=) is True or False, not 'no'"),
        (lambda: http("GET", "http://x", ca_file="nowhere.pem"), "there is no file 'nowhere.pem'"),
        (lambda: http("GET", "http://x", auth="secret"), "takes credentials that refer to the environment"),
        (lambda: bearer("secret"), "takes a reference to the environment"),
        (lambda: basic("me", "secret"), "takes a reference to the environment"),
        (lambda: http("GET", "http://x", checks="paid"), "checks= takes a list of checks"),
        (lambda: http("GET", "http://x", checks=[check.row_count()]), "of this target takes no"),
        (lambda: http("GET", "http://x", checks=[check.status(200)] * 2), "two checks have the same name"),
        (lambda: check.status("200"), "takes a list of HTTP statuses"),
        (lambda: check.status([99]), "takes HTTP statuses from 100 to 599"),
        (lambda: check.contains(""), "takes a text, not ''"),
        (lambda: check.json("$.a[", 1), "cannot read the path '$.a['"),
        (lambda: check.that("x", 7), "takes a name and a function"),
        (lambda: check.row_count(at_least=-1), "is a whole number from 0, not -1"),
        (lambda: feed([]), "the feeder has no row"),
        (lambda: feed([7]), "rows are mappings"),
        (lambda: feed({"id": 1}), "a feeder is a list of mappings"),
        (lambda: feed("rows.txt"), "ends in .csv, .jsonl or .ndjson"),
        (lambda: feed("nowhere.csv"), "cannot be read"),
        (lambda: feed(ROWS, order="backwards"), 'order= is "sequential", "random" or "once"'),
        (lambda: feed(ROWS, seed=1), 'seed= belongs to order="random"'),
        (lambda: feed(iter(ROWS), order="random"), "needs a list or a file"),
        (lambda: sql("oracle://x", "SELECT 1"), "takes the URL or the source of a database"),
        (lambda: sql("sqlite:///x", " "), "takes a statement"),
        (lambda: sql("sqlite:///x", "SELECT 'a"), "cannot read the statement"),
        (lambda: sql("mysql://x", "DELETE FROM a; SELECT 1"), "it is more than one statement"),
        (lambda: sql("sqlite:///x", "SELECT :id"), "the statement has :id, and there is no params="),
        (lambda: sql("sqlite:///x", "SELECT :id", params={"n": 1}), "has :id, and params= has n"),
        (lambda: sql("sqlite:///x", "SELECT 1", pool=0), "is a number of connections from 1 to 1000"),
        (lambda: sql("sqlite:///x", "SELECT 1", checks=[check.status(200)]), "of this target takes no"),
    ],
)
def test_a_wrong_request_statement_check_or_feeder_is_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        make()
    assert why in refused.value.what
    assert "opensesame" not in str(refused.value)
    assert refused.value.where is not None
    assert Path(__file__).name in refused.value.where


@pytest.mark.parametrize(
    ("assertion", "why"),
    [
        (lambda t: t.p99_under("soon"), "p99_under(): 'soon' is not a duration"),
        (lambda t: t.percentile_under(0, "1s"), "is a percentage up to 100 or a share up to 1"),
        (lambda t: t.percentile_under(101, "1s"), "is a percentage up to 100"),
        (lambda t: t.p99_under("1s", include_errors=1), "include_errors= is True or False"),
        (lambda t: t.p99_under("1s", tolerate=0.1), "takes severity= and name=; not tolerate="),
        (lambda t: t.p99_under("1s", severity="bad"), 'severity= is "fail" or "warn"'),
        (lambda t: t.error_rate_below(0), "takes a share above 0"),
        (lambda t: t.error_rate_below(5), "takes a share above 0 and up to 1, not 5"),
        (lambda t: t.throughput_above(-1), "takes requests a second"),
        (lambda t: t.status_in([]), "takes HTTP statuses"),
        (lambda t: t.metric("eror_rate"), "Did you mean 'error_rate'?"),
        (lambda t: t.metric("errors").at_most("5"), "at_most() takes a number, not '5'"),
        (lambda t: t.metric("errors").below(None), "below() takes a number, not None"),
        (lambda t: t.metric("errors").between(2, 1), "the lower bound 2 is above the upper bound 1"),
        (lambda t: t.add("p99"), "takes an assertion of a load"),
    ],
)
def test_a_wrong_assertion_is_refused(assertion: Callable[[Any], object], why: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(why)):
        declared(assertion)


def test_a_probe_says_what_it_will_do_without_sending() -> None:
    target = http("GET", "http://127.0.0.1/{id}?token=opensesame", feeder=ROWS, checks=[check.status(200)])
    found = probe.load(target=target, rate=100, duration="1m", warmup="2.5s", processes=2)(quick)
    assert (found.name, found.assertion_names()) == ("quick", ["p99_under", "p95_under", "errors.at_most"])
    assert found.plan().describe() == {
        "model": "open: arrivals by the clock",
        "load": "100 requests a second",
        "duration": "1m",
        "warm-up": "2.5s, not measured",
        "requests": "6,000",
        "timeout": "10s",
        "processes": "2",
        "feeder": "1 rows, sequential",
        "checks": "status in 200",
    }
    assert "opensesame" not in repr(found) + repr(found.plan()) + found.table


def quick(t: Any) -> None:
    t.p99_under("200ms")
    t.percentile_under(95, "100ms")
    t.metric("errors").at_most(0, severity="warn")


def test_stages_of_users_are_said_in_words() -> None:
    found = declared(
        **STAGED, stages=[("30s", 20), ("2m", 20)], model="closed", think_time=("1s", "3s"), name="users"
    )
    described = found.plan().describe()
    assert described["model"] == "closed: virtual users"
    assert described["load"] == "0 → 20 in 30s, 20 → 20 in 2m virtual users"
    assert described["think time"] == "1s to 3s"
    assert found.name == "users"


def test_credentials_and_urls_show_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_URL", "postgresql://me:opensesame@127.0.0.1/shop")
    target = sql("${SHOP_URL}", "SELECT 1")
    assert target.dialect == "postgres"
    assert "opensesame" not in repr(target) + str(declared(target=target).plan().describe())
    assert "opensesame" in target.resolved().url


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
@pytest.mark.parametrize("password", ["pa55/w0rd", "first@SECONDHALF", "a?b#c:d[e@w0rd/half"])
def test_a_password_with_special_characters_connects_and_shows_nowhere(scheme: str, password: str) -> None:
    target = sql(f"{scheme}://eve:{password}@127.0.0.1:1/x", "SELECT 1")
    probed = declared(lambda t: t.error_rate_below(1), target=target, rate=5, duration=0.2)
    assert target.database_label == f"{scheme}://eve:***@127.0.0.1:1/x"
    report = probed.run()
    assert set(report.metadata["errors"]) == {"cannot connect"}
    shown = str(probed.plan().describe()) + repr(target) + str(report.to_dict())
    for part in ("pa55", "w0rd", "first", "SECONDHALF", "half"):
        assert part not in shown


@pytest.mark.parametrize("url", ["postgresql://eve:w0rd-1@127.0.0.1:pa55/x", "mysql://eve:w0rd-1@[x/pa55"])
def test_a_url_of_a_database_that_cannot_be_read_is_refused_without_being_shown(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP", url)
    for refuse in (lambda: sql(url, "SELECT 1"), lambda: declared(target=sql("${SHOP}", "SELECT 1")).run()):
        with pytest.raises(DeclarationError) as refused:
            refuse()
        assert "w0rd" not in str(refused.value) and "pa55" not in str(refused.value)
        assert refused.value.where is not None


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT ';' -- a; b",
        "SELECT 1;  ",
        "SELECT 1; -- the end",
        "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END",
    ],
)
def test_a_semicolon_that_divides_no_statements_is_taken(statement: str) -> None:
    assert sql("sqlite:///x", statement).statement.for_driver("sqlite") == statement


@pytest.mark.parametrize(
    "given", [{"rate": ...}, {"duration": ...}, {"timeout": 0}, {"rate": 0}, {"think_time": 1}]
)
def test_a_missing_or_misplaced_option_comes_with_what_to_write(given: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as refused:
        declared(**given)
    assert refused.value.next_step is not None
