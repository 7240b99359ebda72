"""Opens alerters from URLs. A URL is checked before anything runs; messages show only its host."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from ematix_flow.config.interpolate import expand
from ematix_flow.errors import ConfigError, closest_name, did_you_mean
from ematix_flow.observe.alerts.alerter import Alerter
from ematix_flow.observe.alerts.apprise_services import INSTALL, AppriseAlerter, is_installed, known_schemes
from ematix_flow.observe.alerts.builtin_alerters import (
    PAGERDUTY_URL,
    PagerDutyAlerter,
    SlackAlerter,
    StdoutAlerter,
    WebhookAlerter,
)
from ematix_flow.observe.alerts.email_alerter import EmailAlerter
from ematix_flow.observe.alerts.event import KINDS
from ematix_flow.spec.connections.references import REFERENCE
from ematix_flow.spec.durations import try_parse_duration
from ematix_probe.redaction import remember_secret

REMIND_AFTER = dt.timedelta(hours=24)
_APPRISE = "apprise+"
_WITH_HOST = ("slack", "https", "http", "email", "email+smtps", "webhook", "webhook+https", "webhook+http")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


@dataclass(frozen=True)
class AlertSubscription:
    """An alerter, the kinds of alerts it gets, and how often a lasting failure is repeated (None: once).

    ``key`` identifies it in the records of sent alerts.
    """

    alerter: Alerter
    key: str
    remind: dt.timedelta | None = REMIND_AFTER
    kinds: frozenset[str] = frozenset(KINDS)


def open_alerter(url: str) -> AlertSubscription:
    """Open the alerter at a URL and replace its ``${…}`` references. Makes no connection."""
    parsed = _AlerterUrl(_expand_references(url))
    remind, kinds = parsed.take_remind(), parsed.take_kinds()
    opened = _OPENERS.get(parsed.scheme, _open_apprise)(parsed)
    # of the URL as given: the key stays the same if a referenced secret changes
    key = f"{opened.name} {hashlib.sha256(url.encode()).hexdigest()[:8]}"
    return AlertSubscription(opened, key, remind, kinds)


def _expand_references(url: str) -> str:
    """Replace references and quote their values for their place in the URL.

    A URL that consists of one reference is replaced by its value.
    """
    url = url.strip()
    if REFERENCE.fullmatch(url):
        found = str(expand(url, used_by="an alerter")).strip()
        remember_secret(found)
        return found
    hidden = REFERENCE.sub(lambda match: "x" * len(match[0]), url)
    start = hidden.find("://") + 3
    path = min((at for at in (hidden.find(mark, start) for mark in "/?#") if at >= 0), default=len(url))

    def value(match: re.Match[str]) -> str:
        return quote(expand(match[0], used_by="an alerter"), safe="" if match.start() < path else "/")

    return REFERENCE.sub(value, url)


class _AlerterUrl:
    """The parts of an alerter's URL. Options are taken out one by one; those left over are unknown."""

    def __init__(self, text: str) -> None:
        found = _SCHEME.fullmatch(text)
        if found is None or re.search(r"\s", text):
            wrong = "has no scheme" if found is None else "has blanks in it"
            raise ConfigError(
                f"an alerter is a URL such as scheme://…, and one of them {wrong}",  # it may be a secret
                next_step="write stdout://, slack://hooks.slack.com/services/…, email://host?to=…",
            )
        self.scheme = found[1].lower()
        before, _, query = found[2].partition("?")
        self.place = before
        self._query = [part for part in query.split("&") if part]

    @property
    def masked(self) -> str:
        """The URL as it may be shown: the host, if there is one, and nothing that follows."""
        host = self.place.rpartition("@")[2].partition("/")[0]
        is_host = self.scheme in _WITH_HOST and ("." in host or host.startswith("localhost"))
        return f"{self.scheme}://{host}/…" if is_host else f"{self.scheme}://…"

    def take_option(self, name: str) -> str | None:
        """Take an option out and return its value; None if it is not given."""
        values = [part for part in self._query if unquote_plus(part.partition("=")[0]) == name]
        if not values:
            return None
        if len(values) > 1:
            raise self.url_error(f"gives {name}= twice")
        self._query.remove(values[0])
        return unquote(values[0].partition("=")[2])

    def take_flag(self, name: str, default: bool) -> bool:
        value = self.take_option(name)
        if value not in (None, "0", "1", "true", "false"):
            raise self.url_error(f"has {name}={value!r}", f"write {name}=0 or {name}=1")
        return default if value is None else value in ("1", "true")

    def take_remind(self) -> dt.timedelta | None:
        value = self.take_option("remind")
        if value is None or value == "never":
            return REMIND_AFTER if value is None else None
        found = try_parse_duration(value)
        if not found:
            raise self.url_error(f"has remind={value!r}", "write remind=6h, 1d or never")
        return found

    def take_kinds(self) -> frozenset[str]:
        value = self.take_option("on")
        if value is None:
            return frozenset(KINDS)
        wanted = [kind.strip() for kind in value.split(",") if kind.strip()]
        for kind in wanted:
            if kind not in KINDS:
                raise self.url_error(f"has on={kind!r}.{did_you_mean(kind, KINDS)}")
        return frozenset([*wanted, "test"])

    def http_address(self, scheme: str) -> str:
        """Return the HTTP address, with the remaining query as it was written."""
        query = "&".join(self._query)
        return f"{scheme}://{self.place}{'?' if query else ''}{query}"

    def refuse_other_options(self, *known: str) -> None:
        """Raise an error for remaining options: with a misspelt option alerts could get lost."""
        for part in self._query:
            name = unquote_plus(part.partition("=")[0])
            raise self.url_error(f"has no option {name!r}.{did_you_mean(name, {'remind', 'on', *known})}")

    def url_error(self, what: str, next_step: str | None = None) -> ConfigError:
        return ConfigError(f"the alerter {self.masked} {what}", next_step=next_step)


