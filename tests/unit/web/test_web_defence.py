"""Nobody gets in without a token, and nothing that is shown is anything but text."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.web.access import Access, Tokens, find_tokens
from ematix_flow.web.endpoints import Viewer
from ematix_flow.web.guard import CONTENT_POLICY, MAX_BODY_BYTES
from ematix_flow.web.server import Binding
from tests.unit.web.conftest import OPERATOR, READER, Serve, Served

EVERY_GET = [
    "/me",
    "/pipelines",
    "/runs",
    "/graph",
    "/schedule",
    "/actions",
    "/openapi.json",
    "/events",
    "/nope",
]
ACTION = {"kind": "run", "subject": "orders", "arguments": {}}


def same_origin(served: Served, **more: str) -> dict[str, str]:
    return {"Origin": f"http://{served.host}", "X-Requested-With": "ematix-flow", **more}


def cookie_of(served: Served, token: str = OPERATOR) -> str:
    reply = served.send(
        "POST", "/api/v1/session", token=None, body={"token": token}, headers=same_origin(served)
    )
    assert reply.status == 200, reply.body
    return reply.headers["set-cookie"].partition(";")[0]


# ------------------------------------------------------------------ tokens


@pytest.mark.parametrize("path", EVERY_GET)
def test_nothing_is_answered_without_a_token(served: Served, path: str) -> None:
    for token in (None, "", "wrong", OPERATOR[:-1], OPERATOR + "x", "é" * 20):
        headers = {} if token is None else {"Authorization": f"Bearer {token}".encode().decode("latin-1")}
        reply = served.get(path, token=None, headers=headers)
        assert reply.status == 401, (path, token)
        assert reply.json["error"]["what"] and b"orders" not in reply.body
    assert served.get("/runs", token=None, headers={"Authorization": f"Basic {OPERATOR}"}).status == 401


def test_many_wrong_tokens_are_refused_and_a_right_one_still_opens(served: Served) -> None:
    statuses = [served.get("/me", token=f"wrong-{n}").status for n in range(25)]
    assert statuses[:20] == [401] * 20 and statuses[20:] == [429] * 5
    assert served.get("/me").status == 200, "a right token still opens"
    body: Any = {"token": "wrong"}
    reply = served.send("POST", "/api/v1/session", token=None, body=body, headers=same_origin(served))
    assert reply.status == 429 and reply.headers["retry-after"]
    assert cookie_of(served), "a right token still begins a session"


def test_other_sites_cannot_use_up_the_attempts_or_the_code(serve: Serve) -> None:
    served = serve(tokens=Tokens(None))
    _, _, code = served.server.address.partition("/?code=")
    for site in ("cross-site", "same-site"):
        for given in (code, *["wrong"] * 20):
            reply = served.send("GET", f"/?code={given}", token=None, headers={"Sec-Fetch-Site": site})
            assert reply.status == 303 and "set-cookie" not in reply.headers
    assert served.get("/me", token="wrong").status == 401, "none of them was counted"
    reply = served.send("GET", f"/?code={code}", token=None, headers={"Sec-Fetch-Site": "none"})
    assert reply.headers["set-cookie"]


def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(served: Served) -> None:
    reply = served.send(
        "POST", "/api/v1/session", token=None, body={"token": READER}, headers=same_origin(served)
    )
    assert reply.json == {"role": "reader"}
    parts = reply.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(parts) and READER not in parts[0]
    assert served.get("/me", token=None, headers={"Cookie": parts[0]}).json["role"] == "reader"
    ended = served.send("DELETE", "/api/v1/session", token=None, headers=same_origin(served, Cookie=parts[0]))
    assert ended.status == 204 and "Max-Age=0" in ended.headers["set-cookie"]


def test_a_cookie_that_was_changed_or_is_over_is_worth_nothing(served: Served) -> None:
    cookie = cookie_of(served, READER)
    name, _, value = cookie.partition("=")
    role, until, signature = value.split(".")
    changed = [
        f"operator.{until}.{signature}",
        f"{role}.{int(until) + 1}.{signature}",
        f"{role}.{until}.{signature[:-1]}",
        f"{role}.{until}.",
        f"{role}..",
        "",
        "x" * 5000,
    ]
    for each in changed:
        assert served.get("/me", token=None, headers={"Cookie": f"{name}={each}"}).status == 401
    access = Access(Tokens(OPERATOR, READER), "c", False)
    assert access.session_cookie(Viewer("reader", "reader")).startswith("c=reader.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ematix_flow.web.access.SESSION_SECONDS", -1)
        over = access.session_cookie(Viewer("reader", "reader")).partition(";")[0]
    assert access.viewer({"cookie": over}) == (None, True)


def test_the_printed_address_begins_one_session(serve: Serve) -> None:
    served = serve(tokens=Tokens(None))
    origin, _, code = served.server.address.partition("/?code=")
    assert origin == f"http://{served.host}" and len(code) >= 32
    assert served.get("/me", token=code).status == 401, "it is no token"
    by_token = served.send("GET", f"/?token={served.server.tokens.operator}", token=None)
    assert "set-cookie" not in by_token.headers
    reply = served.send("GET", f"/?code={code}", token=None)
    assert (reply.status, reply.headers["location"]) == (303, "/")
    cookie = reply.headers["set-cookie"].partition(";")[0]
    assert served.get("/me", token=None, headers={"Cookie": cookie}).json["role"] == "operator"
    for given in ("wrong", code):
        refused = served.send("GET", f"/?code={given}", token=None)
        assert refused.status == 303 and "set-cookie" not in refused.headers


def test_behind_a_proxy_no_address_signs_in(serve: Serve) -> None:
    binding = Binding("127.0.0.1", 0, behind_proxy="https://flow.example.com")
    served = serve(binding=binding, tokens=Tokens(None))
    assert served.server.address == "https://flow.example.com/"
    token = served.server.tokens.operator
    for query in (f"token={token}", f"code={token}", "code=None", "code="):
        assert "set-cookie" not in served.send("GET", f"/?{query}", token=None).headers, query
    assert token.encode() not in served.get("/me", token=token).body


def test_a_reader_may_look_and_no_more(served: Served) -> None:
    assert served.get("/pipelines", token=READER).status == 200
    for path, body in (("/actions", ACTION), ("/connections/shop/check", None)):
        reply = served.send("POST", f"/api/v1{path}", token=READER, body=body)
        assert (reply.status, reply.json["error"]["what"]) == (403, "readers may only look")
    assert served.get("/actions").json["items"] == []


def test_a_server_that_only_shows_refuses_every_action(serve: Serve) -> None:
    writable = serve()
    writable.add_run("orders")
    served = serve(read_only=True)
    assert served.get("/me").json["read_only"] is True
    assert served.get("/pipelines").json["items"][0]["name"]
    reply = served.send("POST", "/api/v1/actions", body=ACTION)
    assert reply.status == 409 and "--read-only" in reply.json["error"]["what"]


# ------------------------------------------------------------------ other sites


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://{host}", "http://{host}.evil.example", "http://localhost:1"],
)
def test_a_request_from_another_site_is_refused(served: Served, origin: str) -> None:
    headers = same_origin(served, Cookie=cookie_of(served)) | {"Origin": origin.format(host=served.host)}
    assert served.send("POST", "/api/v1/actions", token=None, body=ACTION, headers=headers).status == 403
    assert served.get("/runs", token=None, headers=headers).status == 403
    assert served.get("/actions").json["items"] == []


def test_a_cookie_alone_changes_nothing(served: Served) -> None:
    cookie = cookie_of(served)
    whole = same_origin(served, Cookie=cookie)
    for left_out in ("Origin", "X-Requested-With"):
        headers = {name: value for name, value in whole.items() if name != left_out}
        assert served.send("POST", "/api/v1/actions", token=None, body=ACTION, headers=headers).status == 403
    for site in ("cross-site", "same-site"):
        headers = {"Cookie": cookie, "Sec-Fetch-Site": site}
        assert served.get("/runs", token=None, headers=headers).status == 403
    assert served.send("POST", "/api/v1/actions", token=None, body=ACTION, headers=whole).status == 201


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "localhost:x",
        "10.0.0.1",
        "[::1",
    ],
)
def test_a_host_that_is_not_ours_is_refused(served: Served, host: str) -> None:
    for path in ("/api/v1/me", "/", "/assets/index-0123456789.js"):
        assert served.send("GET", path, headers={"Host": host}).status in (400, 403)


def test_loopback_may_be_called_by_each_of_its_names(served: Served) -> None:
    for host in ("localhost", "LOCALHOST:9", f"127.0.0.1:{served.server.port}", "[::1]:8080", "127.0.0.2"):
        assert served.get("/me", headers={"Host": host}).status == 200


# ------------------------------------------------------------------ sizes, paths, texts


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    large = b'{"kind": "' + b"x" * MAX_BODY_BYTES + b'"}'
    assert served.send("POST", "/api/v1/actions", body=large).status == 413
    chunks = b"".join(b"1000\r\n" + b"x" * 0x1000 + b"\r\n" for _ in range(17)) + b"0\r\n\r\n"
    head = (
        f"POST /api/v1/actions HTTP/1.1\r\nHost: {served.host}\r\nAuthorization: Bearer {OPERATOR}\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.server.port), timeout=30) as sent:
        sent.sendall(head.encode() + chunks)
        assert sent.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 20_000, b'{"kind": 1, "subject": "x"}']
)
def test_a_body_that_is_no_action_is_refused_in_words(served: Served, body: bytes) -> None:
    reply = served.send("POST", "/api/v1/actions", body=body)
    assert reply.status == 400 and reply.json["error"]["what"]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/assets/../../server.py",
        "/assets/%2e%2e/index.html",
        "/assets/..%5c..%5cserver.py",
        "//etc/passwd",
        "/assets//etc/passwd",
        "/%00",
    ],
)
def test_no_path_leads_out_of_the_pages(served: Served, path: str) -> None:
    reply = served.send("GET", path, token=None)
    assert reply.status in (200, 404)
    assert b"root:" not in reply.body and b"import" not in reply.body
    if reply.status == 200:
        assert reply.body == (served.folder / "pages" / "index.html").read_bytes()


def test_pages_are_served_with_a_strict_policy(served: Served) -> None:
    for path in ("/", "/runs/abc", "/pipelines/x.y"):
        reply = served.send("GET", path, token=None)
        assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
        assert reply.headers["content-security-policy"] == CONTENT_POLICY
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
    asset = served.send("GET", "/assets/index-0123456789.js", token=None)
    assert "immutable" in asset.headers["cache-control"]
    again = served.send(
        "GET", "/assets/index-0123456789.js", token=None, headers={"If-None-Match": asset.headers["etag"]}
    )
    assert (again.status, again.body) == (304, b"")
    assert served.send("GET", "/assets/gone-0123456789.js", token=None).status == 404
    assert served.get("/me").headers["cache-control"] == "no-store"
    assert "server" not in asset.headers


def test_hostile_texts_stay_text_in_json(served: Served) -> None:
    script = "</script><script>alert(1)</script>"
    run = served.add_run("orders", "failed", error=ValueError(f"{script}\n\x1b[31m \u2028 password=hunter22"))
    reply = served.get(f"/runs/{run.run_id}")
    assert reply.headers["content-type"] == "application/json"
    assert script in reply.json["error_message"] and "hunter22" not in reply.json["error_message"]
    assert "<script>alert(1)</script>" in {item["name"] for item in served.get("/pipelines").json["items"]}


def test_a_megabyte_of_error_text_is_bounded(served: Served) -> None:
    run = served.add_run("orders", "failed", error=ValueError("x" * 1_000_000))
    for path in (f"/runs/{run.run_id}", "/runs", "/pipelines/orders", "/graph"):
        reply = served.get(path)
        assert reply.status == 200 and len(reply.body) < 100_000


def test_other_methods_and_paths_are_answered_in_words(served: Served) -> None:
    for method, path in (("PUT", "/runs"), ("DELETE", "/runs/x"), ("POST", "/pipelines"), ("GET", "/")):
        reply = served.send(method, f"/api/v1{path}")
        assert reply.status in (404, 405), (method, path)
    assert served.send("POST", "/", token=None).status == 405


# ------------------------------------------------------------------ where it may listen


def test_another_address_than_loopback_needs_a_token_and_tls(tmp_path: Path) -> None:
    tokens = Tokens(OPERATOR)
    for host in ("0.0.0.0", "::", "192.168.0.7", "flow.example.com"):
        with pytest.raises(UsageError, match="no token is set"):
            Binding(host, 0).check(Tokens(None))
        with pytest.raises(UsageError, match="there is no TLS"):
            Binding(host, 0).check(tokens)
        Binding(host, 0, behind_proxy="https://flow.example.com").check(tokens)
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        Binding(host, 0).check(Tokens(None))
    with pytest.raises(UsageError, match="needs both"):
        Binding("::", 0, tls_cert=tmp_path)
    for proxy in ("http://flow.example.com", "flow.example.com", "https://", "https://a/b"):
        with pytest.raises(UsageError, match="takes the address"):
            Binding("::", 0, behind_proxy=proxy)


def test_behind_a_proxy_its_name_and_origin_are_ours(serve: Serve) -> None:
    served = serve(binding=Binding("127.0.0.1", 0, behind_proxy="https://flow.example.com"))
    proxied = {"Host": "flow.example.com", "Origin": "https://flow.example.com"}
    headers = {**proxied, "X-Requested-With": "ematix-flow"}
    reply = served.send("POST", "/api/v1/session", token=None, body={"token": OPERATOR}, headers=headers)
    assert reply.status == 200
    assert reply.headers["set-cookie"].startswith("__Host-ematix-flow=")
    assert "; Secure" in reply.headers["set-cookie"]
    assert served.server.address == "https://flow.example.com/"


def test_tokens_are_read_from_files_and_variables_and_weak_ones_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{OPERATOR}\n", encoding="utf-8")
    assert find_tokens({}, None, file, None) == Tokens(OPERATOR)
    env = {"EMATIX_FLOW_WEB_TOKEN": OPERATOR, "EMATIX_FLOW_WEB_READER_TOKEN": READER}
    assert find_tokens(env, None, None, None) == Tokens(OPERATOR, READER)
    assert find_tokens({"EMATIX_FLOW_WEB_TOKEN": ""}, None, None, None) == Tokens(None)
    for token in ("short", "é" * 20):
        with pytest.raises(ConfigError, match="it needs 16 or more"):
            find_tokens({}, token, None, None)
    with pytest.raises(ConfigError, match="cannot be read"):
        find_tokens({}, None, tmp_path / "gone", None)
    with pytest.raises(UsageError, match="not both"):
        find_tokens({}, OPERATOR, file, None)
    with pytest.raises(ConfigError, match="are the same"):
        find_tokens(env | {"EMATIX_FLOW_WEB_READER_TOKEN": OPERATOR}, None, None, None)
