"""Answers of the interface: JSON with every text masked, and errors with their parts and an HTTP status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ematix_flow.errors import (
    CannotConnect,
    ConfigError,
    FlowError,
    LoadError,
    UnknownName,
    UsageError,
)
from ematix_flow.web.store_access import StoreAway
from ematix_probe.redaction import mask_all

JSON = "application/json"


@dataclass(frozen=True)
class Answer:
    """What a handler returns if a plain value with the status 200 is not enough."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None  # the JSON, if it is made already

    def to_bytes(self) -> bytes:
        return json_bytes(self.value) if self.body is None else self.body


class Refused(Exception):
    """An error with the HTTP status that it has here."""

    def __init__(self, status: int, error: FlowError) -> None:
        super().__init__(error.what)
        self.status, self.error = status, error


def not_found(error: FlowError) -> Refused:
    return Refused(404, error)


def json_bytes(value: Any) -> bytes:
    """The value as JSON with every text masked."""
    return plain_json_bytes(mask_all(value))


def plain_json_bytes(value: Any) -> bytes:
    """The value as JSON; its texts were masked before."""
    try:
        return orjson.dumps(value, default=str)
    except TypeError:  # a whole number of more than 64 bits, or half a surrogate pair
        return json.dumps(value, default=str).encode("ascii")


def status_of(error: FlowError) -> int:
    """The status of an error that a handler did not expect: the request is wrong, or a store is away."""
    if isinstance(error, UnknownName):
        return 404
    if isinstance(error, UsageError):
        return 400
    if isinstance(error, StoreAway | CannotConnect | ConfigError | LoadError):
        return 503
    return 500


def error_bytes(error: FlowError) -> bytes:
    parts = error.to_json()
    names = ("type", "what", "where", "state", "next")
    return json_bytes({"error": {name: parts[name] for name in names}})
