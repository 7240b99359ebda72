"""Parses the URL of a metrics or traces sink: its address, its options, and whether it uses TLS."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from ematix_flow.errors import ConfigError, did_you_mean
from ematix_probe.redaction import remember_secret

_YES, _NO = ("1", "true", "yes"), ("0", "false", "no")


@dataclass(frozen=True)
class SinkEndpoint:
    """Where to send. ``is_plaintext`` is without TLS: for this machine, or with ``?insecure=1``."""

    scheme: str
    host: str
    port: int
    path: str
    is_plaintext: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for an HTTP client, without the password."""
        return f"{'http' if self.is_plaintext else 'https'}://{self.address}{self.path}"

    def option(self, name: str, default: str) -> str:
        return dict(self.options).get(name) or default


def parse_sink_url(url: str, what: str, port: int, options: Collection[str] = ()) -> SinkEndpoint:
    """Parse the URL of a sink. Raises ConfigError if it is invalid; ``what`` names its setting."""
    try:
        parts = urlsplit(url)
        host, port_in_url = parts.hostname or "localhost", parts.port
    except ValueError as error:
        raise ConfigError(f"the {what} URL {url!r} is invalid: {error}") from None
    query = parse_qsl(parts.query, keep_blank_values=True)
    allowed = (*options, "insecure")
    for name, _ in query:
        if name not in allowed:
            raise ConfigError(
                f"the {what} URL {url!r} has an option {name!r}.{did_you_mean(name, allowed)}",
                next_step=f"{parts.scheme}:// takes {', '.join(f'?{each}=' for each in allowed)}",
            )
    insecure = dict(query).get("insecure", "").lower()
    if insecure not in ("", *_YES, *_NO):
        raise ConfigError(f"the {what} URL {url!r}: insecure= takes 1 or 0")
    if parts.password:
        remember_secret(unquote(parts.password))
    return SinkEndpoint(
        parts.scheme,
        host,
        port_in_url if port_in_url is not None else port,
        parts.path.rstrip("/"),
        insecure in _YES or (not insecure and is_local(host)),
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        tuple(query),
    )


def is_local(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def unknown_scheme(url: str, what: str, known: Collection[str]) -> ConfigError:
    scheme = url.partition(":")[0]
    return ConfigError(
        f"there is no {what} sink {url!r}.{did_you_mean(scheme, known)}",
        next_step=f"give one of {', '.join(f'{each}://' for each in known)}",
    )


def missing_otel(error: ImportError) -> ConfigError:
    return ConfigError(
        f"OpenTelemetry is not installed: {error}",
        state="nothing was run",
        next_step='pip install "ematix-flow-spark[otel]"',
    )
