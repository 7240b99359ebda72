"""``${vault:…}`` against a real OpenBao: both versions of KV, every login, each failure."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.config.secret_stores import base
from ematix_flow.errors import CannotConnect, ConfigError, FlowError
from ematix_flow.secrets import MissingSecretError, VaultResolver
from tests.services.certificates import make_certificates
from tests.services.vault import VaultServer

PASSWORD = "p@ss/w:rd-of-the-warehouse"
POLICY = 'path "secret/data/team/*" { capabilities = ["read"] }'


@pytest.fixture
def admin(vault: VaultServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The root's client; the environment logs in as root too."""
    monkeypatch.setenv("VAULT_ADDR", vault.address)
    monkeypatch.setenv("VAULT_TOKEN", vault.token)
    client = vault.client()
    kv = client.secrets.kv.v2
    kv.create_or_update_secret("team/db", secret={"password": PASSWORD, "user": "etl", "port": 5432})
    return client


@pytest.fixture
def old_engine(admin: Any) -> Iterator[Any]:
    """A KV engine of version 1 at ``old/``."""
    admin.sys.enable_secrets_engine("kv", path="old", options={"version": "1"})
    admin.secrets.kv.v1.create_or_update_secret("team/db", secret={"password": "old"}, mount_point="old")
    yield admin
    admin.sys.disable_secrets_engine("old")


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("team/db#password", PASSWORD),
        ("secret/team/db#password", PASSWORD),
        ("/team/db#port", "5432"),
        ("old/team/db#password", "old"),
    ],
)
def test_a_path_is_read_as_vaults_own_command_takes_it_or_below_the_default_mount(
    old_engine: Any, reference: str, value: str
) -> None:
    assert VaultResolver().resolve(reference) == value


def test_without_a_field_all_of_the_secret_comes_as_json(admin: Any) -> None:
    found = json.loads(VaultResolver().resolve("team/db"))
    assert found == {"password": PASSWORD, "user": "etl", "port": 5432}


def test_a_client_and_a_mount_of_ones_own_are_used_alone(old_engine: Any) -> None:
    resolver = VaultResolver(old_engine, mount_point="old")
    assert resolver.resolve("team/db#password") == "old"
    with pytest.raises(MissingSecretError, match="has no secret 'secret/team/db'"):
        resolver.resolve("secret/team/db#password")