def _open_stdout(url: _AlerterUrl) -> Alerter:
    if url.place:
        raise url.url_error("only writes to this terminal and takes no address", "write stdout://")
    url.refuse_other_options()
    return StdoutAlerter()


def _open_slack(url: _AlerterUrl) -> Alerter:
    host, _, path = url.place.partition("/")
    if not path or ("." not in host and not host.startswith("localhost")):
        raise url.url_error(
            "is not an incoming webhook of Slack",
            "write slack://hooks.slack.com/services/…; for Apprise's own form write apprise+slack://…",
        )
    insecure = url.take_flag("insecure", False)
    url.refuse_other_options("insecure")
    return SlackAlerter(url.http_address("http" if insecure else "https"), insecure=insecure)


def _open_slack_compatible(url: _AlerterUrl) -> Alerter:
    insecure = url.take_flag("insecure", False)
    return SlackAlerter(url.http_address(url.scheme), insecure=insecure)


def _open_webhook(url: _AlerterUrl) -> Alerter:
    insecure, secret, variable = (
        url.take_flag("insecure", False),
        url.take_option("secret"),
        url.take_option("secret-env"),
    )
    if secret is not None and variable is not None:
        raise url.url_error("has secret= and secret-env=", "give one of them")
    if variable is not None:
        secret = os.environ.get(variable)
        if not secret:
            raise url.url_error(
                f"is signed with the variable {variable}, which is not set", f"export {variable}=…"
            )
    _, _, scheme = url.scheme.partition("+")
    return WebhookAlerter(url.http_address(scheme or "https"), secret=secret, insecure=insecure)


def _open_email(url: _AlerterUrl) -> Alerter:
    try:
        pieces = urlsplit(f"email://{url.place}")
        port = pieces.port
    except ValueError:
        raise url.url_error("has an invalid port", "give one of 1 to 65535") from None
    if not pieces.hostname or port == 0 or pieces.path.strip("/"):
        raise url.url_error("names no mail server", "write email://[user:password@]host[:port]?from=…&to=…")
    listed, sender = url.take_option("to"), url.take_option("from")
    if not listed:
        raise url.url_error("names no recipient", "append ?to=a@example.com,b@example.com")
    starttls, insecure = url.take_flag("starttls", True), url.take_flag("insecure", False)
    url.refuse_other_options("to", "from", "starttls", "insecure")
    return EmailAlerter(
        unquote(pieces.hostname),
        port=port,
        to=[address.strip() for address in listed.split(",") if address.strip()],
        sender=sender,
        user=None if pieces.username is None else unquote(pieces.username),
        password=None if pieces.password is None else unquote(pieces.password),
        starttls=starttls,
        implicit_tls=url.scheme == "email+smtps",
        insecure=insecure,
    )


def _open_pagerduty(url: _AlerterUrl) -> Alerter:
    key = unquote(url.place.strip("/"))
    if not re.fullmatch(r"[A-Za-z0-9_-]+", key):
        raise url.url_error(
            "has no routing key",
            "write pagerduty://ROUTING_KEY?service=…; for Apprise's own form write apprise+pagerduty://…",
        )
    options = {name: url.take_option(name) for name in ("severity", "service", "endpoint")}
    url.refuse_other_options(*options)
    return PagerDutyAlerter(
        key,
        severity=options["severity"] or "error",
        service=options["service"] or "ematix-flow",
        endpoint=options["endpoint"] or PAGERDUTY_URL,
    )


def _open_apprise(url: _AlerterUrl) -> Alerter:
    scheme = url.scheme.removeprefix(_APPRISE)
    if url.scheme == scheme and scheme not in known_schemes():
        missing = "" if is_installed() else f"; what Apprise knows needs  {INSTALL}"
        meant = closest_name(scheme, _OPENERS)
        if meant is None and len(scheme) > 4:  # Apprise has so many that every short word resembles one
            meant = closest_name(scheme, known_schemes())
        hint = f"Did you mean '{meant}'?" if meant else f"There are {', '.join(sorted(_OPENERS))}."
        raise ConfigError(
            f"no alerter is called {scheme}://. {hint}",
            next_step=f"flow alerts test URL  tries one{missing}",
        )
    insecure = url.take_flag("insecure", False)
    return AppriseAlerter(url.http_address(scheme), insecure=insecure)


_OPENERS: dict[str, Callable[[_AlerterUrl], Alerter]] = {
    "stdout": _open_stdout,
    "slack": _open_slack,
    "https": _open_slack_compatible,
    "http": _open_slack_compatible,
    "webhook": _open_webhook,
    "webhook+https": _open_webhook,
    "webhook+http": _open_webhook,
    "email": _open_email,
    "email+smtps": _open_email,
    "pagerduty": _open_pagerduty,
}
