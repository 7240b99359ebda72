"""The part of a query or of a stream's batch that one Spark task reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Split(Protocol):
    """A part of a query, picklable, read inside a Spark task. It holds no open connection."""

    def read(self) -> Iterator[pa.RecordBatch]: ...
