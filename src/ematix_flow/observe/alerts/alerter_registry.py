"""The alerters of this process: from its settings, and registered by a program."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ematix_flow.errors import ConfigError
from ematix_flow.observe.alerts.alert_observer import AlertObserver
from ematix_flow.observe.alerts.alerter import Alerter, require_texts
from ematix_flow.observe.alerts.alerter_urls import AlertSubscription, open_alerter
from ematix_flow.state.runlog.base import RunLog

_registered: list[Alerter] = []
_lock = threading.Lock()


def register_alerter(alerter: Alerter) -> None:
    """Send the alerts of all later runs of this process to this alerter, next to the configured ones."""
    if not callable(getattr(alerter, "send", None)):
        raise ConfigError(
            f"{alerter!r} is not an alerter: it has no method send(event)",
            next_step="subclass ematix_flow.alerters.Alerter, or use from_url(…)",
        )
    with _lock:
        _registered.append(alerter)


def active_alerters() -> tuple[Alerter, ...]:
    """Return the registered alerters in the order of their registration."""
    with _lock:
        return tuple(_registered)


def clear_alerters() -> None:
    """Remove all registered alerters."""
    with _lock:
        _registered.clear()


def from_url(url: str) -> Alerter:
    """Return the alerter at a URL. Raises ConfigError if the URL is invalid."""
    require_texts("from_url", url=url)
    return open_alerter(url).alerter


def alert_observers(urls: Sequence[str], run_log: RunLog) -> Iterator[AlertObserver]:
    """Yield one observer for each alerter."""
    for url in dict.fromkeys(urls):
        yield AlertObserver(open_alerter(url), run_log)
    for alerter in active_alerters():
        name = getattr(alerter, "name", type(alerter).__name__)
        yield AlertObserver(AlertSubscription(alerter, f"{name} (registered)"), run_log)
