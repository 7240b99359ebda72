"""Finds fields of change events that have no column yet, for ``schema_evolution="evolve"``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ematix_flow.backends.payloads.change_decoder import ChangeDecoder
from ematix_flow.backends.sql.type_widening import widens
from ematix_flow.engine.execution.spark_tasks import ArrowFunction, text_batch
from ematix_flow.engine.streams.decoding import SourceDecoders
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_DDL = "answer string"


def find_new_columns(incoming: IncomingBatch, decoders: SourceDecoders) -> tuple[ColumnSpec, ...]:
    """Columns for the fields of this batch that have none. Reads a batch once more if it is not small."""
    messages = incoming.small_batch()
    if messages is not None:
        return _widest(column for batch in messages for column in _new_columns(batch, decoders))
    answers = incoming.map(_search_task(decoders), _DDL).collect()  # one short text a task
    return _widest(ColumnSpec.from_json(each) for (answer,) in answers for each in json.loads(answer))


def _new_columns(messages: pa.RecordBatch, decoders: SourceDecoders) -> Iterator[ColumnSpec]:
    for decoder, own in decoders.split(messages):
        assert isinstance(decoder, ChangeDecoder)
        yield from decoder.new_columns(own)


def _search_task(decoders: SourceDecoders) -> ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = _widest(column for batch in batches for column in _new_columns(batch, decoders))
        yield text_batch(json.dumps([column.to_json() for column in found]))

    return task


def _widest(columns: Iterable[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    """Each column once, with a type that holds the values of all. Case makes no other name."""
    found: dict[str, ColumnSpec] = {}
    for column in columns:
        other = found.setdefault(column.name.casefold(), column)
        if widens(column.type, other.type):
            continue
        wider = column.type if widens(other.type, column.type) else DataType("text")
        found[column.name.casefold()] = ColumnSpec(other.name, wider, nullable=True)
    return tuple(found.values())
