"""``${vault:path#field}``: HashiCorp Vault, or OpenBao, by way of ``hvac``.

The server's address and the credentials come from the variables that Vault's own programs read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from ematix_flow.config.secret_stores.base import (
    CONNECT_SECONDS,
    READ_SECONDS,
    Secret,
    SecretStore,
    import_client,
)
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, MissingSecret

Client = Any  # hvac.Client, which has no types

DEFAULT_MOUNT = "secret"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True)
class _SecretPath:
    """A path below the mount of a secrets engine."""

    mount: str
    path: str
    versioned: bool

    @property
    def policy_path(self) -> str:
        return f"{self.mount}/data/{self.path}" if self.versioned else str(self)

    def __str__(self) -> str:
        return f"{self.mount}/{self.path}"


class VaultResolver(SecretStore):
    """Resolves ``${vault:path#field}`` from a KV engine; without a field, the whole secret as JSON.

    The path is one that ``vault kv get`` takes and begins with the name of a mount. If it does not, it is
    looked up in the mount ``secret``. With ``mount_point`` only that mount is used. Without ``client`` the
    environment decides which server is used.
    """

    prefix = "vault"

    def __init__(self, client: Client | None = None, mount_point: str | None = None) -> None:
        super().__init__()
        self._given = client
        self._mount_point = mount_point
        self._ours: Client | None = None

    def read(self, name: str) -> Secret:
        import_client("hvac", self.prefix, "vault")
        client = self._given or self._ours
        if client is not None:
            try:
                return _read_first(client, name, self._mount_point)
            except _AccessRefused as error:
                if self._given is not None:
                    raise error.explained from None
        self._ours = None  # a login expires and a token file is replaced: try once more with a new client
        client = _open_client()
        try:
            found = _read_first(client, name, self._mount_point)
        except _AccessRefused as error:
            raise error.explained from None
        self._ours = client
        return found


class _AccessRefused(Exception):
    """The server rejects the token, or its policies do not allow the path."""

    def __init__(self, explained: FlowError) -> None:
        self.explained = explained


def _read_first(client: Client, path: str, mount_point: str | None) -> Mapping[str, Any]:
    """The secret at the first candidate path that has it."""
    from hvac.exceptions import Forbidden, InvalidPath, Unauthorized

    path = path.strip("/")
    forbidden: list[_SecretPath] = []
    places = []
    try:
        for place in _candidate_paths(client, path, mount_point):
            places.append(place)
            try:
                return _read_path(client, place)
            except InvalidPath:
                continue
            except (Forbidden, Unauthorized):
                forbidden.append(place)
        if forbidden:
            raise _AccessRefused(_refusal_error(client, forbidden[-1]))
    except (_AccessRefused, FlowError):
        raise
    except Exception as error:
        _explain(error, client)
    looked = " and ".join(map(str, places))
    raise MissingSecret(
        f"Vault at {client.url} has no secret {path!r}",
        state=f"looked at {looked}",
        next_step=f"see what is there:  vault kv list {places[0].mount}",
    )


def _candidate_paths(client: Client, path: str, mount_point: str | None) -> list[_SecretPath]:
    if mount_point is not None:
        full = f"{mount_point.strip('/')}/{path}"
        return [_path_below_mount(client, full) or _SecretPath(mount_point.strip("/"), path, True)]
    named = _path_below_mount(client, path)
    default = _path_below_mount(client, f"{DEFAULT_MOUNT}/{path}") or _SecretPath(DEFAULT_MOUNT, path, True)
    return [named, default] if named else [default]


def _path_below_mount(client: Client, path: str) -> _SecretPath | None:
    """The path below its mount, found as Vault's command line does; None if no mount is visible."""
    from hvac.exceptions import Forbidden, InvalidPath, InvalidRequest, Unauthorized

    try:
        answer = client.adapter.get(url=f"/v1/sys/internal/ui/mounts/{quote(path)}")
    except (Forbidden, InvalidPath, InvalidRequest, Unauthorized):
        return None
    data = _secret_data(answer, client)
    mount = str(data.get("path", "")).strip("/")
    rest = path[len(mount) :].strip("/")
    if not mount or not rest:
        return None
    return _SecretPath(mount, rest, (data.get("options") or {}).get("version") == "2")


def _read_path(client: Client, place: _SecretPath) -> Mapping[str, Any]:
    from hvac.exceptions import InvalidPath

    if place.versioned:
        kv = client.secrets.kv.v2
        answer = kv.read_secret_version(
            path=place.path, mount_point=place.mount, raise_on_deleted_version=True
        )
        data = _secret_data(answer, client).get("data")
    else:
        answer = client.read(quote(str(place)))
        data = None if answer is None else _secret_data(answer, client)
    if not isinstance(data, Mapping):
        raise InvalidPath
    return data


def _secret_data(answer: Any, client: Client) -> Mapping[str, Any]:
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, Mapping):
        raise CannotConnect(
            f"what answers at {client.url} is not Vault",
            next_step="check VAULT_ADDR; a proxy in between may answer for it",
        )
    return data


