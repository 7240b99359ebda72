"""Alerts by e-mail over SMTP: STARTTLS by default, TLS from the start on port 465 or if the URL says so."""

from __future__ import annotations

import base64
import smtplib
import socket
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid

from ematix_flow.errors import ConfigError
from ematix_flow.observe.alerts.alerter import Alerter, AlertNotSent, require_texts
from ematix_flow.observe.alerts.event import AlertEvent
from ematix_flow.observe.alerts.http_post import is_local
from ematix_probe.redaction import mask, remember_secret

_SECONDS = 3.0  # for one answer of the server


class EmailAlerter(Alerter):
    """Sends one message to all addresses."""

    def __init__(
        self,
        host: str,
        *,
        to: Sequence[str],
        port: int | None = None,
        sender: str | None = None,
        user: str | None = None,
        password: str | None = None,
        starttls: bool = True,
        implicit_tls: bool = False,
        insecure: bool = False,
    ) -> None:
        named = {"sender": sender, "user": user, "password": password}
        given = {option: value for option, value in named.items() if value is not None}
        require_texts("EmailAlerter", host=host, **given)
        addresses: object = to
        if not isinstance(addresses, list | tuple) or not all(isinstance(each, str) for each in addresses):
            step = 'write to=["a@example.com"]'
            raise ConfigError("EmailAlerter(to=…) takes a list of addresses", next_step=step)
        self._host, self._to = host, tuple(to)
        self._port = port or (465 if implicit_tls else 587 if starttls else 25)
        self._user, self._password = user, password
        self._implicit_tls = implicit_tls or self._port == 465
        self._starttls = starttls and not self._implicit_tls
        self._from = sender or (user if user and "@" in user else f"ematix-flow@{socket.gethostname()}")
        self.name = f"email by {host}"
        for address in (*self._to, self._from):
            if "@" not in address or any(mark in address for mark in " ,;<>\r\n"):
                raise ConfigError(
                    f"{address!r} is not an e-mail address", next_step="write to=a@example.com,b@…"
                )
        if not self._to:
            raise ConfigError(f"the alerter email://{host} names no recipient", next_step="append ?to=…")
        if password is not None:
            remember_secret(password)
            for sent in (password, f"\0{user}\0{password}"):  # a server may repeat what it was sent
                remember_secret(base64.b64encode(sent.encode()).decode())
            if not self._starttls and not self._implicit_tls and not insecure and not is_local(host):
                raise ConfigError(
                    f"the alerter email://{host} would send its password unencrypted",
                    next_step="leave out starttls=0, or append insecure=1 where the network is trusted",
                )

    def send(self, event: AlertEvent) -> None:
        try:
            with self._connect() as server:
                if self._user is not None:
                    server.login(self._user, self._password or "")
                refused = server.send_message(self._message(event), self._from, self._to)
        except (OSError, smtplib.SMTPException) as error:
            raise AlertNotSent(mask(self._error_text(error))) from error
        if refused:
            raise AlertNotSent(f"the server refuses {', '.join(sorted(refused))}")

    def _connect(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if self._implicit_tls:
            return smtplib.SMTP_SSL(self._host, self._port, timeout=_SECONDS, context=context)
        server = smtplib.SMTP(self._host, self._port, timeout=_SECONDS)
        if self._starttls:
            try:
                server.starttls(context=context)
            except BaseException:
                server.close()
                raise
        return server

    def _message(self, event: AlertEvent) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = f"[ematix-flow] {event.summary}"[:200]
        message["From"] = self._from
        message["To"] = ", ".join(self._to)
        message["Date"] = format_datetime(event.timestamp)
        message["Message-ID"] = make_msgid(event.id, domain="ematix-flow.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(event.text + "\n")
        return message

    def _error_text(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            plain = (
                ""
                if self._implicit_tls
                else ". If the server expects TLS from the start, write email+smtps://…"
            )
            return f"no answer in time{plain}"
        if isinstance(error, ssl.SSLCertVerificationError):
            own = "add your own certificate authority to the file that SSL_CERT_FILE names"
            return f"its certificate cannot be trusted: {error.verify_message}; {own}"
        if isinstance(error, ssl.SSLError) and self._implicit_tls:
            return f"it does not use TLS from the start ({error.reason}). If it has STARTTLS, write email://…"
        if isinstance(error, smtplib.SMTPResponseException):
            answer = error.smtp_error
            words = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
            return f"it answers {error.smtp_code} {words}"
        if isinstance(error, smtplib.SMTPNotSupportedError) and "STARTTLS" in str(error):
            return f"{error} To send without it, append starttls=0"
        return f"{type(error).__name__}: {error}"
