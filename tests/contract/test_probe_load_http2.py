"""Load probes over TLS and over HTTP/2, against real servers with a certificate of an unknown authority."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_probe import check, http
from tests.contract.load_runs import figure, run_load
from tests.contract.load_server import LoadServer, running_load_server
from tests.services.certificates import Certificates, make_certificates

BRIEF = {"rate": 50, "duration": 0.2}  # ten requests


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls_of(certificates: Certificates, *protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.set_alpn_protocols(list(protocols))
    return context


@pytest.fixture
def secure(certificates: Certificates) -> Iterator[LoadServer]:
    with running_load_server(tls=tls_of(certificates, "http/1.1")) as server:
        yield server


@pytest.fixture
def multiplexed() -> Iterator[LoadServer]:
    with running_load_server(http2=True) as server:
        yield server


def test_a_certificate_of_an_unknown_authority_is_refused(secure: LoadServer) -> None:
    report = run_load(http("GET", f"https://127.0.0.1:{secure.port}/"), **BRIEF)
    assert report.metadata["errors"] == {"tls certificate": 10}
    assert "unable to get local issuer certificate" in str(report.metadata["error_messages"])
    assert secure.received == []


def test_a_certificate_is_good_with_its_authority_and_for_its_names_only(
    secure: LoadServer, certificates: Certificates
) -> None:
    target = http("GET", f"https://localhost:{secure.port}/", ca_file=certificates.authority)
    assert run_load(target, **BRIEF).verdict == "pass"
    with running_load_server(tls=tls_of(certificates, "http/1.1"), host="127.0.0.2") as server:
        other = http("GET", f"https://127.0.0.2:{server.port}/", ca_file=certificates.authority)
        assert run_load(other, **BRIEF).metadata["errors"] == {"tls certificate": 10}


def test_verify_false_takes_any_certificate(secure: LoadServer) -> None:
    report = run_load(http("GET", f"https://127.0.0.1:{secure.port}/", verify=False), **BRIEF)
    assert report.verdict == "pass"
    assert len(secure.received) == 10


def test_plain_http_at_a_tls_port_and_tls_at_a_plain_port_are_errors(secure: LoadServer) -> None:
    plain = run_load(http("GET", f"http://127.0.0.1:{secure.port}/"), **BRIEF)
    assert figure(plain, "errors") == 10
    with running_load_server() as server:
        report = run_load(http("GET", f"https://127.0.0.1:{server.port}/", verify=False), timeout=1, **BRIEF)
    assert figure(report, "errors") == 10


def test_many_requests_share_one_connection_of_http2(multiplexed: LoadServer) -> None:
    target = http(
        "POST", multiplexed.url + "/wait/100?a=1", http2=True, body="four", headers={"X-Tenant": "7"}
    )
    report = run_load(target, rate=100, duration=0.3)
    assert report.verdict == "pass", report.metadata["errors"]
    assert len(multiplexed.received) == 30
    assert figure(report, "connections") == multiplexed.connections == 1
    assert figure(report, "max_in_flight") > 1
    assert figure(report, "latency_ms.min") >= 99
    received = multiplexed.received[0]
    assert (received.method, received.target, received.body) == ("POST", "/wait/100?a=1", b"four")
    assert received.headers["x-tenant"] == "7"
    assert received.headers[":authority"] == f"127.0.0.1:{multiplexed.port}"


def test_a_large_body_is_sent_as_the_windows_of_http2_allow(multiplexed: LoadServer) -> None:
    checks = [check.contains(" 300000")]
    target = http("PUT", multiplexed.url + "/x", http2=True, body=b"x" * 300_000, checks=checks)
    assert run_load(target, users=2, duration=0.3).metadata["errors"] == {}
    assert {len(each.body) for each in multiplexed.received} == {300_000}


def test_http2_is_agreed_on_over_tls_or_it_is_an_error(certificates: Certificates) -> None:
    with running_load_server(http2=True, tls=tls_of(certificates, "h2")) as server:
        target = http("GET", f"https://localhost:{server.port}/", http2=True, ca_file=certificates.authority)
        assert run_load(target, **BRIEF).verdict == "pass"
        assert server.received[0].headers[":scheme"] == "https"
    with running_load_server(tls=tls_of(certificates, "http/1.1")) as server:
        target = http("GET", f"https://localhost:{server.port}/", http2=True, ca_file=certificates.authority)
        report = run_load(target, **BRIEF)
        assert sum(report.metadata["errors"].values()) == 10
        assert set(report.metadata["errors"]) <= {"no http2", "tls"}


def test_a_server_without_http2_makes_protocol_errors() -> None:
    with running_load_server() as server:
        report = run_load(http("GET", server.url, http2=True), timeout=1, **BRIEF)
    assert figure(report, "errors") == 10


def test_a_reset_stream_fails_one_request_and_a_timeout_frees_its_stream(multiplexed: LoadServer) -> None:
    report = run_load(http("GET", multiplexed.url + "/reset", http2=True), **BRIEF)
    assert report.metadata["errors"] == {"stream reset": 10}
    report = run_load(http("GET", multiplexed.url + "/never", http2=True), timeout=0.1, **BRIEF)
    assert report.metadata["errors"] == {"timeout": 10}
    assert multiplexed.connections == 2  # one for each load


def test_a_server_that_recycles_connections_costs_no_error(multiplexed: LoadServer) -> None:
    multiplexed.goaway_after = 10
    report = run_load(http("GET", multiplexed.url + "/wait/20", http2=True), rate=200, duration=0.5)
    assert report.metadata["errors"] == {}
    assert figure(report, "attempts") == 100
    assert multiplexed.connections >= 5
    # forty requests at once: those behind the tenth are sent again, some of them more than once
    at_once = run_load(http("POST", multiplexed.url + "/wait/20", http2=True), users=40, duration=0.3)
    assert at_once.metadata["errors"] == {}


def test_the_path_of_certificates_is_checked_before_anything_is_sent(tmp_path: Path) -> None:
    from ematix_probe.errors import DeclarationError

    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(DeclarationError, match="ca_file="):
        run_load(http("GET", "https://127.0.0.1:1/", ca_file=tmp_path / "ca.pem"), **BRIEF)
