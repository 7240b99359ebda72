"""What came back for one request or statement, before it is judged."""

from __future__ import annotations

from collections.abc import Sequence

TIMEOUT = "timeout"
NOT_STARTED = "not started"


class Answer:
    """The end of one attempt. ``error`` is the kind of a failure, ``detail`` its words."""

    __slots__ = ("body", "detail", "error", "headers", "rows", "size", "status")

    def __init__(
        self,
        status: int = 0,
        *,
        error: str | None = None,
        detail: str = "",
        size: int = 0,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        rows: Sequence[tuple[object, ...]] = (),
    ) -> None:
        self.status = status
        self.error = error
        self.detail = detail
        self.size = size  # bytes over HTTP, rows of a statement
        self.headers = headers
        self.body = body
        self.rows = rows

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)
