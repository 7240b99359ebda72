"""Makes the requests of an HTTP target: templates filled with a feeder's row, bodies encoded."""

from __future__ import annotations

import json as json_text
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from ematix_probe.load.templates import (
    Row,
    TemplateError,
    check_header,
    render_header,
    render_json,
    render_known,
    render_url,
)

if TYPE_CHECKING:
    from ematix_probe.load.http_target import HttpTarget


@dataclass(frozen=True)
class RenderedRequest:
    """A request that is ready to be sent."""

    method: str
    target: str  # path and query
    headers: tuple[tuple[str, str], ...]  # without Host
    body: bytes = b""


class RequestRenderer:
    """Makes requests of a resolved target: the same one each time, or one for each row of the feeder."""

    def __init__(self, target: HttpTarget) -> None:
        self._target = target
        self._fed = target.feeder is not None
        parts = urlsplit(target.url)
        braces = "{}" if self._fed else ""
        self._path = quote(parts.path or "/", safe=_IN_PATH + braces)
        self._query = quote(parts.query, safe=_IN_QUERY + braces)
        self.constant = None if self._fed else self._render({})

    def render(self, row: Row | None) -> RenderedRequest:
        """The request for a row; TemplateError when the row cannot fill it."""
        if self.constant is not None:
            return self.constant
        return self._render(row or {})

    def _render(self, row: Row) -> RenderedRequest:
        target, fed = self._target, self._fed
        path = render_url(self._path, row) if fed else self._path
        query = render_url(self._query, row) if fed else self._query
        if target.query:
            pairs = [(name, self._text(value, row)) for name, value in target.query]
            query = "&".join(part for part in (query, urlencode(pairs)) if part)
        headers = list(target.fixed_headers)
        headers += [(name, render_header(value, row) if fed else value) for name, value in target.headers]
        body, content_type = self._body(row, fed)
        if content_type and not any(name.lower() == "content-type" for name, _ in headers):
            headers.append(("Content-Type", content_type))
        if target.cookies:
            cookies = "; ".join(f"{name}={self._text(value, row)}" for name, value in target.cookies)
            check_header(cookies)
            headers.append(("Cookie", cookies))
        return RenderedRequest(target.method, f"{path}?{query}" if query else path, tuple(headers), body)

    def _text(self, value: str, row: Row) -> str:
        return render_known(value, row) if self._fed else value

    def _body(self, row: Row, fed: bool) -> tuple[bytes, str | None]:
        target = self._target
        if target.json is not None:
            value = render_json(target.json, row) if fed else target.json
            try:
                return json_text.dumps(
                    value, ensure_ascii=False, allow_nan=False, default=str
                ).encode(), "application/json"
            except ValueError as error:
                raise TemplateError(f"the body is no JSON: {error}") from None
        if target.form is not None:
            pairs = [(name, self._text(value, row)) for name, value in target.form]
            return urlencode(pairs).encode(), "application/x-www-form-urlencoded"
        if isinstance(target.body, str):
            return self._text(target.body, row).encode(), "text/plain; charset=utf-8"
        return target.body or b"", None


_IN_PATH = "/%:@!$&'()*+,;=~-._"
_IN_QUERY = _IN_PATH + "?"
