"""Topics as a stream source: Spark's connector plans the batches, and we read their messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from ematix_flow.backends.kafka.cluster import KafkaCluster
from ematix_flow.backends.kafka.consumer_group import PipelineGroup
from ematix_flow.backends.kafka.data_loss import explain_data_loss
from ematix_flow.backends.kafka.failures import commit_refusal
from ematix_flow.backends.kafka.java_settings import spark_options
from ematix_flow.backends.kafka.offset_ranges import OffsetRange, ranges_between, split_ranges
from ematix_flow.backends.kafka.positions import (
    TopicQuery,
    data_lost_error,
    is_requested,
    parse_position,
    position_text,
    recreated_topics,
    starting_offsets,
    topic_ids_in,
    with_topic_ids,
)
from ematix_flow.backends.kafka.range_reader import (
    CONSUMER_SETTINGS,
    OpenRangeReader,
    RangeReader,
    RangeSplit,
)
from ematix_flow.backends.kafka.settings import (
    client_settings,
    group_of,
    librdkafka_options,
    portable_settings,
)
from ematix_flow.backends.kafka.source_options import source_options
from ematix_flow.backends.messages.base import ReadRequest, SparkStreamSource, collect_up_to
from ematix_flow.errors import ConfigError, FlowError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_HEADERS = """
to_json(map_from_entries(transform(
    filter(headers, (h, i) -> NOT exists(slice(headers, i + 2, size(headers)), later -> later.key = h.key)),
    h -> struct(h.key, CAST(h.value AS STRING)))))
