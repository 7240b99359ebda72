"""What each alerter sends, over real sockets; and that no server, however it behaves, holds it up."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import logging

import pytest

from ematix_flow.alerters import AlertEvent, AlertNotSent, from_url
from ematix_flow.observe.alerts.alerter import SEND_SECONDS, send_with_timeout
from ematix_flow.observe.observer import CLOSE_SECONDS
from tests.alert_servers import http_receiver, mail_server, refusing_port

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
FAILED = AlertEvent(
    "failed",
    "orders",
    NOON,
    error_message="<raw.orders> & co: password=hunter22 is\nwrong",
    error_type="SourceFailed",
    attempt_count=1,
    max_attempts=3,
    run_id="1a2b3c4d5e6f",
    slot=NOON,
    where="pipelines.py:7",
    next_step="flow connections check shop",
    host="etl-1",
)
GAVE_UP = AlertEvent("gave_up", "orders", NOON, "no route", "CannotConnect", 3, 3, True)
RECOVERED = AlertEvent("recovered", "orders", NOON)


def test_stdout_prints_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    send_with_timeout(from_url("stdout://"), FAILED)
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[0].startswith("[ALERT] 2026-05-17T12:00:00+00:00 failed: orders failed: SourceFailed: <raw")
    assert {"  where: pipelines.py:7", "  attempt: 1 of 3", "  log: flow runs show 1a2b3c4d"} <= set(lines)
    assert "hunter22" not in printed.err


def test_slack_is_sent_text_that_it_cannot_misread() -> None:
    with http_receiver() as server:
        send_with_timeout(from_url(f"slack://{server.host}/services/T/B/sesame99?insecure=1"), FAILED)
    (post,) = server.posted
    assert post.path == "/services/T/B/sesame99"
    assert (
        "*orders failed: SourceFailed: &lt;raw.orders&gt; &amp; co: password=*** is wrong*"
        in post.json["text"]
    )


def test_a_webhook_is_sent_the_event_signed_by_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    key = b"open sesame, and quickly"
    monkeypatch.setenv("HOOK_SECRET", "whsec_" + base64.b64encode(key).decode())
    with http_receiver() as server:
        url = f"webhook+http://{server.host}/in?team=ops&secret-env=HOOK_SECRET"
        send_with_timeout(from_url(url), FAILED)
    (post,) = server.posted
    assert post.path == "/in?team=ops"
    assert (post.json["kind"], post.json["pipeline"], post.json["slot"]) == (
        "failed",
        "orders",
        NOON.isoformat(),
    )
    assert post.json["id"] == post.headers["Webhook-Id"]
    signed = f"{post.headers['Webhook-Id']}.{post.headers['Webhook-Timestamp']}.".encode() + post.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert post.headers["Webhook-Signature"] == f"v1,{expected}"


def test_pagerduty_opens_one_incident_a_pipeline_and_resolves_it() -> None:
    with http_receiver() as server:
        alerter = from_url(f"pagerduty://sesame99?service=shop&endpoint=http://{server.host}/v2/enqueue")
        for event in (FAILED, GAVE_UP, RECOVERED):
            send_with_timeout(alerter, event)
    first, second, third = (post.json for post in server.posted)
    assert {each["dedup_key"] for each in (first, second, third)} == {"shop:orders"}
    assert {each["routing_key"] for each in (first, second, third)} == {"sesame99"}
    actions = [each["event_action"] for each in (first, second, third)]
    assert actions == ["trigger", "trigger", "resolve"]
    assert (first["payload"]["severity"], second["payload"]["severity"]) == ("error", "critical")
    assert "orders failed 3 times, and is not tried again: CannotConnect" in second["payload"]["summary"]


def test_mail_has_a_subject_of_one_line_and_goes_to_all() -> None:
    with mail_server() as server:
        url = f"email://me:hunter22@localhost:{server.port}?from=flow@example.com&to=a@b.c,d@e.f&starttls=0"
        send_with_timeout(from_url(url), FAILED)
    (mail,) = server.mails
    assert "Subject: [ematix-flow] orders failed: SourceFailed:" in mail
    assert "next: flow connections check shop" in mail
    assert len(server.recipients) == 2
    assert base64.b64decode(server.logins[0].split()[1]) == b"\0me\0hunter22"


@pytest.mark.parametrize(
    ("refuses", "parameters", "words"),
    [("RCPT", "&starttls=0", "550"), ("AUTH", "&starttls=0", "550 not for you"), (None, "", "STARTTLS")],
)
def test_mail_that_is_not_taken_says_why(refuses: str | None, parameters: str, words: str) -> None:
    with mail_server(refuses) as server:
        alerter = from_url(f"email://me:hunter22@localhost:{server.port}?to=a@b.c{parameters}")
        with pytest.raises(AlertNotSent, match=words):
            send_with_timeout(alerter, FAILED)
    assert server.mails == []


def test_apprise_sends_to_its_services() -> None:
    with http_receiver() as server:
        send_with_timeout(from_url(f"json://{server.host}/in?remind=6h"), FAILED)
        send_with_timeout(from_url(f"apprise+json://{server.host}/in"), RECOVERED)
    first, second = (post.json for post in server.posted)
    assert (first["type"], second["type"]) == ("failure", "success")
    assert first["title"].startswith("orders failed")


def test_apprise_that_fails_says_why_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with http_receiver("answers 500") as server, pytest.raises(AlertNotSent, match="error=500"):
        send_with_timeout(from_url(f"json://{server.host}/sesame99"), FAILED)
    assert "sesame99" not in caplog.text


def test_apprise_follows_no_redirect_even_when_its_url_asks_for_it() -> None:
    with http_receiver("redirects", "ok") as server, pytest.raises(AlertNotSent, match="307"):
        send_with_timeout(from_url(f"json://{server.host}/in?redirect=yes"), FAILED)
    assert len(server.posted) == 1


@pytest.mark.parametrize("behaviour", ["answers 500", "closes", "closes mid answer"])
def test_a_server_that_stumbles_is_asked_once_more(behaviour: str) -> None:
    with http_receiver(behaviour, "ok") as server:
        send_with_timeout(from_url(f"webhook+http://{server.host}/in"), FAILED)
    first, second = server.posted
    assert first.headers["Webhook-Id"] == second.headers["Webhook-Id"]


@pytest.mark.parametrize(
    ("behaviour", "words", "posts"),
    [
        ("answers 500", "500 Internal Server Error: out of order", 2),
        ("answers 404", "404 Not Found: no_team", 1),
        ("closes", "closed connection", 2),
        ("never ends", "500", 2),
        ("redirects", "307", 1),
    ],
)
def test_a_server_that_refuses_is_reported_without_the_address(
    behaviour: str, words: str, posts: int
) -> None:
    with http_receiver(behaviour) as server:
        alerter = from_url(f"webhook+http://{server.host}/sesame99")
        with pytest.raises(AlertNotSent, match=words) as refused:
            send_with_timeout(alerter, FAILED)
        assert len(server.posted) == posts
    assert "sesame99" not in f"{refused.value}{refused.value.__cause__}"


@pytest.mark.parametrize("behaviour", ["hangs", "drips"])
@pytest.mark.parametrize("scheme", ["webhook+http", "json"])
def test_a_server_that_takes_its_time_is_left_behind(scheme: str, behaviour: str) -> None:
    with http_receiver(behaviour) as server, pytest.raises(AlertNotSent, match=r"within 0\.5 s"):
        send_with_timeout(from_url(f"{scheme}://{server.host}/in"), FAILED, seconds=0.5)


def test_who_was_left_behind_is_given_nothing_more_until_it_is_done() -> None:
    with http_receiver("hangs") as server:
        alerter = from_url(f"webhook+http://{server.host}/in")
        for words in ("no answer", "an earlier message"):
            with pytest.raises(AlertNotSent, match=words):
                send_with_timeout(alerter, FAILED, seconds=0.3)
    assert len(server.posted) == 1


def test_a_missing_server_is_reported() -> None:
    with refusing_port() as port:
        for url in (f"slack://localhost:{port}/x?insecure=1", f"email://localhost:{port}?to=a@b.c"):
            with pytest.raises(AlertNotSent, match="refused"):
                send_with_timeout(from_url(url), FAILED)


def test_a_message_ends_before_a_process_stops_waiting_for_it() -> None:
    assert SEND_SECONDS < CLOSE_SECONDS <= 5


def test_an_event_has_no_line_break_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    event = AlertEvent("failed", "orders\r\nBcc: x@y.z", error_message="postgres://u:hunter22@h/d\x00")
    assert event.pipeline == "orders Bcc: x@y.z"
    assert "hunter22" not in event.text and "\x00" not in event.text
    with pytest.raises(ValueError, match="exploded"):
        AlertEvent("exploded", "orders")  # type: ignore[arg-type]
