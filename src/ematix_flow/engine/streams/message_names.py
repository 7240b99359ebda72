"""Names of messages: each row of a batch can carry the message that it comes from.

A name is the place of a message in its source, which is the same each time that a batch is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.messages.base import HEADERS, KEY, PARTITION, POSITION, TOPIC, VALUE
from ematix_flow.backends.payloads.base import DecodedBatch
from ematix_flow.spec.tables import MESSAGE

if TYPE_CHECKING:
    import pyarrow as pa

ORIGIN = "origin"  # the number of the message's source
ARRIVAL = "arrival"  # the order of arrival of messages without positions; sorts as text


def message_names(messages: pa.RecordBatch) -> pa.Array:
    """A name for each message. Messages without a place have the same name if their content is the same."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = messages.schema.names
    wanted = (ORIGIN, ARRIVAL) if ARRIVAL in known else (ORIGIN, TOPIC, PARTITION, POSITION)
    parts = [messages.column(name).cast(pa.string()) for name in wanted if name in known]
    names = pc.binary_join_element_wise(*parts, "/", null_handling="replace", null_replacement="")
    if ARRIVAL in known or not messages.column(POSITION).null_count:
        return names
    contents = messages.select([VALUE, KEY, HEADERS]).to_pylist()
    positions = messages.column(POSITION).to_pylist()
    return pa.array(
        [
            name if position is not None else f"{name}{_digest(content)}"
            for name, position, content in zip(names.to_pylist(), positions, contents, strict=True)
        ],
        pa.string(),
    )


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.blake2b(repr(sorted(content.items())).encode(), digest_size=16).hexdigest()


def with_message_names(messages: pa.RecordBatch, decoded: DecodedBatch) -> DecodedBatch:
    """The decoded rows with a column for the message that each comes from."""
    import pyarrow as pa

    names = message_names(messages).take(decoded.indexes)
    rows = decoded.rows
    named = pa.RecordBatch.from_arrays([*rows.columns, names], names=[*rows.schema.names, MESSAGE])
    return replace(decoded, rows=named)
