"""What Kafka refuses, in words that help."""

from __future__ import annotations

from confluent_kafka import KafkaError

from ematix_flow.backends.kafka.failures import commit_refusal


def test_a_group_that_another_consumer_is_in_is_reported_with_the_remedy() -> None:
    said = commit_refusal(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
    assert "Unknown member" in said
    assert "another consumer is a member of that group; give this connection its own group_id" in said


def test_another_refusal_is_reported_as_it_is() -> None:
    assert "group_id" not in commit_refusal(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
