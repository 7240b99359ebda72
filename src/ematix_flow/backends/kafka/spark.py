"""Topics followed by Spark's own connector, which plans the batches; their messages are read by ours."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from ematix_flow.backends.kafka.cluster import Cluster
from ematix_flow.backends.kafka.failures import not_committed
from ematix_flow.backends.kafka.groups import StreamGroup
from ematix_flow.backends.kafka.losses import lost_data
from ematix_flow.backends.kafka.options import source_options
from ematix_flow.backends.kafka.positions import (
    Topics,
    data_lost,
    ids_in,
    is_asked,
    parse,
    replaced_topics,
    starting,
    text,
    with_ids,
)
from ematix_flow.backends.kafka.ranges import (
    CONSUMER,
    OpenReader,
    Range,
    RangeSplit,
    Reader,
    between,
    shares,
)
from ematix_flow.backends.kafka.settings import (
    carried_over,
    client_settings,
    group_of,
    portable,
    spark_options,
)
from ematix_flow.backends.streams import Reading, SparkStream, taken
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


class KafkaSource(SparkStream):
    """One or more topics, by name or by a pattern.

    Spark's consumers belong to groups whose names begin with the connection's ``group_id``, so that a
    right on that prefix is all they need; they commit nothing. The group itself shows what all targets
    have committed: see `committed`. Readings of one source are of one pipeline.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._group = StreamGroup(cluster)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._readers: dict[tuple[tuple[tuple[str, str], ...], bool], Reader | None] = {}
        self._opened: OpenReader | None = None  # of this process, batch after batch

    def check(self, reading: Reading) -> None:
        self._group_of(reading)
        found = Topics(reading.query).found(self._cluster)
        if found:
            self._cluster.beginnings([(topic, number) for topic in found for number in found[topic]])
        else:
            _log.warning("no topic matches %r yet; the stream waits for one", reading.query)

    def frame(self, spark: SparkSession, reading: Reading) -> DataFrame:
        options = self._options(reading)
        # a query that goes on by its checkpoint begins there, and where its group stands is no concern
        begins = "earliest" if reading.begun else starting(self._cluster, reading, self._group_of(reading))
        options["startingOffsets"] = begins
        options["failOnDataLoss"] = str(reading.fail_on_data_loss).lower()
        if reading.max_rows is not None:
            options["maxOffsetsPerTrigger"] = str(reading.max_rows)
        return spark.readStream.format("kafka").options(**options).load().selectExpr(*_COLUMNS)

    def goes_on(self, planned: str, remembered: str | None, reading: Reading) -> bool:
        """Not when a topic was taken out, or was read before and is back: Spark knows neither."""
        known = {topic for topic, _ in parse(planned)}
        before = {topic for topic, _ in parse(remembered)} if remembered is not None else set()
        if not all(is_asked(reading, topic) for topic in known):
            return False
        if any(is_asked(reading, topic) for topic in before - known):
            return False
        found = Topics(reading.query).found(self._cluster)
        new = [(topic, number) for topic in found if topic not in known for number in found[topic]]
        return not new or not self._group_of(reading).offsets(new)

    def left_out(self, position: str, reading: Reading) -> str | None:
        left = {place: offset for place, offset in parse(position).items() if not is_asked(reading, place[0])}
        return with_ids(text(left), ids_in(position)) if left else None

    def with_left_out(self, position: str, left: str) -> str:
        merged = text({**parse(left), **parse(position)})
        return with_ids(merged, {**ids_in(left), **ids_in(position)})

    def place_ids(self, reading: Reading, position: str | None = None) -> Mapping[str, str]:
        if position is None:
            return self._cluster.topic_ids(Topics(reading.query).found(self._cluster))
        return self._cluster.topic_ids(topic for topic, _ in parse(position))

    def ids_in(self, position: str) -> Mapping[str, str | None]:
        return ids_in(position)

    def with_ids(self, position: str, ids: Mapping[str, str | None]) -> str:
        return with_ids(position, ids)

    def replaced(
        self, before: Mapping[str, str | None], now: Mapping[str, str], reading: Reading
    ) -> Sequence[str]:
        asked = {topic: known for topic, known in before.items() if is_asked(reading, topic)}
        found = list(replaced_topics(asked, now).values())
        if found and reading.fail_on_data_loss:
            raise data_lost(found)
        return found

    def count(self, before: str, after: str) -> int | None:
        began, ended = parse(before), parse(after)
        return sum(max(0, ended[each] - began.get(each, 0)) for each in ended)

    def splits(
        self, reading: Reading, before: str, after: str, most: int, *, whole: bool = False
    ) -> Sequence[RangeSplit] | None:
        reader, ranges = self._reader(reading), self._ranges(reading, before, after)
        if reader is None or ranges is None:
            return None
        return [RangeSplit(share, reader) for share in shares(ranges, most, whole=whole)]

    def few(self, reading: Reading, before: str, after: str, most: int) -> list[pa.RecordBatch] | None:
        reader, ranges = self._reader(reading), self._ranges(reading, before, after)
        if reader is None or ranges is None:
            return None
        with self._reading:
            opened, self._opened = self._opened, None
            if opened is not None and opened.how is not reader:
                opened.close()
                opened = None
            opened = opened or reader.open()
            try:
                with closing(opened.read(ranges)) as batches:
                    found = taken(batches, most)
            except BaseException:
                opened.close()
                raise
            self._opened = opened
        return found

    def _ranges(self, reading: Reading, before: str, after: str) -> list[Range] | None:
        began, ended = parse(before), parse(after)
        if any(offset < 0 for offset in (*began.values(), *ended.values())):
            return None
        return between(began, ended, strict=reading.fail_on_data_loss)

    def _reader(self, reading: Reading) -> Reader | None:
        """None when an option of the reading means something to Spark's client alone."""
        key = (tuple(sorted(reading.options.items())), reading.fail_on_data_loss)
        with self._lock:
            if key not in self._readers:
                self._readers[key] = self._new_reader(reading)
            return self._readers[key]

    def _new_reader(self, reading: Reading) -> Reader | None:
        connection, options = self._cluster.connection, carried_over(reading.options)
        if options is None:
            return None
        settings = portable(client_settings(connection, CONSUMER))
        settings |= {"group.id": group_of(connection), **options}
        reader = Reader(connection, settings, reading.fail_on_data_loss)
        if options:
            try:
                reader.open().close()
            except ConfigError:
                return None
        return reader

    def committed(self, position: str) -> None:
        """Tell the group, for whoever watches its lag; never backwards. A failure is a warning."""
        try:
            self._group.commit(parse(position))
        except (FlowError, KafkaException) as error:
            said = not_committed(error.args[0]) if isinstance(error, KafkaException) else str(error)
            _log.warning("the progress of group %r was not committed to Kafka: %s", self._group.name, said)

    def close(self) -> None:
        with self._reading:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()
        self._group.close()
        self._cluster.close()

    def failure(self, reading: Reading, said: str) -> FlowError | None:
        return lost_data(said)

    def lag(self, position: str) -> Mapping[str, int]:
        """How many messages wait after a position, by ``topic/partition``."""
        wanted = parse(position)
        ends = self._cluster.ends(wanted)
        return {f"{topic}/{n}": max(0, ends[topic, n] - wanted[topic, n]) for topic, n in sorted(wanted)}

    def _group_of(self, reading: Reading) -> StreamGroup:
        """The group of whoever reads, the same for all queries of a stream."""
        with self._lock:
            if self._group.pipeline != reading.pipeline:
                self._group = StreamGroup(self._cluster, reading.pipeline)
            return self._group

    def _options(self, reading: Reading) -> dict[str, str]:
        name, topics = Topics(reading.query).option()
        return {
            "groupIdPrefix": group_of(self._cluster.connection),
            "kafka.isolation.level": "read_committed",
            # a task knows how far it reads: it need not wait half a second for more
            "kafka.fetch.max.wait.ms": "20",
            **spark_options(self._cluster.connection),
            **source_options(reading.options),
            name: topics,
            "includeHeaders": "true",
        }
