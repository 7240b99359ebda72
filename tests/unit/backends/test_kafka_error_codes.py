"""Every error code of Kafka and librdkafka: which pass by themselves, and that those are waited for."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ematix_flow.backends.kafka import cluster as cluster_module
from ematix_flow.backends.kafka.cluster import KafkaCluster
from ematix_flow.backends.kafka.error_codes import (
    MISSING,
    OUT_OF_RANGE,
    UNREACHABLE,
    is_transient,
    is_unreachable,
)
from ematix_flow.backends.kafka.offset_ranges import OffsetRange
from ematix_flow.backends.kafka.range_reader import OpenRangeReader, RangeReader, _RangeProgress
from ematix_flow.errors import CannotConnect, FlowError, SourceFailed
from ematix_flow.spec.connections.brokers import KafkaConnection

CODES = {
    name: code
    for name in dir(KafkaError)
    if name.strip("_").isupper() and isinstance(code := getattr(KafkaError, name), int)
}


def names(text: str) -> list[str]:
    return text.split()


# Each code once; after an upgrade of librdkafka, new ones must be added here.
PASSING = names("""
    _TRANSPORT _TIMED_OUT _TIMED_OUT_QUEUE _ALL_BROKERS_DOWN _RESOLVE _FAIL _RETRY _INTR _IN_PROGRESS
    _PREV_IN_PROGRESS _WAIT_CACHE _WAIT_COORD _NODE_UPDATE _UNKNOWN_BROKER _DESTROY_BROKER _OUTDATED
    _ISR_INSUFF _QUEUE_FULL INVALID_MSG LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REQUEST_TIMED_OUT
    BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE STALE_CTRL_EPOCH NETWORK_EXCEPTION
    COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR NOT_ENOUGH_REPLICAS
    NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_CONTROLLER CONCURRENT_TRANSACTIONS KAFKA_STORAGE_ERROR
    REASSIGNMENT_IN_PROGRESS FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND
    FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE
    PREFERRED_LEADER_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE UNSTABLE_OFFSET_COMMIT
    THROTTLING_QUOTA_EXCEEDED UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID UNKNOWN_CONTROLLER_ID
    SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH SHARE_SESSION_LIMIT_REACHED REBOOTSTRAP_REQUIRED
""")
HANDLED_BY_READERS = names("""
    _PARTITION_EOF _UNKNOWN_PARTITION _UNKNOWN_TOPIC UNKNOWN_TOPIC_OR_PART OFFSET_OUT_OF_RANGE
    _AUTO_OFFSET_RESET _LOG_TRUNCATION
""")
LASTING = names("""
    NO_ERROR UNKNOWN _BAD_MSG _BAD_COMPRESSION _DESTROY _CRIT_SYS_RESOURCE _MSG_TIMED_OUT _FS
    _INVALID_ARG _SSL _UNKNOWN_GROUP _EXISTING_SUBSCRIPTION _ASSIGN_PARTITIONS _REVOKE_PARTITIONS
    _CONFLICT _STATE _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED _AUTHENTICATION _NO_OFFSET _UNSUPPORTED_FEATURE
    _KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION _PARTIAL
    _READ_ONLY _NOENT _UNDERFLOW _INVALID_TYPE _PURGE_QUEUE _PURGE_INFLIGHT _FATAL _INCONSISTENT
    _GAPLESS_GUARANTEE _MAX_POLL_EXCEEDED _NOT_CONFIGURED _FENCED _APPLICATION _ASSIGNMENT_LOST _NOOP
    _INVALID_DIFFERENT_RECORD INVALID_MSG_SIZE MSG_SIZE_TOO_LARGE OFFSET_METADATA_TOO_LARGE
    TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE INVALID_REQUIRED_ACKS ILLEGAL_GENERATION
    INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID INVALID_SESSION_TIMEOUT
    REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE TOPIC_AUTHORIZATION_FAILED
    GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM
    ILLEGAL_SASL_STATE UNSUPPORTED_VERSION TOPIC_ALREADY_EXISTS INVALID_PARTITIONS
    INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_REQUEST
    UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER
    DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
    INVALID_TRANSACTION_TIMEOUT TRANSACTION_COORDINATOR_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    SECURITY_DISABLED OPERATION_NOT_ATTEMPTED LOG_DIR_NOT_FOUND SASL_AUTHENTICATION_FAILED
    UNKNOWN_PRODUCER_ID DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND
    DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE
    NON_EMPTY_GROUP GROUP_ID_NOT_FOUND TOPIC_DELETION_DISABLED UNSUPPORTED_COMPRESSION_TYPE
    MEMBER_ID_REQUIRED GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID ELECTION_NOT_NEEDED
    NO_REASSIGNMENT_IN_PROGRESS GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD PRODUCER_FENCED
    RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL INCONSISTENT_VOTER_SET
    INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED PRINCIPAL_DESERIALIZATION_FAILURE FENCED_MEMBER_EPOCH
    UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE
    UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION
    TRANSACTION_ABORTABLE INVALID_RECORD_STATE FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER
    VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH
    STREAMS_TOPOLOGY_FENCED
