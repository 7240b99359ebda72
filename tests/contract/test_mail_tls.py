"""Alerts by mail over TLS: a trusted server receives them, and no other server receives anything."""

from __future__ import annotations

import base64
import ssl

import pytest

from ematix_flow.alerters import AlertEvent, AlertNotSent, from_url
from ematix_flow.observe.alerts.alerter import send_with_timeout
from tests.alert_servers import mail_server
from tests.services.certificates import Certificates, make_certificates

FAILED = AlertEvent("failed", "orders", error_message="no route", error_type="CannotConnect")
SECRET = "hunter22/x"
LOGIN = base64.b64encode(f"\0me\0{SECRET}".encode()).decode()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("mail"))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context


def send(scheme: str, port: int, host: str = "localhost") -> None:
    password = SECRET.replace("/", "%2F")
    send_with_timeout(
        from_url(f"{scheme}://me:{password}@{host}:{port}?from=flow@example.com&to=a@b.c"), FAILED
    )


@pytest.mark.parametrize(("scheme", "implicit"), [("email", False), ("email+smtps", True)])
def test_mail_and_password_go_over_verified_tls(
    scheme: str,
    implicit: bool,
    tls: ssl.SSLContext,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with mail_server(tls=tls, implicit=implicit) as server:
        send(scheme, server.port)
    assert len(server.mails) == 1 and server.logins == [f"PLAIN {LOGIN}"]
    plain = [line.split()[0].upper() for line in server.heard_plain]
    assert plain == ([] if implicit else ["EHLO", "STARTTLS"])


@pytest.mark.parametrize(("scheme", "implicit"), [("email", False), ("email+smtps", True)])
@pytest.mark.parametrize(
    ("trusted", "host", "words"),
    [(False, "127.0.0.1", "unable to get local issuer"), (True, "127.0.0.2", "IP address mismatch")],
)
def test_a_server_that_is_not_who_it_says_hears_nothing(
    scheme: str,
    implicit: bool,
    trusted: bool,
    host: str,
    words: str,
    tls: ssl.SSLContext,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    distrusted = pytest.raises(AlertNotSent, match=f"certificate cannot be trusted: .*{words}")
    with mail_server(tls=tls, implicit=implicit, host=host) as server, distrusted:
        send(scheme, server.port, host)
    assert server.mails == server.logins == []


@pytest.mark.parametrize(
    ("scheme", "words"), [("email", "append starttls=0"), ("email+smtps", "write email://")]
)
def test_a_server_without_tls_hears_no_password(scheme: str, words: str) -> None:
    with mail_server() as server, pytest.raises(AlertNotSent, match=words):
        send(scheme, server.port)
    assert server.mails == server.logins == []


def test_a_server_that_repeats_the_password_does_not_make_it_known(
    tls: ssl.SSLContext, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    refused = pytest.raises(AlertNotSent, match="550 not for you: AUTH PLAIN")
    with mail_server("AUTH", tls) as server, refused as raised:
        send("email", server.port)
    assert LOGIN not in str(raised.value) and SECRET not in str(raised.value)
