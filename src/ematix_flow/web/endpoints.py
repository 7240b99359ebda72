"""One table says which endpoints there are; the server and the OpenAPI document are both made of it.

Owns the value of an endpoint and of its parameters, and reads and checks what a request gives.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ematix_flow.errors import UsageError, did_you_mean
from ematix_flow.web.site import Site

Role = Literal["reader", "operator"]
Kind = Literal["text", "number", "time", "flag"]
LONGEST_VALUE = 1_000  # characters of a parameter
MOST_PER_PAGE = 500


@dataclass(frozen=True)
class Viewer:
    """Who asks: the role of the token; a name and a way, for the audit of actions."""

    role: Role
    name: str
    via: str = "web"


@dataclass(frozen=True)
class Call:
    """A request as a handler sees it: checked parameters by name, and the JSON of its body."""

    arguments: Mapping[str, Any]
    viewer: Viewer
    body: Mapping[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        found = self.arguments.get(name)
        return found if isinstance(found, str) else None

    def required(self, name: str) -> str:
        return str(self.arguments[name])

    def number(self, name: str, default: int) -> int:
        found = self.arguments.get(name)
        return found if isinstance(found, int) else default

    def time(self, name: str) -> dt.datetime | None:
        found = self.arguments.get(name)
        return found if isinstance(found, dt.datetime) else None

    def flag(self, name: str) -> bool:
        return self.arguments.get(name) is True


@dataclass(frozen=True)
class Parameter:
    """A parameter of a path or of a query."""

    name: str
    description: str
    kind: Kind = "text"
    values: tuple[str, ...] = ()
    lowest: int = 0
    highest: int = MOST_PER_PAGE
    default: int | None = None

    def parse(self, text: str) -> Any:
        """Return the value. Raises UsageError if the text is none."""
        if len(text) > LONGEST_VALUE:
            raise self._error(f"has {len(text):,} characters; at most {LONGEST_VALUE:,} are allowed")
        if self.kind == "number":
            if not (text.isascii() and text.isdecimal() and self.lowest <= int(text[:18]) <= self.highest):
                raise self._error(f"takes a number from {self.lowest} to {self.highest}, not {text!r}")
            return int(text)
        if self.kind == "time":
            return self._parse_time(text)
        if self.kind == "flag":
            if text not in ("true", "false"):
                raise self._error(f"takes true or false, not {text!r}")
            return text == "true"
        if self.values and text not in self.values:
            raise self._error(f"takes {', '.join(self.values)}, not {text!r}")
        return text

    def _parse_time(self, text: str) -> dt.datetime:
        try:
            found = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            raise self._error(f"takes a time such as 2026-01-31T12:00:00Z, not {text!r}") from None
        return found if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)

    def _error(self, text: str) -> UsageError:
        step = "GET /api/v1/openapi.json  says what each parameter takes"
        return UsageError(f"the parameter {self.name} {text}", next_step=step)

    def to_openapi(self, *, in_path: bool) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "maxLength": LONGEST_VALUE}
        if self.kind == "number":
            schema = {"type": "integer", "minimum": self.lowest, "maximum": self.highest}
            schema |= {} if self.default is None else {"default": self.default}
        elif self.kind == "time":
            schema = {"type": "string", "format": "date-time"}
        elif self.kind == "flag":
            schema = {"type": "boolean"}
        elif self.values:
            schema = {"type": "string", "enum": list(self.values)}
        return {
            "name": self.name,
            "in": "path" if in_path else "query",
            "required": in_path,
            "description": self.description,
            "schema": schema,
        }


LIMIT = Parameter("limit", "At most so many items.", "number", lowest=1, default=50)
AFTER = Parameter("after", "The value of next of the page before.")

Handler = Callable[[Site, Call], Any]
ReadSubject = Callable[[Site, Call], str]


@dataclass(frozen=True)
class Endpoint:
    """One route: its handler, who may call it, and what the document says of it."""

    method: Literal["GET", "POST", "DELETE"]
    path: str  # below the base, with {name} for a parameter
    summary: str
    answer: str | None  # the name of the answer's schema; "" for any object; None: the answer has no body
    handler: Handler | str  # a name: the application itself answers
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None  # the name of the body's schema
    role: Role | None = "reader"  # None: no token is needed
    refusals: tuple[int, ...] = ()
    is_direct: bool = False  # called without a thread: it neither blocks nor computes
    is_slow: bool = False  # it waits for other systems than the store: few run at a time
    subject: ReadSubject | None = None  # requests for the same one at a time share one answer
    answers: tuple[int, ...] = (200,)
    media_type: str = "application/json"

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    def read_arguments(self, path: Mapping[str, str], query: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return the checked parameters. Raises UsageError for unknown, repeated or wrong ones."""
        known = {each.name: each for each in self.parameters}
        found: dict[str, Any] = {name: known[name].parse(value) for name, value in path.items()}
        for name, value in query:
            if name not in known or name in self.path_names:
                raise UsageError(
                    f"there is no parameter {name[:100]!r}.{did_you_mean(name[:100], known)}",
                    next_step="GET /api/v1/openapi.json  lists the parameters",
                )
            if name in found:
                raise UsageError(f"the parameter {name} is given twice", next_step="give it once")
            if value:
                found[name] = known[name].parse(value)
        return found
