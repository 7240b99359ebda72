"""The alerters of this process: those of its settings, and those that a program has registered."""

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
    """Tell it of every run that this process starts from now on, beside those of the settings."""
    if not callable(getattr(alerter, "send", None)):
        raise ConfigError(
            f"{alerter!r} is no alerter: it has no method send(event)",
            next_step="subclass ematix_flow.alerters.Alerter, or use from_url(…)",
        )
    with _lock:
        _registered.append(alerter)


def active_alerters() -> tuple[Alerter, ...]:
    """Those that were registered, in that order."""
    with _lock:
        return tuple(_registered)


def clear_alerters() -> None:
    """Forget those that were registered."""
    with _lock:
        _registered.clear()


def from_url(url: str) -> Alerter:
    """The alerter at a URL; ConfigError when it cannot be understood."""
    require_texts("from_url", url=url)
    return open_alerter(url).alerter


def alert_observers(urls: Sequence[str], run_log: RunLog) -> Iterator[AlertObserver]:
    """An observer for each alerter, once."""
    for url in dict.fromkeys(urls):
        yield AlertObserver(open_alerter(url), run_log)
    for alerter in active_alerters():
        name = getattr(alerter, "name", type(alerter).__name__)
        yield AlertObserver(AlertSubscription(alerter, f"{name} (registered)"), run_log)
