"""Which errors of Kafka and librdkafka are transient, so that a retry may succeed.

Transient broker errors are those that Kafka's own clients retry, and some more that a broker gives while it
starts, stops or hands over. Callers retry for `PATIENCE_SECONDS`. A missing topic is not transient, nor is an
offset out of range.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

PATIENCE_SECONDS = 60.0

# No broker answers: queries report it sooner than readers that wait for messages.
UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._FAIL,
    }
)
MISSING = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}
)
OUT_OF_RANGE = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
)
COORDINATOR = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
    }
)
TRANSIENT = (
    UNREACHABLE
    | COORDINATOR
    | {
        # a leader that moves, or is not known to all yet
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REASSIGNMENT_IN_PROGRESS,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        # a broker that starts, stops, is fenced off or has too much to do
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.STALE_BROKER_EPOCH,
        KafkaError.STALE_CTRL_EPOCH,
        KafkaError.NOT_CONTROLLER,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.REBOOTSTRAP_REQUIRED,
        KafkaError.UNKNOWN_CONTROLLER_ID,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        # a session of fetches that the broker has forgotten; the next fetch begins another
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.SHARE_SESSION_NOT_FOUND,
        KafkaError.INVALID_SHARE_SESSION_EPOCH,
        KafkaError.SHARE_SESSION_LIMIT_REACHED,
        KafkaError.INVALID_MSG,  # its checksum is wrong: damaged in transit
        # a transaction that ends at this time
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        # librdkafka retries these itself
        KafkaError._RETRY,
        KafkaError._INTR,
        KafkaError._IN_PROGRESS,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._WAIT_CACHE,
        KafkaError._NODE_UPDATE,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._DESTROY_BROKER,
        KafkaError._OUTDATED,
        KafkaError._ISR_INSUFF,
        KafkaError._QUEUE_FULL,
    }
)


def is_transient(error: KafkaError) -> bool:
    """Whether the same request may succeed later."""
    return not error.fatal() and (error.retriable() or error.code() in TRANSIENT)


def is_unreachable(error: KafkaError) -> bool:
    """Whether the error means that no broker answers."""
    return error.code() in UNREACHABLE
