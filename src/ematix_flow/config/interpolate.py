"""Replaces ``${VAR}``, ``${VAR:-default}`` and ``${prefix:reference}`` when a value is used.

Owns the table of resolvers. A value that was read from a secret store is remembered by
`ematix_probe.redaction`, so that no later message shows it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import unquote

from ematix_flow.config.secret_stores.aws import AWSSecretsManagerResolver
from ematix_flow.config.secret_stores.gcp import GCPSecretManagerResolver
from ematix_flow.config.secret_stores.vault import VaultResolver
from ematix_flow.errors import ConfigError, FlowError, MissingSecret, closest_name, did_you_mean
from ematix_flow.spec.connections.base import Connection, DriverProperties
from ematix_flow.spec.connections.references import (
    REFERENCE,
    ExpandedText,
    has_reference,
    holds_secret,
    split_default,
)
from ematix_flow.spec.connections.urls import is_conninfo, parse_conninfo, split_url
from ematix_flow.spec.location import SourceLocation, TableLocation
from ematix_probe.redaction import MASK, remember_secret

C = TypeVar("C", bound=Connection)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PREFIXED = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.+)", re.DOTALL)
# fields of a stored secret that are not secret themselves: masking them would make messages unreadable
_PUBLIC_FIELDS = frozenset(
    {"user", "username", "host", "hostname", "port", "database", "dbname", "db", "schema", "engine", "region"}
)


@runtime_checkable
class SecretResolver(Protocol):
    """Returns the value for ``${prefix:reference}``; raises MissingSecret when there is none."""

    def resolve(self, reference: str) -> str: ...


class EnvResolver:
    """Resolves ``${env:VAR}`` from the environment, as ``${VAR}`` is."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = env

    def resolve(self, reference: str) -> str:
        value = (os.environ if self._env is None else self._env).get(reference)
        if value is None:
            raise _unset_variable_error(reference)
        return value


_BUILT_IN: Mapping[str, SecretResolver] = {
    "env": EnvResolver(),
    "vault": VaultResolver(),
    "aws": AWSSecretsManagerResolver(),
    "gcp": GCPSecretManagerResolver(),
}
_resolvers = dict(_BUILT_IN)
_lock = threading.Lock()


def register_resolver(prefix: str, resolver: SecretResolver) -> None:
    """Make ``resolver`` answer ``${prefix:…}``. It replaces an earlier resolver of the prefix."""
    if not _PREFIXED.fullmatch(f"{prefix}:x"):
        raise ConfigError(f"{prefix!r} is not a prefix: use letters, digits, '_' and '-', a letter first")
    if not isinstance(resolver, SecretResolver):
        raise ConfigError(f"the resolver for {prefix!r} has no method resolve(reference)")
    with _lock:
        _resolvers[prefix] = resolver


def unregister_resolver(prefix: str) -> None:
    """Remove the resolver of a prefix. A built-in resolver of the prefix answers again."""
    with _lock:
        _resolvers.pop(prefix, None)
        if prefix in _BUILT_IN:
            _resolvers[prefix] = _BUILT_IN[prefix]


def expand(value: str, *, env: Mapping[str, str] | None = None, used_by: str | None = None) -> str:
    """Replace every reference in the text. The replaced values are not searched for references again.

    Raises MissingSecret for an unset variable, an unknown prefix or a missing secret, and CannotConnect if
    a store does not answer. ``used_by`` is the user of the value, for the error.
    """
    if not has_reference(value):
        return value
    variables = os.environ if env is None else env
    try:
        return ExpandedText(REFERENCE.sub(lambda match: _replacement(match[1], variables), value))
    except FlowError as error:
        if used_by:
            error.what = f"{used_by}: {error.what}"
        raise


def reads_environment_only(value: str) -> bool:
    """Whether the text holds references, and each is a plain variable."""
    names = [split_default(match[1])[0] for match in REFERENCE.finditer(value)]
    return has_reference(value) and all(map(_VARIABLE.fullmatch, names))


def expand_connection(
    connection: C, *, env: Mapping[str, str] | None = None, where: SourceLocation | None = None
) -> C:
    """The connection ready for use: references replaced, fields checked, secrets remembered for masking.

    ``where`` is the location of its declaration, for errors.
    """
    owner = f"connection {connection.name!r}"
    changes: dict[str, Any] = {}
    about = ""
    try:
        for field in fields(connection):
            about = field.name
            value = getattr(connection, field.name)
            used_by = f"{owner}, field {field.name}"
            if isinstance(value, Connection):
                changes[field.name] = expand_connection(value, env=env)
            elif isinstance(value, DriverProperties):
                changes[field.name] = DriverProperties(
                    {key: expand(v, env=env, used_by=f"{used_by}[{key}]") for key, v in value.items()}
                )
            elif has_reference(value):
                changes[field.name] = expand(value, env=env, used_by=used_by)
        about = ""
        expanded = replace(connection, **changes)
        _refuse_masked(expanded)
    except FlowError as error:
        if where is not None:
            error.where = where.location_of(about) if isinstance(where, TableLocation) else where
        raise
    remember_secrets(expanded)
    return expanded


