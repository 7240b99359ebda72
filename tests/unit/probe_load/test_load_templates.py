"""Templates, feeders and requests: what a row becomes in a request, and which row an arrival gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import feed, http
from ematix_probe.errors import DeclarationError
from ematix_probe.load.answers import Answer
from ematix_probe.load.feeders import Feeder, FeederFailed, OutOfRows
from ematix_probe.load.http1 import request_bytes
from ematix_probe.load.http_client import CookieJar
from ematix_probe.load.http_requests import RenderedRequest, RequestRenderer
from ematix_probe.load.http_target import HttpTarget
from ematix_probe.load.sql_target import read_statement
from ematix_probe.load.templates import TemplateError
from ematix_probe.redaction import mask, remember_secret

URL = "http://127.0.0.1"


def rendered(target: HttpTarget, row: dict[str, Any]) -> RenderedRequest:
    return RequestRenderer(target.resolved()).render(row)


def test_a_value_cannot_leave_its_place() -> None:
    target = http(
        "POST",
        URL + "/a/{x}?q={x}",
        headers={"X": "v {x}"},
        cookies={"c": "{x}"},
        json={"{x}": ["{x}", "t {x}"]},
        feeder=[{"x": 'a/b?c&d "é"'}],
    )
    request = rendered(target, {"x": 'a/b?c&d "é"'})
    assert request.target == "/a/a%2Fb%3Fc%26d%20%22%C3%A9%22?q=a%2Fb%3Fc%26d%20%22%C3%A9%22"
    assert json.loads(request.body) == {'a/b?c&d "é"': ['a/b?c&d "é"', 't a/b?c&d "é"']}
    with pytest.raises(TemplateError, match="line break"):
        rendered(target, {"x": "a\r\nX-Injected: 1"})
    with pytest.raises(TemplateError, match="HTTP does not allow"):
        rendered(target, {"x": "€"})


def test_a_text_that_is_one_column_keeps_the_type_of_the_value() -> None:
    target = http("POST", URL, json={"n": "{n}", "t": "no {n}", "b": "{b}"}, feeder=[{"n": 7, "b": None}])
    assert json.loads(rendered(target, {"n": 7, "b": None}).body) == {"n": 7, "t": "no 7", "b": None}


def test_other_braces_of_a_body_stay_as_they_are() -> None:
    target = http("POST", URL, body='{"query": "{ user(id: {id}) { name } }"}', feeder=[{"id": 7}])
    assert rendered(target, {"id": 7}).body == b'{"query": "{ user(id: 7) { name } }"}'
    assert (
        rendered(http("POST", URL, body="{id}"), {}).body == b"{id}"
    )  # without a feeder nothing is replaced


def test_values_of_the_environment_are_no_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "{id}")
    target = http("GET", URL + "/{id}", headers={"X-Key": "${TOKEN}"}, feeder=[{"id": 7}])
    assert ("X-Key", "{id}") in rendered(target, {"id": 7}).headers
    monkeypatch.delenv("TOKEN")
    with pytest.raises(DeclarationError, match="no variable 'TOKEN'"):
        target.resolved()


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://h/p/${T}/end?t=${T}&z=1", "/p/{}/end?t={}&z=1"),
        ("${BASE}/p/${T}?${T}={env}", "/api/v1/p/{}?{}={env}"),
        ("${SCHEME}://${HOST}/${T}", "/{}"),
        ("http://${HOST}?t=${T}", "/?t={}"),
        ("http://h/${NONE:-a/b}/x", "/a%2Fb/x"),
        ("${WHOLE}", "/a?b=c&d=e"),
    ],
)
def test_values_of_the_environment_cannot_leave_their_place_in_a_url(
    monkeypatch: pytest.MonkeyPatch, url: str, sent: str, fed: bool
) -> None:
    variables = {
        "BASE": "http://h:80/api/v1",
        "SCHEME": "https",
        "HOST": "h:81",
        "WHOLE": "http://h/a?b=c&d=e",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    values = {
        "a#b": "a%23b",
        "a&z=9": "a%26z%3D9",
        "a/../b?c": "a%2F..%2Fb%3Fc",
        "50%": "50%25",
        "{env}${HOST}": "%7Benv%7D%24%7BHOST%7D",
    }
    for value, encoded in values.items():
        monkeypatch.setenv("T", value)
        target = http("GET", url.replace("{env}", "1"), feeder=[{"env": "row"}] if fed else None)
        expected = sent.replace("{env}", "1").replace("{}", encoded)
        assert rendered(target, {"env": "row"}).target == expected


def test_a_secret_of_the_environment_is_masked_in_the_form_in_which_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remember_secret("s3cret#value")
    monkeypatch.setenv("T", "s3cret#value")
    sent = rendered(http("GET", "http://h/${T}"), {}).target
    assert mask(f"no such page: {sent}") == "no such page: /***"


def test_a_request_goes_over_the_wire_with_its_length() -> None:
    prefix = b"Host: x\r\n"
    get = RenderedRequest("GET", "/a", (("A", "b"),))
    assert request_bytes(get, prefix) == b"GET /a HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n"
    post = RenderedRequest("POST", "/a", (), b"xy")
    assert request_bytes(post, prefix) == b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxy"
    assert b"Content-Length: 0" in request_bytes(RenderedRequest("PUT", "/a", ()), prefix)


def test_a_jar_keeps_and_ends_cookies() -> None:
    jar, request = CookieJar(), RenderedRequest("GET", "/", (("Cookie", "shop=de"), ("A", "b")))
    assert jar.add_to(request) is request
    jar.take(Answer(200, headers=[(b"Set-Cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2; Secure")]))
    assert jar.add_to(request).headers == (("A", "b"), ("Cookie", "shop=de; a=1; b=2"))
    jar.take(Answer(200, headers=[(b"Set-Cookie", b"a=; Max-Age=0")]))
    assert jar.add_to(request).headers == (("A", "b"), ("Cookie", "shop=de; b=2"))


ROWS = [{"n": n} for n in range(10)]


def drawn(feeder: Feeder, count: int, shares: int = 1) -> list[int]:
    """The rows of arrivals 0 to ``count``, when so many processes share them."""
    found = {}
    for share in range(shares):
        row = feeder.open(share, shares)
        for n in range(share, count, shares):
            found[n] = row(n)["n"]
    return [int(found[n]) for n in range(count)]


@pytest.fixture(params=["list", "csv", "jsonl"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "list":
        return ROWS
    path = tmp_path / f"rows.{request.param}"
    if request.param == "csv":
        path.write_text("\ufeffn,text\n" + "".join(f'{n},"a\nb"\n' for n in range(10)), encoding="utf-8")
    else:
        path.write_text("".join(f'{{"n": {n}}}\n\n' for n in range(10)))
    return path


@pytest.mark.parametrize("shares", [1, 3])
def test_rows_come_in_their_order_and_several_processes_share_them(rows: Any, shares: int) -> None:
    assert drawn(feed(rows), 25, shares) == [n % 10 for n in range(25)]
    assert drawn(feed(rows, order="once"), 10, shares) == list(range(10))
    row = feed(rows, order="once").open()
    for n in range(10):
        row(n)
    with pytest.raises(OutOfRows):
        row(10)


def test_random_rows_repeat_with_their_seed_and_are_all_drawn(rows: Any) -> None:
    one = drawn(feed(rows, order="random", seed=1), 300)
    assert one == drawn(feed(rows, order="random", seed=1), 300, shares=3)
    assert one != drawn(feed(rows, order="random", seed=2), 300)
    assert set(one) == set(range(10))
    assert min(one.count(n) for n in range(10)) > 10


def test_an_iterator_is_read_as_it_is_needed() -> None:
    read = []

    def endless() -> Iterator[dict[str, int]]:
        n = 0
        while True:
            read.append(n)
            yield {"n": n}
            n += 1

    assert drawn(feed(endless()), 5) == [0, 1, 2, 3, 4]
    assert len(read) == 5


def test_an_iterator_that_fails_and_rows_that_are_none_are_errors_in_words() -> None:
    def failing() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise KeyError("gone")

    row = feed(failing()).open()
    row(0)
    with pytest.raises(FeederFailed, match="failed after 1 rows: KeyError: 'gone'"):
        row(1)
    with pytest.raises(FeederFailed, match="rows are mappings of a column and a value, not 7"):
        feed(iter([7])).open()(0)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("sql", "dialect", "names", "driver"),
    [
        ("SELECT :a, ':b', x::text -- :c", "postgres", ("a",), "SELECT %(a)s, ':b', x::text -- :c"),
        ("SELECT ':a' /* :b */, 5 % 2", "mysql", (), "SELECT ':a' /* :b */, 5 % 2"),
        ("SELECT :a % 2, :a", "mysql", ("a", "a"), "SELECT %(a)s %% 2, %(a)s"),
        ("SELECT :a + 1", "duckdb", ("a",), "SELECT $a + 1"),
        ('SELECT ":a", :b_1', "sqlite", ("b_1",), 'SELECT ":a", :b_1'),
    ],
)
def test_names_of_a_statement_are_found_outside_of_texts_comments_and_casts(
    sql: str, dialect: Any, names: tuple[str, ...], driver: str
) -> None:
    statement = read_statement(sql, dialect)
    assert statement.names == names
    assert statement.for_driver(dialect) == driver