"""
_COLUMNS = (
    "value",
    "key",
    "topic",
    "CAST(partition AS STRING) AS partition",
    "CAST(offset AS STRING) AS position",
    "timestamp",
    f"{_HEADERS} AS headers",
)


class KafkaSource(SparkStreamSource):
    """One or more topics, by name or by a pattern.

    Spark's consumers use groups whose names begin with the connection's ``group_id``, so that they need a
    right on that prefix only; they commit nothing. The group itself shows what all targets have committed:
    see `report_committed`. All requests to one source are from one pipeline.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._group = PipelineGroup(cluster)
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._readers: dict[tuple[tuple[tuple[str, str], ...], bool], RangeReader | None] = {}
        self._open_reader: OpenRangeReader | None = None  # of this process, kept open between batches

    def check(self, reading: ReadRequest) -> None:
        self._group_for(reading)
        found = TopicQuery(reading.query).find_topics(self._cluster)
        if found:
            self._cluster.start_offsets([(topic, number) for topic in found for number in found[topic]])
        else:
            _log.warning("no topic matches %r yet; the stream waits for one", reading.query)

    def streaming_frame(self, spark: SparkSession, reading: ReadRequest) -> DataFrame:
        options = self._options(reading)
        # a query with a checkpoint starts there, not at the offsets that its group has committed
        begins = (
            "earliest"
            if reading.has_checkpoint
            else starting_offsets(self._cluster, reading, self._group_for(reading))
        )
        options["startingOffsets"] = begins
        options["failOnDataLoss"] = str(reading.fail_on_data_loss).lower()
        if reading.max_rows is not None:
            options["maxOffsetsPerTrigger"] = str(reading.max_rows)
        return spark.readStream.format("kafka").options(**options).load().selectExpr(*_COLUMNS)

    def stored_messages(self, spark: SparkSession, reading: ReadRequest) -> DataFrame:
        options = {**self._options(reading), "startingOffsets": "earliest", "endingOffsets": "latest"}
        return spark.read.format("kafka").options(**options).load().selectExpr(*_COLUMNS)

    def continues_checkpoint(self, planned: str, remembered: str | None, reading: ReadRequest) -> bool:
        """False when a topic was removed, or was read before and is back: Spark handles neither."""
        known = {topic for topic, _ in parse_position(planned)}
        before = {topic for topic, _ in parse_position(remembered)} if remembered is not None else set()
        if not all(is_requested(reading, topic) for topic in known):
            return False
        if any(is_requested(reading, topic) for topic in before - known):
            return False
        found = TopicQuery(reading.query).find_topics(self._cluster)
        new = [(topic, number) for topic in found if topic not in known for number in found[topic]]
        return not new or not self._group_for(reading).offsets(new)

    def dropped_position(self, position: str, reading: ReadRequest) -> str | None:
        dropped = {
            partition: offset
            for partition, offset in parse_position(position).items()
            if not is_requested(reading, partition[0])
        }
        return with_topic_ids(position_text(dropped), topic_ids_in(position)) if dropped else None

    def with_dropped_position(self, position: str, dropped: str) -> str:
        merged = position_text({**parse_position(dropped), **parse_position(position)})
        return with_topic_ids(merged, {**topic_ids_in(dropped), **topic_ids_in(position)})

    def resource_ids(self, reading: ReadRequest, position: str | None = None) -> Mapping[str, str]:
        if position is None:
            return self._cluster.topic_ids(TopicQuery(reading.query).find_topics(self._cluster))
        return self._cluster.topic_ids(topic for topic, _ in parse_position(position))

    def resource_ids_in(self, position: str) -> Mapping[str, str | None]:
        return topic_ids_in(position)

    def with_resource_ids(self, position: str, ids: Mapping[str, str | None]) -> str:
        return with_topic_ids(position, ids)

    def describe_recreated(
        self, before: Mapping[str, str | None], now: Mapping[str, str], reading: ReadRequest
    ) -> Sequence[str]:
        requested = {topic: known for topic, known in before.items() if is_requested(reading, topic)}
        sentences = list(recreated_topics(requested, now).values())
        if sentences and reading.fail_on_data_loss:
            raise data_lost_error(sentences)
        return sentences

    def count_between(self, before: str, after: str) -> int | None:
        began, ended = parse_position(before), parse_position(after)
        return sum(max(0, ended[each] - began.get(each, 0)) for each in ended)

    def splits(
        self, reading: ReadRequest, before: str, after: str, most: int, *, whole: bool = False
    ) -> Sequence[RangeSplit] | None:
        reader, ranges = self._reader(reading), self._ranges(reading, before, after)
        if reader is None or ranges is None:
            return None
        return [RangeSplit(share, reader) for share in split_ranges(ranges, most, whole=whole)]

    def read_small_batch(
        self, reading: ReadRequest, before: str, after: str, most: int
    ) -> list[pa.RecordBatch] | None:
        reader, ranges = self._reader(reading), self._ranges(reading, before, after)
        if reader is None or ranges is None:
            return None
        with self._read_lock:
            opened, self._open_reader = self._open_reader, None
            if opened is not None and opened.reader is not reader:
                opened.close()
                opened = None
            opened = opened or reader.open()
            try:
                with closing(opened.read(ranges)) as batches:
                    found = collect_up_to(batches, most)
            except BaseException:
                opened.close()
                raise
            self._open_reader = opened
        return found

    def _ranges(self, reading: ReadRequest, before: str, after: str) -> list[OffsetRange] | None:
        began, ended = parse_position(before), parse_position(after)
        if any(offset < 0 for offset in (*began.values(), *ended.values())):
            return None
        return ranges_between(began, ended, strict=reading.fail_on_data_loss)

    def _reader(self, reading: ReadRequest) -> RangeReader | None:
        """None when the request has an option that only Spark's client understands."""
        key = (tuple(sorted(reading.options.items())), reading.fail_on_data_loss)
        with self._lock:
            if key not in self._readers:
                self._readers[key] = self._new_reader(reading)
            return self._readers[key]

    def _new_reader(self, reading: ReadRequest) -> RangeReader | None:
        connection, options = self._cluster.connection, librdkafka_options(reading.options)
        if options is None:
            return None
        settings = portable_settings(client_settings(connection, CONSUMER_SETTINGS))
        settings |= {"group.id": group_of(connection), **options}
        reader = RangeReader(connection, settings, reading.fail_on_data_loss)
        if options:
            try:
                reader.open().close()
            except ConfigError:
                return None
        return reader

    def report_committed(self, position: str) -> None:
        """Commit the position to the group, for lag tools; never moves back. A failure is a warning."""
        try:
            self._group.commit(parse_position(position))
        except (FlowError, KafkaException) as error:
            reason = commit_refusal(error.args[0]) if isinstance(error, KafkaException) else str(error)
            _log.warning("the progress of group %r was not committed to Kafka: %s", self._group.name, reason)

    def close(self) -> None:
        with self._read_lock:
            opened, self._open_reader = self._open_reader, None
            if opened is not None:
                opened.close()
        self._group.close()
        self._cluster.close()

    def explain_failure(self, reading: ReadRequest, text: str) -> FlowError | None:
        return explain_data_loss(text)

    def lag(self, position: str) -> Mapping[str, int]:
        """The number of messages after a position, by ``topic/partition``."""
        wanted = parse_position(position)
        ends = self._cluster.end_offsets(wanted)
        return {f"{topic}/{n}": max(0, ends[topic, n] - wanted[topic, n]) for topic, n in sorted(wanted)}

    def _group_for(self, reading: ReadRequest) -> PipelineGroup:
        """The group of the pipeline that reads, the same for all queries of a stream."""
        with self._lock:
            if self._group.pipeline != reading.pipeline:
                self._group = PipelineGroup(self._cluster, reading.pipeline)
            return self._group

    def _options(self, reading: ReadRequest) -> dict[str, str]:
        name, topics = TopicQuery(reading.query).spark_option()
        return {
            "groupIdPrefix": group_of(self._cluster.connection),
            "kafka.isolation.level": "read_committed",
            # a task knows its end offset, so it need not wait half a second for more
            "kafka.fetch.max.wait.ms": "20",
            **spark_options(self._cluster.connection),
            **source_options(reading.options),
            name: topics,
            "includeHeaders": "true",
        }
