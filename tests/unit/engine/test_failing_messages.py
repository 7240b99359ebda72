"""The rule that a stored reason of a dead letter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from ematix_flow.backends.messages.base import message_schema
from ematix_flow.engine.streams.failing_messages import find_known_failing, visit_failing_messages
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.state.dead_letters.base import DeadLetter


def batch_of(messages: Sequence[Mapping[str, Any]]) -> IncomingBatch:
    rows = [dict.fromkeys(message_schema().names) | dict(message) for message in messages]
    incoming = IncomingBatch(cast("Any", None))
    incoming._small_batch.append(pa.Table.from_pylist(rows, message_schema()).to_batches())
    return incoming


@pytest.mark.parametrize(
    "rule",
    [
        "positive",
        r"name ~ '^\d+$'",
        """it's "x\"""",
        "token = 'abc' is set",
        "a\nline",
        "nul \x00 and half \ud83d",
        "long " * 3_000,
    ],
)
def test_a_known_message_has_the_rule_that_it_failed(rule: str) -> None:
    incoming = batch_of([{"topic": "t", "partition": "0", "position": str(n)} for n in range(2)])
    failing = {"t/0/1": rule}
    found: list[Mapping[str, Any]] = []
    visit_failing_messages(incoming, failing, found.extend)
    [letter] = [DeadLetter.create("p", "expectation", each["reason"], payload=b"") for each in found]
    letters = {("t", "0", "1"): letter.reason}
    assert find_known_failing(incoming, letters, ["other", rule], "t") == failing
    assert find_known_failing(incoming, letters, ["other"], "t") == {"t/0/1": letter.reason}
