"""What a row of a batch says about the message that it comes from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ematix_flow.backends.messages.base import message_schema
from ematix_flow.engine.streams.message_names import ARRIVAL, ORIGIN, message_names


def names(*messages: dict[str, Any], **more: list[Any]) -> list[str]:
    schema = message_schema()
    listed = [{name: message.get(name) for name in schema.names} for message in messages]
    batch = pa.RecordBatch.from_pylist(listed, schema=schema)
    for name, values in more.items():
        batch = pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(values)], names=[*batch.schema.names, name]
        )
    found = message_names(batch).to_pylist()
    assert found == message_names(batch).to_pylist()
    return found


KAFKA = {"topic": "t", "partition": "0", "position": "1", "value": b"a"}


@pytest.mark.parametrize("change", [{"topic": "u"}, {"partition": "1"}, {"position": "2"}])
def test_messages_of_different_places_have_different_names(change: dict[str, str]) -> None:
    assert len(set(names(KAFKA, {**KAFKA, **change}))) == 2


def test_messages_of_one_place_in_different_sources_have_different_names() -> None:
    assert len(set(names(KAFKA, KAFKA, **{ORIGIN: [0, 1]}))) == 2


def test_equal_messages_of_a_spool_are_told_apart_by_their_arrival() -> None:
    assert len(set(names({"value": b"a"}, {"value": b"a"}, **{ARRIVAL: ["s1", "s2"]}))) == 2


def test_messages_without_a_place_are_told_apart_by_their_content() -> None:
    same, other, key = names({"value": b"a"}, {"value": b"b"}, {"value": b"a", "key": b"k"})
    assert len({same, other, key}) == 3
    assert names({"value": b"a"})[0] == same