def _open_client() -> Client:
    """A client for the server at VAULT_ADDR, logged in with the environment's credentials."""
    import hvac

    env = os.environ
    address = env.get("VAULT_ADDR")
    if not address:
        raise ConfigError(
            "${vault:…}: which Vault? VAULT_ADDR is not set",
            next_step="export VAULT_ADDR=https://vault.example.com:8200",
        )
    client = hvac.Client(
        url=address,
        token=env.get("VAULT_TOKEN", ""),
        timeout=(CONNECT_SECONDS, READ_SECONDS),
        namespace=env.get("VAULT_NAMESPACE"),
        verify=env.get("VAULT_CACERT") or env.get("VAULT_CAPATH") or True,
    )
    try:
        _log_in(client, env)
    except FlowError:
        raise
    except Exception as error:
        _explain(error, client)
    return client


def _log_in(client: Client, env: Mapping[str, str]) -> None:
    from hvac.exceptions import Forbidden, InvalidRequest, Unauthorized

    if client.token:
        return
    mount = env.get("VAULT_AUTH_MOUNT")
    if env.get("VAULT_ROLE_ID"):
        means = "the role of VAULT_ROLE_ID and VAULT_SECRET_ID"
        given = {"role_id": env["VAULT_ROLE_ID"], "secret_id": env.get("VAULT_SECRET_ID")}
        login, mount = client.auth.approle.login, mount or "approle"
    elif env.get("VAULT_K8S_ROLE"):
        means = f"the service account of this pod for the role {env['VAULT_K8S_ROLE']!r}"
        given = {"role": env["VAULT_K8S_ROLE"], "jwt": _service_account()}
        login, mount = client.auth.kubernetes.login, mount or "kubernetes"
    else:
        client.token = _token_file(env)
        return
    try:
        login(**given, mount_point=mount)
    except (Forbidden, InvalidRequest, Unauthorized) as error:
        raise ConfigError(
            f"Vault at {client.url} does not take {means}: {_error_text(error)}",
            next_step=f"see whether it is the right one for auth/{mount}, and has not ended",
        ) from None


def _token_file(env: Mapping[str, str]) -> str:
    path = Path(env.get("HOME") or Path.home()) / ".vault-token"
    try:
        token = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        token = ""
    if not token:
        raise ConfigError(
            f"no login for Vault: neither VAULT_TOKEN, VAULT_ROLE_ID nor VAULT_K8S_ROLE is set, "
            f"and there is no {path}",
            next_step="run  vault login,  or set one of these",
        )
    return token


def _service_account() -> str:
    try:
        return SERVICE_ACCOUNT.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"VAULT_K8S_ROLE is set, but {SERVICE_ACCOUNT} cannot be read: {error.strerror}",
            next_step="it is there inside a Kubernetes pod; elsewhere use VAULT_TOKEN or VAULT_ROLE_ID",
        ) from None


def _refusal_error(client: Client, place: _SecretPath) -> ConfigError:
    """The error for a forbidden request: an invalid token, or a policy. A token look-up shows which."""
    from hvac.exceptions import Forbidden, Unauthorized

    try:
        client.auth.token.lookup_self()
    except (Forbidden, Unauthorized):
        return ConfigError(
            f"Vault at {client.url} does not take our login: it is wrong, or has ended",
            next_step="log in again:  vault login,  or set another VAULT_TOKEN",
        )
    return ConfigError(
        f"Vault at {client.url} does not let us read {place}",
        next_step=f'a policy that allows it has  path "{place.policy_path}" {{ capabilities = ["read"] }}',
    )


def _explain(error: Exception, client: Client) -> NoReturn:
    """Turn an error of the libraries into one that a user understands."""
    import hvac.exceptions
    import requests

    at = f"Vault at {client.url}"
    if isinstance(error, hvac.exceptions.VaultDown):
        what = f"{at} is sealed, or not ready"
        raise CannotConnect(what, next_step="vault status  shows why;  vault operator unseal") from None
    if isinstance(error, hvac.exceptions.VaultError):
        raise CannotConnect(f"{at} failed: {_error_text(error)}", next_step="vault status") from None
    if isinstance(error, requests.exceptions.SSLError):
        raise CannotConnect(
            f"{at} shows a certificate that is not trusted: {error}",
            next_step="set VAULT_CACERT to the file of its authority",
        ) from None
    if isinstance(error, requests.exceptions.Timeout):
        raise CannotConnect(f"{at} does not answer", next_step="vault status") from None
    if isinstance(error, requests.exceptions.ConnectionError):
        raise CannotConnect(f"{at} cannot be reached", next_step="check VAULT_ADDR;  vault status") from None
    if isinstance(error, (requests.exceptions.RequestException, OSError)):
        raise ConfigError(f"{at} cannot be read: {error}", next_step="check VAULT_ADDR") from None
    raise error


def _error_text(error: Exception) -> str:
    return ", ".join(map(str, getattr(error, "errors", None) or ())) or str(error) or type(error).__name__
