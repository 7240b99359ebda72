"""Alerters that need no library: the terminal, Slack and compatible services, webhooks, PagerDuty."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from ematix_flow.errors import ConfigError
from ematix_flow.observe.alerts.alerter import Alerter, require_texts
from ematix_flow.observe.alerts.event import AlertEvent
from ematix_flow.observe.alerts.http_post import check_address, post_json
from ematix_probe.redaction import remember_secret

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
SEVERITIES = ("critical", "error", "warning", "info")


def host_and_port(url: str) -> str:
    """Return host and port of a URL, which are not secret."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


class StdoutAlerter(Alerter):
    """Writes lines to stderr, so that stdout holds only data."""

    name = "stdout"

    def send(self, event: AlertEvent) -> None:
        lines = [f"[ALERT] {event.timestamp.isoformat(timespec='seconds')} {event.kind}: {event.summary}"]
        lines += [f"  {label}: {value}" for label, value in event.details if label != "at"]
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()


class SlackAlerter(Alerter):
    """Posts ``{"text": …}`` to an incoming webhook of Slack or of a compatible service."""

    def __init__(self, url: str, *, insecure: bool = False) -> None:
        require_texts("SlackAlerter", url=url)
        self._url = _check_and_hide(url, insecure)
        self.name = f"slack at {host_and_port(url)}"

    def send(self, event: AlertEvent) -> None:
        mark = {"recovered": ":white_check_mark:", "test": ":wave:"}.get(event.kind, ":rotating_light:")
        lines = [f"{mark} *{_escape_slack(event.summary)}*"]
        lines += [f"• {label}: {_escape_slack(value)}" for label, value in event.details]
        post_json(self._url, _json_bytes({"text": "\n".join(lines)}))


class WebhookAlerter(Alerter):
    """Posts the event as JSON, signed by the rules of Standard Webhooks if there is a secret."""

    def __init__(self, url: str, *, secret: str | None = None, insecure: bool = False) -> None:
        require_texts("WebhookAlerter", url=url, **({} if secret is None else {"secret": secret}))
        self._url, self._key = (
            _check_and_hide(url, insecure),
            None if secret is None else _signing_key(secret),
        )
        self.name = f"webhook at {host_and_port(url)}"

    def send(self, event: AlertEvent) -> None:
        body, moment = _json_bytes(event.to_json()), str(int(time.time()))
        headers = {"Webhook-Id": event.id, "Webhook-Timestamp": moment}
        if self._key is not None:
            signed = f"{event.id}.{moment}.".encode() + body
            digest = hmac.new(self._key, signed, hashlib.sha256).digest()
            headers["Webhook-Signature"] = f"v1,{base64.b64encode(digest).decode()}"
        post_json(self._url, body, headers)


class PagerDutyAlerter(Alerter):
    """Opens an incident for each pipeline by version 2 of the Events API; a recovery resolves it."""

    name = "pagerduty"

    def __init__(
        self,
        routing_key: str,
        *,
        severity: str = "error",
        service: str = "ematix-flow",
        endpoint: str = PAGERDUTY_URL,
    ) -> None:
        require_texts("PagerDutyAlerter", routing_key=routing_key, service=service, endpoint=endpoint)
        if severity not in SEVERITIES:
            raise ConfigError(f"PagerDuty has no severity {severity!r}", next_step=f"{', '.join(SEVERITIES)}")
        check_address(endpoint, "pagerduty://…")
        remember_secret(routing_key)
        self._routing_key, self._severity, self._service = routing_key, severity, service
        self._endpoint = endpoint

    def send(self, event: AlertEvent) -> None:
        if event.kind == "recovered":
            self._enqueue("resolve", event)
            return
        self._enqueue("trigger", event)
        if event.kind == "test":
            self._enqueue("resolve", event)  # so that the incident needs no manual closing

    def _enqueue(self, action: str, event: AlertEvent) -> None:
        body: dict[str, Any] = {
            "routing_key": self._routing_key,
            "event_action": action,
            "dedup_key": f"{self._service}:{event.pipeline}"[-255:],
        }
        if action == "trigger":
            body["payload"] = {
                "summary": event.summary[:1024],
                "source": event.host,
                "severity": {"gave_up": "critical", "test": "info"}.get(event.kind, self._severity),
                "timestamp": event.timestamp.isoformat(),
                "component": event.pipeline,
                "class": event.kind,
                "custom_details": dict(event.details),
            }
        post_json(self._endpoint, _json_bytes(body))


def _check_and_hide(url: str, insecure: bool) -> str:
    """Check the URL and mask it in all output: everyone who knows it may post there."""
    pieces = urlsplit(url)
    check_address(url, f"{pieces.scheme}://{pieces.hostname or ''}/…", insecure=insecure)
    for secret in (url, pieces.path.strip("/"), pieces.query):
        if len(secret) >= 8:
            remember_secret(secret)
    return url


def _signing_key(secret: str) -> bytes:
    """Return the key: ``whsec_`` and base64 by the standard; any other text is the key itself."""
    remember_secret(secret)
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ConfigError("the webhook's secret begins with whsec_, but base64 does not follow") from None


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _escape_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
