"""Whatever Apprise can tell: Teams, Discord, Telegram, Opsgenie and a hundred more, by Apprise's own URLs."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.observe.alerts.alerter import Alerter, AlertNotSent
from ematix_flow.observe.alerts.event import AlertEvent
from ematix_flow.spec.redaction import remember_secret

INSTALL = 'pip install "ematix-flow-spark[alerts]"'


class AppriseAlerter(Alerter):
    """One URL of Apprise. The words about it name the service and nothing else of the URL."""

    def __init__(self, url: str) -> None:
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
        self._service = service
        self.name = f"{service.service_name or scheme} by Apprise"

    def send(self, event: AlertEvent) -> None:
        import apprise

        kind = {"recovered": "success", "test": "info"}.get(event.kind, "failure")
        with apprise.LogCapture(level=apprise.logging.WARNING, fmt="%(message)s") as said:
            sent = self._service.notify(
                title=event.summary[:200], body=event.text, notify_type=apprise.NotifyType(kind)
            )
            words = " ".join(said.getvalue().split())
        if not sent:
            raise AlertNotSent(words[:500] or "the service did not take it")


def is_installed() -> bool:
    return importlib.util.find_spec("apprise") is not None


def known_schemes() -> frozenset[str]:
    """The schemes that Apprise has a service for; none when it is not installed."""
    return frozenset(_loaded().plugins.N_MGR.schemas()) if is_installed() else frozenset()


def _service(url: str) -> Any:
    apprise = _loaded()
    with apprise.LogCapture(level=apprise.logging.WARNING):
        return apprise.Apprise.instantiate(url)


def _loaded() -> Any:
    """Apprise with all its services, which import what Python deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import apprise

        apprise.plugins.N_MGR.load_modules()
    return apprise
