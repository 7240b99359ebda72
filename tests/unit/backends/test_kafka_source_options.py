"""Which options of Spark's Kafka source a stream takes."""

from __future__ import annotations

import pytest

from ematix_flow.backends.kafka.source_options import source_options
from ematix_flow.errors import DeclarationError


def test_an_option_that_spark_does_not_have_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        DeclarationError, match=r"no option 'maxOffsets'\. Did you mean 'maxOffsetsPerTrigger'"
    ):
        source_options({"maxOffsets": "5"})


def test_an_option_may_be_written_as_spark_does_or_as_we_do() -> None:
    assert source_options({"max_offsets_per_trigger": "5", "MINPARTITIONS": "8"}) == {
        "maxOffsetsPerTrigger": "5",
        "minPartitions": "8",
    }


def test_what_is_the_consumers_goes_to_it_as_it_is() -> None:
    given = {"kafka.fetch.max.bytes": "1", "fetchOffset.numRetries": "3", "kafkaConsumer.pollTimeoutMs": "9"}
    assert source_options(given) == given


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("startingOffsets", "starting="),
        ("starting_offsets", "starting="),
        ("startingTimestamp", "starting="),
        ("failOnDataLoss", "fail_on_data_loss="),
        ("subscribe", "source_query="),
    ],
)
def test_what_the_stream_sets_itself_is_refused_with_the_option_that_says_it(name: str, instead: str) -> None:
    with pytest.raises(DeclarationError, match="set by the stream itself") as refused:
        source_options({name: "x"})
    assert instead in (refused.value.next_step or "")