""")
NOWHERE = KafkaConnection(name="events", bootstrap_servers="127.0.0.1:1")


def test_every_code_is_decided_once() -> None:
    assert sorted([*PASSING, *HANDLED_BY_READERS, *LASTING]) == sorted(CODES)


@pytest.mark.parametrize("name", sorted(CODES))
def test_a_code_passes_by_itself_or_does_not(name: str) -> None:
    assert is_transient(KafkaError(CODES[name])) == (name in PASSING)


def test_what_is_retriable_by_its_flag_passes_and_what_is_fatal_never_does() -> None:
    assert is_transient(KafkaError(KafkaError._STATE, "said so", retriable=True))
    assert not is_transient(KafkaError(KafkaError._TRANSPORT, "said so", fatal=True))


@pytest.fixture(scope="module")
def reader() -> Any:
    opened = OpenRangeReader(
        RangeReader(NOWHERE, {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    )
    yield opened
    opened.close()


class At:
    """An error as a consumer hands it on."""

    def offset(self) -> int:
        return 5


@pytest.mark.parametrize("name", sorted(set(CODES) - {"NO_ERROR"}))
def test_a_reader_waits_for_what_passes_and_raises_what_does_not(reader: OpenRangeReader, name: str) -> None:
    place = _RangeProgress(OffsetRange("t", 0, 5, 9))
    left, error = {place.range.topic_partition: place}, KafkaError(CODES[name])
    if name in LASTING:
        with pytest.raises(SourceFailed, match="t/0"):
            reader._handle_error(error, At(), place, left)
        return
    reader._handle_error(error, At(), place, left)
    assert left and place.suspected_since is not None
    assert place.stalled == (name in PASSING)
    assert place.stuck == (CODES[name] in OUT_OF_RANGE)


def answered(*said: Any) -> Any:
    """A question whose answers come one after another: codes are refusals."""
    left = list(said)

    def ask() -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        each = left.pop(0)
        if isinstance(each, str):
            future.set_result(each)
        else:
            future.set_exception(KafkaException(KafkaError(each)))
        return {"t": future}

    return ask


@pytest.mark.parametrize("name", sorted(set(CODES) - {"NO_ERROR"}))
def test_a_question_is_asked_again_while_its_refusal_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_RETRY_SECONDS", 0)
    code, cluster = CODES[name], KafkaCluster(NOWHERE, seconds=0.1)
    if name in PASSING and code not in UNREACHABLE:
        assert cluster.ask_all(answered(code, code, "well"), "ask") == {"t": "well"}
        return
    with pytest.raises(FlowError) as failure:
        cluster.ask_all(answered(code, "well"), "ask")
    assert isinstance(failure.value, CannotConnect) == is_unreachable(KafkaError(code))


def test_a_question_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_RETRY_SECONDS", 0)
    clock = iter(range(1_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    again = [KafkaError.LEADER_NOT_AVAILABLE] * 100
    with pytest.raises(SourceFailed, match="Leader not available"):
        KafkaCluster(NOWHERE, patience=30.0).ask_all(answered(*again), "ask")


def test_what_is_missing_may_be_left_out() -> None:
    ask = answered(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert KafkaCluster(NOWHERE).ask_all(ask, "ask", left_out=MISSING) == {}