def test_a_secret_is_kept_for_a_minute_and_then_read_again(
    admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = VaultResolver()
    kv = admin.secrets.kv.v2
    kv.create_or_update_secret("team/turning", secret={"user": "a", "password": "one"})
    assert resolver.resolve("team/turning#password") == "one"
    kv.create_or_update_secret("team/turning", secret={"user": "b", "password": "two"})
    assert (resolver.resolve("team/turning#user"), resolver.resolve("team/turning#password")) == ("a", "one")
    later = time.monotonic() + base.CACHE_SECONDS
    monkeypatch.setattr(base.time, "monotonic", lambda: later)
    assert (resolver.resolve("team/turning#user"), resolver.resolve("team/turning#password")) == ("b", "two")


def test_an_approle_logs_in_and_logs_in_again_when_its_token_has_ended(
    admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.sys.enable_auth_method("approle", path="robots")
    admin.sys.create_or_update_policy("team", POLICY)
    role = admin.auth.approle
    role.create_or_update_approle("flow", token_policies=["team"], mount_point="robots")
    role_id = role.read_role_id("flow", mount_point="robots")["data"]["role_id"]
    secret_id = role.generate_secret_id("flow", mount_point="robots")["data"]["secret_id"]
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("VAULT_ROLE_ID", role_id)
    monkeypatch.setenv("VAULT_SECRET_ID", secret_id)
    monkeypatch.setenv("VAULT_AUTH_MOUNT", "robots")
    resolver = VaultResolver()
    assert resolver.resolve("team/db#password") == PASSWORD
    for accessor in admin.auth.token.list_accessors()["data"]["keys"]:
        if "team" in admin.auth.token.lookup_accessor(accessor)["data"]["policies"]:
            admin.auth.token.revoke_accessor(accessor)
    admin.secrets.kv.v2.create_or_update_secret("team/other", secret={"x": "after the end"})
    assert resolver.resolve("team/other#x") == "after the end"
    monkeypatch.setenv("VAULT_SECRET_ID", "wrong")
    with pytest.raises(ConfigError, match="does not take the role of VAULT_ROLE_ID"):
        VaultResolver().resolve("team/db#password")


def test_a_pod_logs_in_with_its_service_account(
    admin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes' side, which checks the account's token, is a small HTTP server of this test."""
    from ematix_flow.config.secret_stores import vault as module

    user = {"username": "system:serviceaccount:data:flow", "uid": "u-1", "groups": []}
    review = {"status": {"authenticated": True, "user": user, "audiences": ["vault"]}}
    authority = Path(make_certificates(tmp_path / "tls").authority).read_text()
    admin.sys.enable_auth_method("kubernetes")
    admin.sys.create_or_update_policy("team", POLICY)
    with answering(lambda handler: handler.answer(201, json.dumps(review))) as address:
        admin.auth.kubernetes.configure(
            kubernetes_host=address,
            kubernetes_ca_cert=authority,
            disable_local_ca_jwt=True,
            token_reviewer_jwt=service_account_token("reviewer"),
        )
        admin.auth.kubernetes.create_role(
            "flow",
            bound_service_account_names=["flow"],
            bound_service_account_namespaces=["data"],
            policies=["team"],
            audience="vault",
        )
        monkeypatch.delenv("VAULT_TOKEN")
        monkeypatch.setenv("VAULT_K8S_ROLE", "flow")
        monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path / "token")
        with pytest.raises(ConfigError, match="VAULT_K8S_ROLE is set, but"):
            VaultResolver().resolve("team/db#password")
        (tmp_path / "token").write_text(service_account_token("flow"))
        assert VaultResolver().resolve("team/db#password") == PASSWORD


def test_the_token_that_a_login_left_in_the_home_folder_is_used(
    admin: Any, vault: VaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no login for Vault") as caught:
        VaultResolver().resolve("team/db#password")
    assert "vault login" in str(caught.value)
    (tmp_path / ".vault-token").write_text(f"{vault.token}\n")
    assert VaultResolver().resolve("team/db#password") == PASSWORD


def test_what_is_not_there_is_named_with_the_places_that_were_looked_at(old_engine: Any) -> None:
    with pytest.raises(MissingSecretError, match="has no secret 'old/nowhere'") as caught:
        VaultResolver().resolve("old/nowhere#x")
    assert "looked at old/nowhere and secret/old/nowhere" in str(caught.value)


def test_a_field_that_is_not_there_lists_the_names_of_the_others_and_no_value(admin: Any) -> None:
    with pytest.raises(MissingSecretError, match="the field 'pasword' of the secret vault:team/db") as caught:
        VaultResolver().resolve("team/db#pasword")
    assert "Did you mean 'password'?" in str(caught.value)
    assert "its fields: password, port, user" in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_deleted_secret_is_not_there(admin: Any) -> None:
    kv = admin.secrets.kv.v2
    kv.create_or_update_secret("team/gone", secret={"x": "1"})
    kv.delete_latest_version_of_secret("team/gone")
    with pytest.raises(MissingSecretError, match="has no secret 'team/gone'"):
        VaultResolver().resolve("team/gone#x")


def test_a_policy_that_forbids_it_is_distinguished_from_an_expired_login(
    admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.sys.create_or_update_policy("team", POLICY)
    token = admin.auth.token.create(policies=["team"])["auth"]["client_token"]
    monkeypatch.setenv("VAULT_TOKEN", token)
    assert VaultResolver().resolve("team/db#password") == PASSWORD
    with pytest.raises(ConfigError, match="does not let us read secret/others/db") as caught:
        VaultResolver().resolve("others/db#password")
    assert 'path "secret/data/others/db" { capabilities = ["read"] }' in str(caught.value)
    admin.auth.token.revoke(token)
    with pytest.raises(ConfigError, match="does not take our login") as caught:
        VaultResolver().resolve("team/db#password")
    assert token not in str(caught.value)


def test_the_address_of_the_server_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="VAULT_ADDR is not set"):
        VaultResolver().resolve("a#b")
    monkeypatch.setenv("VAULT_TOKEN", "t")
    monkeypatch.setenv("VAULT_ADDR", "not a url")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        VaultResolver().resolve("a#b")
    assert "check VAULT_ADDR" in str(caught.value)


def test_a_server_that_is_not_there_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("VAULT_ADDR", f"http://me:for-my-eyes@127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("VAULT_TOKEN", "t")
        with pytest.raises(CannotConnect, match=r"Vault at http://me:\*\*\*@127\.0\.0\.1:\d+ cannot"):
            VaultResolver().resolve("a#b")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, '{"errors": ["Vault is sealed"]}', "is sealed, or not ready"),
        (500, '{"errors": ["internal error"]}', "failed: internal error"),
        (502, "<html>bad gateway</html>", "failed: "),
        (200, "<html>Welcome!</html>", "is not Vault"),
        (200, '{"hello": 1}', "is not Vault"),
    ],
)
def test_a_server_that_answers_in_another_way_is_explained(
    monkeypatch: pytest.MonkeyPatch, status: int, body: str, words: str
) -> None:
    with answering(lambda handler: handler.answer(status, body)) as address:
        monkeypatch.setenv("VAULT_ADDR", address)
        monkeypatch.setenv("VAULT_TOKEN", "t")
        with pytest.raises(CannotConnect, match=words):
            VaultResolver().resolve("a#b")


@pytest.mark.parametrize("how", ["silent", "dripping"])
def test_a_server_that_hangs_is_waited_for_a_few_seconds(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Byte by byte it keeps within the library's own limits: only the limit of the whole ends that."""
    ended = threading.Event()

    def hang(handler: Answering) -> None:
        if how == "silent":
            ended.wait(60)
            return
        handler.send_response(200)
        handler.end_headers()
        while not ended.wait(0.05):
            handler.wfile.write(b" ")

    from ematix_flow.config.secret_stores import vault as module

    monkeypatch.setattr(module, "READ_SECONDS", 0.2)
    monkeypatch.setattr(base, "TOTAL_SECONDS", 5.0 if how == "silent" else 1.0)
    words = "does not answer" if how == "silent" else "no answer within 1 s"
    with answering(hang) as address:
        monkeypatch.setenv("VAULT_ADDR", address)
        monkeypatch.setenv("VAULT_TOKEN", "t")
        try:
            with pytest.raises(CannotConnect, match=words):
                VaultResolver().resolve("a#b")
        finally:
            ended.set()


def test_a_namespace_is_sent_along(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def look(handler: Answering) -> None:
        seen.append(handler.headers.get("X-Vault-Namespace"))
        handler.answer(404, '{"errors": []}')

    with answering(look) as address:
        monkeypatch.setenv("VAULT_ADDR", address)
        monkeypatch.setenv("VAULT_TOKEN", "t")
        monkeypatch.setenv("VAULT_NAMESPACE", "team/a")
        with pytest.raises(FlowError):
            VaultResolver().resolve("a#b")
    assert set(seen) == {"team/a"}


def service_account_token(name: str) -> str:
    """As Kubernetes makes one, but for its signature: the review decides, not the signature."""
    account = {"namespace": "data", "serviceaccount": {"name": name, "uid": "u-1"}}
    claims = {
        "iss": "kubernetes",
        "aud": ["vault"],
        "sub": f"system:serviceaccount:data:{name}",
        "nbf": 1_700_000_000,
        "iat": 1_700_000_000,
        "exp": 4_102_444_800,
        "kubernetes.io": account,
    }
    parts = (json.dumps(part).encode() for part in ({"alg": "RS256", "kid": "k"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, b"signature"))


class Answering(BaseHTTPRequestHandler):
    """Each request is one call of ``do``."""

    do: Any = None

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        type(self).do(self)

    do_POST = do_GET

    def answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def answering(do: Any) -> Iterator[str]:
    """The address of a small HTTP server in this process."""
    handler = type("Handler", (Answering,), {"do": staticmethod(do)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