def remember_secrets(connection: Connection) -> None:
    """Mask the secrets of this connection in every later error and log line.

    A password that equals the user, the database or a similar field (``postgres``, ``guest``) is masked in
    URLs and fields only: masking the bare word would make messages unreadable.
    """
    secrets: set[str] = set()
    public: set[str] = {connection.kind, connection.name}
    for field in fields(connection):
        value = _expand_if_set(getattr(connection, field.name))
        if isinstance(value, Connection):
            remember_secrets(value)
        elif isinstance(value, DriverProperties):
            secrets.update(_expand_if_set(v) for key, v in value.items() if holds_secret(key))
        elif isinstance(value, str) and holds_secret(field.name):
            secrets.add(value)
        elif isinstance(value, str):
            public.add(value)
            _sort_url_parts(value, secrets, public)
    for secret in secrets - public:
        if not has_reference(secret) and secret != MASK:
            remember_secret(secret)


def _expand_if_set(value: Any) -> Any:
    """The text with its references replaced, if all are variables that are set; any other value unchanged."""
    if not isinstance(value, str) or not reads_environment_only(value):
        return value
    try:
        return expand(value)
    except FlowError:  # the command that uses the connection raises the error
        return value


def _sort_url_parts(url: str, secrets: set[str], public: set[str]) -> None:
    if is_conninfo(url):
        try:
            pairs = parse_conninfo(url)
        except ValueError:
            return
        for name, value in pairs.items():
            (secrets if holds_secret(name) else public).add(value)
    elif "://" in url:
        pieces = split_url(url)
        public.update((unquote(pieces.user or ""), unquote(pieces.path.strip("/"))))
        public.update(host for host, _ in pieces.hosts)
        if pieces.password:
            secrets.update((str(pieces.password), unquote(pieces.password)))
        secrets.update(value for name, value in pieces.parameters if holds_secret(name))


def _refuse_masked(connection: Connection) -> None:
    for field in fields(connection):
        value = getattr(connection, field.name)
        masked_url = isinstance(value, str) and "://" in value and split_url(value).password == MASK
        if (holds_secret(field.name) and value == MASK) or masked_url:
            raise ConfigError(
                f"{field.name} of connection {connection.name!r} is masked, so the secret is lost",
                next_step="write the secret as a ${VAR} reference: references are kept, values are masked",
            )


def _replacement(reference: str, env: Mapping[str, str]) -> str:
    name, default = split_default(reference)
    if _VARIABLE.fullmatch(name):
        value = env.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise _unset_variable_error(name)
        return value
    match = _PREFIXED.fullmatch(reference)
    if match is None:
        raise ConfigError(
            "a reference is written ${VARIABLE}, ${VARIABLE:-default} or ${prefix:reference}",
            next_step="put text that contains '${' into an environment variable and refer to that",
        )
    return _resolve(match[1], match[2], env)


def _resolve(prefix: str, reference: str, env: Mapping[str, str]) -> str:
    resolver = _resolvers.get(prefix)
    if resolver is None:
        meant = closest_name(prefix, _resolvers)
        raise MissingSecret(
            f"nothing resolves ${{{prefix}:…}}.{did_you_mean(prefix, _resolvers)}",
            next_step=f"write ${{{meant}:…}}"
            if meant
            else f'call  ematix_flow.secrets.register_resolver("{prefix}", …)  before the run',
        )
    if type(resolver) is EnvResolver and resolver._env is None:
        resolver = EnvResolver(env)
    try:
        value = resolver.resolve(reference)
    except FlowError:
        raise
    except Exception as error:  # a client library's own, of any class
        what = f"${{{prefix}:{reference}}} could not be read: {type(error).__name__}: {error}"
        raise ConfigError(what, next_step=f"check the client given to the resolver of {prefix!r}") from error
    if not isinstance(value, str):
        raise ConfigError(f"the resolver of {prefix!r} gave {type(value).__name__}, not text")
    if prefix != "env":
        _remember_store_value(value, reference.partition("#")[2])
    return value


def _remember_store_value(value: str, field: str) -> None:
    """Mask a value from a secret store. For a JSON object mask each of its values too."""
    if field.lower() in _PUBLIC_FIELDS:
        return
    remember_secret(value)
    if not value.startswith("{"):
        return
    try:
        parts = json.loads(value)
    except json.JSONDecodeError:
        return
    for name, part in parts.items():
        if isinstance(part, str) and name.lower() not in _PUBLIC_FIELDS:
            remember_secret(part)


def _unset_variable_error(name: str) -> MissingSecret:
    return MissingSecret(
        f"the environment variable {name} is not set",
        next_step=f"export {name}=…   or give a default with  ${{{name}:-…}}",
    )
