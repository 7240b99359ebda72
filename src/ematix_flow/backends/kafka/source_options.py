"""Which options of Spark's Kafka source a stream takes by ``source_options=``, and which it sets itself."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.messages.source_options import known_options
from ematix_flow.errors import DeclarationError

_SPARK_OPTIONS = (
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
# Spark prefers a starting timestamp to the offsets that a stream resumes at
_STREAM_OPTIONS = {
    "subscribe": "name the topics in source_query=",
    "subscribePattern": "write the pattern into source_query=, as in  ^orders-.*",
    "assign": "name the topics in source_query=",
    "startingOffsets": "starting= says where a stream begins",
    "startingTimestamp": "starting= takes a time",
    "startingOffsetsByTimestamp": "starting= takes a time",
    "startingOffsetsByTimestampStrategy": "starting= takes a time",
    "endingOffsets": "leave it out: a stream has no end; --once stops at the newest message",
    "endingTimestamp": "leave it out: a stream has no end; --once stops at the newest message",
    "endingOffsetsByTimestamp": "leave it out: a stream has no end; --once stops at the newest message",
    "failOnDataLoss": "set fail_on_data_loss= instead",
    "includeHeaders": "leave it out: the column _headers has the headers",
}


def source_options(given: Mapping[str, str]) -> dict[str, str]:
    """The given options under Spark's names. ``kafka.*`` goes to the consumer unchanged.

    Raises DeclarationError for an option that Spark does not have, or that the stream sets itself.
    """
    consumer = {key: str(value) for key, value in given.items() if key.lower().startswith("kafka.")}
    rest = {key: value for key, value in given.items() if key not in consumer}
    found = known_options(rest, (*_SPARK_OPTIONS, *_STREAM_OPTIONS))
    for name in found:
        if name in _STREAM_OPTIONS:
            raise DeclarationError(
                f"the option {name!r} is set by the stream itself", next_step=_STREAM_OPTIONS[name]
            )
    return {**found, **consumer}
