"""Alerts through Apprise: Teams, Discord, Telegram, Opsgenie and a hundred more, by Apprise's own URLs."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.observe.alerts.alerter import Alerter, AlertNotSent, require_texts
from ematix_flow.observe.alerts.event import AlertEvent
from ematix_flow.observe.alerts.http_post import is_local
from ematix_probe.redaction import remember_secret

_NEVER_SECURE = ("growl", "rsyslog")  # these services have no encrypted form
INSTALL = 'pip install "ematix-flow-spark[alerts]"'


class AppriseAlerter(Alerter):
    """Sends alerts to one URL of Apprise. Messages name the service and show nothing else of the URL.

    As for ``webhook://``, unencrypted connections and unchecked certificates are refused, except to this
    machine or with ``insecure``. Redirects are not followed.
    """

    def __init__(self, url: str, *, insecure: bool = False) -> None:
        require_texts("AppriseAlerter", url=url)
        scheme = url.partition("://")[0]
        if not is_installed():
            raise ConfigError(
                f"alerts by {scheme}:// are sent with Apprise, which is missing", next_step=INSTALL
            )
        remember_secret(url)
        remember_secret(url.partition("://")[2])
        service = _service(url)
        if service is None:
            raise ConfigError(
                f"Apprise does not understand the alerter {scheme}://…",
                next_step=f"look at what it takes for {scheme}:// in the documentation of Apprise",
            )
        host = getattr(service, "smtp_host", None) or service.host or ""
        if not insecure and not is_local(host):
            _check_secure(service, scheme)
        service.redirects = False  # also if the URL allows them: a checked URL must not lead elsewhere
        self._service = service
        self.name = f"{service.service_name or scheme} by Apprise"

    def send(self, event: AlertEvent) -> None:
        import apprise

        kind = {"recovered": "success", "test": "info"}.get(event.kind, "failure")
        with apprise.LogCapture(level=apprise.logging.WARNING, fmt="%(message)s") as message:
            sent = self._service.notify(
                title=event.summary[:200], body=event.text, notify_type=apprise.NotifyType(kind)
            )
            words = " ".join(message.getvalue().split())
        if not sent:
            raise AlertNotSent(words[:500] or "the service did not accept it")


def _check_secure(service: Any, scheme: str) -> None:
    """Raise ConfigError if Apprise would send without TLS, or without checking the certificate."""
    plain, secure = _names(service.protocol), _names(service.secure_protocol)
    advice = "append insecure=1 where the network is trusted"
    if scheme in _NEVER_SECURE or (secure and scheme in plain and not service.secure):
        better = f"write {secure[0]}://…, or " if secure else ""
        raise ConfigError(f"the alerter {scheme}://… would be sent unencrypted", next_step=better + advice)
    if not service.verify_certificate:
        raise ConfigError(
            f"the alerter {scheme}://… does not check the receiver's certificate",
            next_step=f"leave out verify=, or {advice}",
        )


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def is_installed() -> bool:
    return importlib.util.find_spec("apprise") is not None


def known_schemes() -> frozenset[str]:
    """The schemes that Apprise has a service for; none when it is not installed."""
    return frozenset(_load_apprise().plugins.N_MGR.schemas()) if is_installed() else frozenset()


def _service(url: str) -> Any:
    apprise = _load_apprise()
    with apprise.LogCapture(level=apprise.logging.WARNING):
        return apprise.Apprise.instantiate(url)


def _load_apprise() -> Any:
    """Apprise with all its services, which import what Python deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import apprise

        apprise.plugins.N_MGR.load_modules()
    return apprise
