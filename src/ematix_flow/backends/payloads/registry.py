"""The contract of schema registries: a schema by its id, and the latest schema of a subject.

A registry that is down raises CannotConnect, so that the batch is repeated; an unknown id is a valid answer.
Schemas never change, so known schemas come from a bounded cache.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from ematix_flow.backends.payloads.framing import SchemaId

AVRO, PROTOBUF = "AVRO", "PROTOBUF"
_MAX_CACHED_SCHEMAS = 1_000
_MISSING_SECONDS = 10.0  # a missing schema may be registered shortly after

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class SchemaReference:
    """A schema that another one imports, with the name it is imported by."""

    name: str
    schema: RegisteredSchema


@dataclass(frozen=True)
class RegisteredSchema:
    """A registered schema: its text, its type (AVRO, PROTOBUF or another) and its references.

    ``flaw`` says why the registry cannot return it completely; such a schema is not used.
    """

    id: SchemaId
    text: str
    type: str
    references: tuple[SchemaReference, ...] = ()
    flaw: str = ""


class UnusableSchema(Exception):
    """A registered schema that cannot be used to read or write payloads; the text says why."""


class LruCache(Generic[Key, Value]):
    """A cache of limited size that drops the least recently used entry. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
            return None

    def put(self, key: Key, value: Value) -> Value:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return value

    def forget(self, key: Key) -> None:
        with self._lock:
            self._entries.pop(key, None)


class SchemaRegistry(ABC):
    """One registry. Every call returns in bounded time, or raises CannotConnect."""

    is_glue: bool = False

    def __init__(self) -> None:
        self._schemas: LruCache[SchemaId, RegisteredSchema] = LruCache(_MAX_CACHED_SCHEMAS)
        self._missing: LruCache[SchemaId, tuple[float, RegisteredSchema | None]] = LruCache(
            _MAX_CACHED_SCHEMAS
        )

    def schema(self, schema_id: SchemaId) -> RegisteredSchema | None:
        """The schema with an id, perhaps with a flaw; None when the registry has none."""
        known = self._schemas.get(schema_id)
        if known is not None:
            return known
        missing = self._missing.get(schema_id)
        if missing is not None and time.monotonic() - missing[0] < _MISSING_SECONDS:
            return missing[1]
        found = self._fetch(schema_id)
        if found is None or found.flaw:
            self._missing.put(schema_id, (time.monotonic(), found))
            return found
        return self._schemas.put(schema_id, found)

    @abstractmethod
    def _fetch(self, schema_id: SchemaId) -> RegisteredSchema | None: ...

    @abstractmethod
    def latest_schema(self, subject: str) -> RegisteredSchema | None:
        """The newest schema of a subject, None when there is no such subject."""

    def forget_latest(self) -> None:
        """Drop cached latest schemas, so that the next call asks the registry."""
        return

    @abstractmethod
    def register(self, subject: str, text: str, kind: str) -> SchemaId:
        """Register a schema, and return its id; SchemaMismatch when the registry refuses it."""

    @abstractmethod
    def subject_name(self, topic: str, record: str, strategy: str) -> str:
        """The name of the subject of a topic's values."""
