"""What a load probe sends over HTTP, and how it counts what comes back, against a real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import basic, bearer, check, feed, http
from ematix_probe.errors import HostNotAllowed
from tests.contract.load_runs import figure, run_load
from tests.contract.load_server import LoadServer, closing_port, refusing_port, running_load_server

BRIEF = {"rate": 50, "duration": 0.2}  # ten requests
ONCE = {"rate": 1, "duration": 0.1}


@pytest.fixture
def server() -> Iterator[LoadServer]:
    with running_load_server() as running:
        yield running


def sent_once(server: LoadServer, method: str, path: str, **given: Any) -> Any:
    """The only request of a load of one request."""
    report = run_load(http(method, server.url + path, **given), **ONCE)
    assert report.verdict == "pass", report.metadata["errors"]
    (received,) = server.received
    return received


def errors_of(url: str, *, timeout: float = 5.0, **given: Any) -> dict[str, int]:
    found: dict[str, int] = run_load(http("GET", url, **given), timeout=timeout, **BRIEF).metadata["errors"]
    return found


def test_a_get_carries_host_agent_headers_and_query(server: LoadServer) -> None:
    received = sent_once(
        server, "get", "/a b/c".replace(" ", "%20"), headers={"X-Tenant": "7"}, query={"q": "ä&", "n": [1, 2]}
    )
    assert received.method == "GET"
    assert received.target == "/a%20b/c?q=%C3%A4%26&n=1&n=2"
    assert received.headers["host"] == f"127.0.0.1:{server.port}"
    assert received.headers["user-agent"] == "ematix-probe"
    assert received.headers["x-tenant"] == "7"
    assert "content-length" not in received.headers


@pytest.mark.parametrize(
    ("given", "body", "content_type"),
    [
        ({"json": {"id": 7, "name": "é"}}, b'{"id": 7, "name": "\xc3\xa9"}', "application/json"),
        ({"form": {"a": "1 2", "b": "&"}}, b"a=1+2&b=%26", "application/x-www-form-urlencoded"),
        ({"body": "text"}, b"text", "text/plain; charset=utf-8"),
        ({"body": b"\0\xff", "headers": {"Content-Type": "x/y"}}, b"\0\xff", "x/y"),
    ],
)
def test_a_body_comes_with_its_length_and_type(
    server: LoadServer, given: dict[str, Any], body: bytes, content_type: str
) -> None:
    received = sent_once(server, "POST", "/", **given)
    assert received.body == body
    assert received.headers["content-type"] == content_type


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_is_sent_and_the_connection_is_used_again(server: LoadServer, method: str) -> None:
    report = run_load(http(method, server.url + "/echo"), users=1, duration=0.1)
    assert report.verdict == "pass"
    assert {each.method for each in server.received} == {method}
    assert len(server.received) > 1
    assert figure(report, "connections") == server.connections == 1


def test_credentials_come_from_the_environment_and_show_nowhere(
    server: LoadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "opensesame-1")
    monkeypatch.setenv("PASSWORD", "opensesame-2")
    target = http(
        "GET", server.url + "/status/401", auth=bearer("${API_TOKEN}"), headers={"X-Key": "${PASSWORD}"}
    )
    checked = http(
        "GET", server.url + "/echo", auth=basic("me", "${PASSWORD}"), checks=[check.json("$.headers", 1)]
    )
    reports = [run_load(each, **ONCE) for each in (target, checked)]
    assert server.received[0].headers["authorization"] == "Bearer opensesame-1"
    assert server.received[0].headers["x-key"] == "opensesame-2"
    assert server.received[1].headers["authorization"] == "Basic bWU6b3BlbnNlc2FtZS0y"
    assert "opensesame" not in json.dumps([each.to_dict() for each in reports]) + repr(target)


def test_rows_of_a_list_fill_the_request_in_their_order_again_and_again(server: LoadServer) -> None:
    target = http(
        "POST",
        server.url + "/orders/{id}",
        headers={"X-Name": "{name}"},
        query={"q": "{name}"},
        json={"id": "{id}", "text": "order {id}"},
        feeder=[{"id": 1, "name": "a/b"}, {"id": 2, "name": "c"}],
    )
    run_load(target, rate=100, duration=0.05)  # five requests
    paths = [each.target for each in server.received]
    assert sorted(paths) == sorted(["/orders/1?q=a%2Fb", "/orders/2?q=c"] * 2 + ["/orders/1?q=a%2Fb"])
    assert {each.headers["x-name"] for each in server.received} == {"a/b", "c"}
    assert json.loads(server.received[0].body) == {"id": 1, "text": "order 1"}


def test_rows_of_a_csv_file_are_used_once_and_then_the_load_ends(server: LoadServer, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("id,name\n1,Ä\n2,b\n3,c\n")
    target = http("GET", server.url + "/{id}/{name}", feeder=feed("orders.csv", order="once"))
    report = run_load(target, rate=20, duration=5)
    assert [each.path for each in server.received] == ["/1/%C3%84", "/2/b", "/3/c"]
    assert report.metadata["ended_early"] == "the feeder had no row after 3"
    assert figure(report, "attempts") == 3
    assert report.duration_seconds < 4  # it did not wait for the declared end


def test_a_row_that_cannot_be_read_ends_the_load_with_an_error(server: LoadServer, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n{"id": 2}\nnonsense\n')
    report = run_load(http("GET", server.url + "/{id}", feeder="rows.jsonl"), **BRIEF)
    assert report.verdict == "error"
    assert "line 3 is no JSON object" in report.assertions[0].message


def test_a_row_without_a_value_for_the_request_is_an_error_of_that_request(server: LoadServer) -> None:
    rows = ({"id": n} if n % 2 else {} for n in range(100))
    report = run_load(http("GET", server.url + "/{id}", feeder=rows), **BRIEF)
    assert report.metadata["errors"] == {"template": 5}
    assert len(server.received) == 5


def test_checks_look_at_status_body_and_json_or_call_a_function(server: LoadServer) -> None:
    good = [
        check.status(200),
        check.contains("paid"),
        check.json("$.items[0].price", 5),
        check.that("is JSON", lambda answer: answer.header("Content-Type") == "application/json"),
    ]
    assert run_load(http("GET", server.url + "/order", checks=good), **BRIEF).verdict == "pass"
    for bad, why in [
        (check.contains("lost", name="c"), "the body does not contain b'lost'"),
        (check.json("$.state", "lost", name="c"), 'the value is "paid"'),
        (check.json("$.items[3].price", 5, name="c"), "the body has no 3 in this path"),
        (check.status([201, 202], name="c"), "the status is 200"),
        (check.that("c", lambda answer: answer.json()["nothing"]), "KeyError: 'nothing'"),
    ]:
        report = run_load(http("GET", server.url + "/order", checks=[bad]), **ONCE)
        assert report.metadata["errors"] == {"check: c": 1}
        assert report.metadata["error_messages"] == {"check: c": [why]}


def test_bodies_of_every_framing_are_read_whole(server: LoadServer) -> None:
    for path in ("/chunked", "/gzip", "/until-closed", "/anything"):
        report = run_load(http("GET", server.url + path, checks=[check.contains("paid")]), **BRIEF)
        assert report.metadata["errors"] == {}, path


def test_a_status_other_than_2xx_is_an_error_unless_a_check_takes_it(server: LoadServer) -> None:
    assert errors_of(server.url + "/status/404") == {"status 404": 10}
    assert errors_of(server.url + "/status/404", checks=[check.status([200, 404])]) == {}
    report = run_load(http("GET", server.url + "/alternating"), lambda t: t.status_in([200]), **BRIEF)
    assert report.metadata["statuses"] == {"200": 5, "503": 5}
    assert report.assertions[0].message == "5 of 10 answers have another status: 5 × 503"
    assert (report.verdict, report.assertions[0].failing, report.assertions[0].checked) == ("fail", 5, 10)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/close", "connection closed"),
        ("/reset", "connection reset"),
        ("/half", "connection closed"),
        ("/junk", "protocol"),
    ],
)
def test_an_answer_that_does_not_come_is_an_error_of_its_kind(
    server: LoadServer, path: str, kind: str
) -> None:
    assert errors_of(server.url + path) == {kind: 10}


def test_a_request_without_an_answer_is_a_timeout_and_its_connection_is_given_up(server: LoadServer) -> None:
    report = run_load(http("GET", server.url + "/never"), timeout=0.2, **BRIEF)
    assert report.metadata["errors"] == {"timeout": 10}
    assert figure(report, "latency_with_errors_ms.min") >= 190  # loops round to milliseconds
    assert figure(report, "connections") == 10
    assert "latency_ms.p99" not in report.metadata["summary"]


def test_a_port_without_a_server_refuses_each_request() -> None:
    with refusing_port() as port:
        report = run_load(http("GET", f"http://127.0.0.1:{port}/"), lambda t: t.p99_under("1s"), **BRIEF)
    assert report.metadata["errors"] == {"connection refused": 10}
    assert report.assertions[0].message == "no request succeeded: there is no latency"
    assert report.verdict == "fail"


def test_users_who_are_refused_do_not_spin() -> None:
    with refusing_port() as port:
        report = run_load(http("GET", f"http://127.0.0.1:{port}/"), users=2, duration=0.5)
    assert 2 <= figure(report, "errors") <= 22  # each waits 50 ms after a refusal


@pytest.mark.parametrize("http2", [False, True])
def test_a_server_that_hangs_up_at_once_is_an_error_and_no_wait_for_the_timeout(http2: bool) -> None:
    with closing_port() as port:
        report = run_load(http("GET", f"http://127.0.0.1:{port}/", http2=http2), timeout=60, **BRIEF)
    assert set(report.metadata["errors"]) <= {"connection closed", "connection reset", "cannot connect"}
    assert figure(report, "errors") == 10


def test_an_idle_connection_that_the_server_closed_costs_no_error(server: LoadServer) -> None:
    report = run_load(http("GET", server.url + "/once"), users=1, duration=0.3)
    assert report.verdict == "pass"
    assert figure(report, "connections") > 2


def test_without_keep_alive_each_request_has_its_connection(server: LoadServer) -> None:
    report = run_load(http("GET", server.url + "/", keep_alive=False), **BRIEF)
    assert figure(report, "connections") == server.connections == 10
    assert {each.headers["connection"] for each in server.received} == {"close"}


def test_redirects_are_answers_unless_they_are_to_be_followed(server: LoadServer) -> None:
    url = server.url + "/redirect?to=/order"
    assert errors_of(url) == {"status 302": 10}
    server.received.clear()
    assert errors_of(url, follow_redirects=True, checks=[check.contains("paid")]) == {}
    assert sorted(each.path for each in server.received) == ["/order"] * 10 + ["/redirect"] * 10


def test_a_redirect_to_another_host_is_never_followed(server: LoadServer) -> None:
    with running_load_server() as other:
        found = errors_of(f"{server.url}/redirect?to={other.url}/", follow_redirects=True)
        assert found == {"redirect to another host": 10}
        assert other.received == []


def test_a_circle_of_redirects_ends(server: LoadServer) -> None:
    assert errors_of(server.url + "/circle", follow_redirects=True) == {"redirects": 10}
    assert len(server.received) == 10 * 11


def test_a_redirected_post_becomes_a_get_but_for_307(server: LoadServer) -> None:
    for status, method in ((302, "GET"), (303, "GET"), (307, "POST")):
        server.received.clear()
        target = http(
            "POST", f"{server.url}/redirect?to=/x&status={status}", body="data", follow_redirects=True
        )
        assert run_load(target, **ONCE).verdict == "pass"
        assert (server.received[1].method, server.received[1].body) == (
            method,
            b"data" if method == "POST" else b"",
        )


def test_each_user_keeps_its_cookies(server: LoadServer) -> None:
    target = http("GET", server.url + "/login", keep_cookies=True, cookies={"shop": "de"})
    run_load(target, users=2, duration=0.2)
    first = [each for each in server.received if each.headers["cookie"] == "shop=de"]
    assert len(first) == 2
    assert len(server.received) > 4
    rest = {each.headers["cookie"] for each in server.received if each not in first}
    assert rest <= {"shop=de; session=0", "shop=de; session=1"}


def test_nothing_is_sent_to_a_host_that_nobody_allowed() -> None:
    with pytest.raises(HostNotAllowed) as refused:
        run_load(http("GET", "http://192.0.2.1/orders"), **BRIEF)
    assert "192.0.2.1 port 80" in str(refused.value)
    assert 'allow_hosts=["192.0.2.1"]' in str(refused.value.next_step)


def test_another_name_of_this_machine_is_sent_to_only_when_it_is_allowed() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
        try:
            probing.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the address to send from
            own = probing.getsockname()[0]
        except OSError:
            own = "127.0.0.1"
    with running_load_server(host=own) as server:
        url = f"http://{own}:{server.port}/"
        if own != "127.0.0.1":
            with pytest.raises(HostNotAllowed):
                run_load(http("GET", url), **BRIEF)
            with pytest.raises(HostNotAllowed):
                run_load(http("GET", url), allow_hosts=[f"{own}:1"], **BRIEF)
            assert server.connections == 0
        assert run_load(http("GET", url), allow_hosts=[f"{own}:{server.port}"], **BRIEF).verdict == "pass"
