"""Alerters: the built-in ones, the events they receive, and the function that registers another."""

from __future__ import annotations

from ematix_flow.observe.alerts.alerter import Alerter, AlertNotSent
from ematix_flow.observe.alerts.alerter_registry import (
    active_alerters,
    clear_alerters,
    from_url,
    register_alerter,
)
from ematix_flow.observe.alerts.apprise_services import AppriseAlerter
from ematix_flow.observe.alerts.builtin_alerters import (
    PagerDutyAlerter,
    SlackAlerter,
    StdoutAlerter,
    WebhookAlerter,
)
from ematix_flow.observe.alerts.email_alerter import EmailAlerter
from ematix_flow.observe.alerts.event import AlertEvent

__all__ = [
    "AlertEvent",
    "AlertNotSent",
    "Alerter",
    "AppriseAlerter",
    "EmailAlerter",
    "PagerDutyAlerter",
    "SlackAlerter",
    "StdoutAlerter",
    "WebhookAlerter",
    "active_alerters",
    "clear_alerters",
    "from_url",
    "register_alerter",
]
