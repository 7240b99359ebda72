"""Data loss recognised in the errors of Spark's connector; the texts are real."""

from __future__ import annotations

import pytest

from ematix_flow.backends.kafka.data_loss import explain_data_loss

LOST = (
    "Some data may have been lost because they are not available in Kafka any more;\neither the data was aged"
    " out by Kafka or the topic may have been deleted before all the data in the\ntopic was processed.\n"
    "If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to"
    " false.\nReason: "
)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "Could not read records in offset [3, 6) for topic partition my-topic-0\nwith consumer group g.",
            "my-topic/0: 3 to 5 were deleted",
        ),
        (
            "Partition my-topic-1 offset was changed from 5 to 0.\nThis could be",
            "my-topic/1 ends at 0, before 5",
        ),
        (
            "Starting offset for my-topic-0 was 5 but consumer reset to 9.",
            "my-topic/0: 5 to 8 were deleted",
        ),
        ("Partitions Set(my-topic-1, my-topic-2) have been deleted.", "my-topic/2 no longer exists"),
        (
            "Cannot find initial offsets for partitions Set(t-3). They may have been deleted.",
            "t/3 no longer exists",
        ),
        ("Added partition t-4 starts from 7 instead of 0.", "t/4: 0 to 6 were deleted"),
        ("Something new.", "Something new."),
    ],
)
def test_which_messages_are_gone_and_what_to_do_is_reported(reason: str, told: str) -> None:
    error = explain_data_loss(f"[STREAM_FAILED] Query terminated: {LOST}{reason} SQLSTATE: XXKST")
    assert error is not None
    assert told in error.what
    assert "fail_on_data_loss=False" in str(error.next_step)


def test_a_loss_in_two_errors_is_reported_once() -> None:
    text = f"{LOST}Could not read records in offset [0, 5) for topic partition t-0\nwith consumer group g.\n"
    error = explain_data_loss(text + "Caused by: " + text)
    assert error is not None
    assert error.what.count("t/0") == 1


def test_partitions_that_changed_while_reading_are_worth_another_run() -> None:
    error = explain_data_loss(
        "Some of partitions in Kafka topic(s) have been lost during running query with …"
    )
    assert error is not None
    assert error.next_step == "run it again"


def test_any_other_failure_is_left_to_others() -> None:
    assert explain_data_loss("org.apache.spark.SparkException: Job aborted due to stage failure") is None
