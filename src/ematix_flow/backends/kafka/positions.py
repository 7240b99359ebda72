"""Positions in topics: their JSON form in Spark, and where a stream without a position starts."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ematix_flow.backends.kafka.cluster import KafkaCluster, Partition, by_topic
from ematix_flow.backends.kafka.consumer_group import PipelineGroup
from ematix_flow.backends.kafka.failures import create_command
from ematix_flow.backends.messages.base import RESOURCE_IDS, ReadRequest
from ematix_flow.errors import DataLost, SourceFailed, SourceMissing, did_you_mean

_log = logging.getLogger(__name__)
EARLIEST, LATEST = -2, -1  # in Spark's JSON


@dataclass(frozen=True)
class TopicQuery:
    """The topics of a query: names, or with a leading ``^`` a pattern that matches whole names."""

    query: str

    @property
    def is_pattern(self) -> bool:
        return self.query.lstrip().startswith("^")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.strip() for name in self.query.split(",") if name.strip()))

    def spark_option(self) -> tuple[str, str]:
        """The option of Spark's connector that selects these topics."""
        if self.is_pattern:
            return "subscribePattern", self.query.strip()
        return "subscribe", ",".join(self.names)

    def find_topics(self, cluster: KafkaCluster) -> dict[str, list[int]]:
        """The existing topics with their partitions; SourceFailed when a named topic is missing."""
        topics = cluster.topics()
        if self.is_pattern:
            try:
                wanted = re.compile(self.query.strip())
            except re.error as error:
                raise SourceFailed(
                    f"the topic pattern {self.query!r} is invalid: {error}",
                    next_step="it is a regular expression that the whole name matches, as in  ^orders-.*",
                ) from error
            return {name: parts for name, parts in topics.items() if wanted.fullmatch(name)}
        if not self.names:
            raise SourceFailed("a Kafka stream needs a topic", next_step='source_query = "events"')
        for name in self.names:
            if name not in topics:
                visible = [each for each in topics if not each.startswith("__")]
                raise SourceMissing(
                    f"there is no topic {name!r} in the Kafka cluster at "
                    f"{cluster.connection.bootstrap_servers}.{did_you_mean(name, visible)}",
                    next_step=create_command(cluster.connection, name),
                )
        return {name: topics[name] for name in self.names}


def parse_position(position: str) -> dict[Partition, int]:
    """The offsets of Spark's ``{"topic": {"0": 123}}``, without the topic ids that a ledger adds."""
    try:
        read = json.loads(position)
        return {
            (str(topic), int(number)): int(offset)
            for topic, partitions in read.items()
            if topic != RESOURCE_IDS
            for number, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise SourceFailed(
            f"a position in Kafka cannot be read: {position[:200]}",
            next_step='it has the form  {"topic": {"0": 123}}',
        ) from error


def position_text(offsets: Mapping[Partition, int]) -> str:
    """Spark's JSON form of offsets, in a fixed order."""
    topics = by_topic(offsets)
    ordered = {
        topic: {str(number): topics[topic][number] for number in sorted(topics[topic])}
        for topic in sorted(topics)
    }
    return json.dumps(ordered, separators=(",", ":"))


def topic_ids_in(position: str | None) -> dict[str, str | None]:
    """The topic ids in a position; None for a topic on which ledgers disagree."""
    if position is None:
        return {}
    found = json.loads(position).get(RESOURCE_IDS)
    return dict(found) if isinstance(found, dict) else {}


def with_topic_ids(position: str, ids: Mapping[str, str | None]) -> str:
    """A position with the ids of its topics added."""
    offsets = parse_position(position)
    known = {topic: ids[topic] for topic in sorted({topic for topic, _ in offsets}) if topic in ids}
    if not known:
        return position_text(offsets)
    return json.dumps({**json.loads(position_text(offsets)), RESOURCE_IDS: known}, separators=(",", ":"))


def recreated_topics(before: Mapping[str, str | None], now: Mapping[str, str]) -> dict[str, str]:
    """The topics that were deleted and created again, each with a sentence about it."""
    return {
        topic: f"topic {topic!r} was deleted and created again (its id is {now[topic]}, and was "
        f"{known or 'not the same for all targets'})"
        for topic, known in sorted(before.items())
        if topic in now and now[topic] != known
    }


def starting_offsets(cluster: KafkaCluster, reading: ReadRequest, group: PipelineGroup | None = None) -> str:
    """Spark's ``startingOffsets``: ``resume``, else the group's commits, else the requested start.

    A single word where it covers all partitions, so that a partition that appears now cannot contradict it.
    """
    begins = _first_offsets(cluster, reading, group)
    kinds = set(begins.values())
    if not kinds or kinds == {EARLIEST}:
        return "earliest"
    return "latest" if kinds == {LATEST} else position_text(begins)


def seek_offsets(cluster: KafkaCluster, reading: ReadRequest) -> dict[Partition, int]:
    """The same start as offsets that a consumer can seek to."""
    begins = _first_offsets(cluster, reading)
    first = cluster.start_offsets([each for each, offset in begins.items() if offset == EARLIEST])
    last = cluster.end_offsets([each for each, offset in begins.items() if offset == LATEST])
    return {**begins, **first, **last}


def _first_offsets(
    cluster: KafkaCluster, reading: ReadRequest, group: PipelineGroup | None = None
) -> dict[Partition, int]:
    found = TopicQuery(reading.query).find_topics(cluster)
    partitions = [(topic, number) for topic, numbers in found.items() for number in numbers]
    group = group or PipelineGroup(cluster, reading.pipeline)
    known = parse_position(reading.resume) if reading.resume is not None else {}
    known_topics = {topic for topic, _ in known}
    known |= group.offsets([each for each in partitions if each[0] not in known_topics])
    known_topics = {topic for topic, _ in known}
    new = [each for each in partitions if each[0] not in known_topics]  # of topics that were never read
    known_partitions = [each for each in partitions if each[0] in known_topics]
    resumed = _resumed_offsets(cluster, reading, known, known_partitions) if known else {}
    return {**resumed, **_offsets_without_position(cluster, reading, new, group.name)}


def _offsets_without_position(
    cluster: KafkaCluster, reading: ReadRequest, partitions: list[Partition], group: str
) -> dict[Partition, int]:
    """The requested start, for partitions without a position."""
    moment = reading.starting
    if isinstance(moment, dt.datetime):
        offsets = cluster.offsets_at(partitions, int(moment.timestamp() * 1000))
        late = [each for each, offset in offsets.items() if offset < 0]  # no message is newer
        return {**offsets, **cluster.end_offsets(late, committed=False)}
    policy = moment if moment != "earliest" else cluster.connection.auto_offset_reset or "earliest"
    if policy == "error" and partitions:
        raise SourceFailed(
            f"group {group!r} has no position in {reading.query!r}, and auto_offset_reset is 'error'",
            next_step="set auto_offset_reset to earliest or latest for the first run, or commit a position "
            f"with  kafka-consumer-groups --group {group} --reset-offsets",
        )
    if policy not in ("earliest", "latest", "error"):
        raise SourceFailed(f"a stream starts at earliest, at latest or at a time, not at {policy!r}")
    return {each: LATEST if policy == "latest" else EARLIEST for each in partitions}


def _resumed_offsets(
    cluster: KafkaCluster, reading: ReadRequest, wanted: Mapping[Partition, int], partitions: list[Partition]
) -> dict[Partition, int]:
    """Offsets to resume from, for every partition; messages that the broker has deleted are data loss."""
    known = set(partitions)
    missing = sorted(each for each in wanted if each not in known and is_requested(reading, each[0]))
    lost = [f"{topic}/{number} no longer exists" for topic, number in missing]
    before = {topic: id for topic, id in topic_ids_in(reading.resume).items() if is_requested(reading, topic)}
    replaced = recreated_topics(before, cluster.topic_ids(before))
    lost += replaced.values()
    requested = {
        each: offset
        for each, offset in wanted.items()
        if each in known and offset >= 0 and each[0] not in replaced
    }
    first, last = cluster.start_offsets(requested), cluster.end_offsets(requested, committed=False)
    resumed: dict[Partition, int] = dict.fromkeys(partitions, EARLIEST)
    resumed |= {each: offset for each, offset in wanted.items() if each in known and each[0] not in replaced}
    for each, offset in sorted(requested.items()):
        if offset < first[each]:
            lost.append(f"{each[0]}/{each[1]}: {offset} to {first[each] - 1} were deleted")
        elif offset > last[each]:
            lost.append(f"{each[0]}/{each[1]} ends at {last[each]}, before {offset}: it was created again")
        else:
            continue
        resumed[each] = EARLIEST
    if lost and reading.fail_on_data_loss:
        raise data_lost_error(lost)
    if lost:
        _log.warning("messages are lost, which fail_on_data_loss=False allows: %s", "; ".join(lost))
    return resumed


def data_lost_error(lost: list[str]) -> DataLost:
    """The error for messages that the broker deleted before they were read."""
    losses = "; ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
    return DataLost(
        f"Kafka no longer has messages that this stream has not read: {losses}",
        state="nothing was read past the last committed batch",
        next_step="run it once with  fail_on_data_loss=False  to continue with what is left, or start again "
        "from earliest; then keep messages longer (retention.ms of the topic)",
    )


def is_requested(reading: ReadRequest, topic: str) -> bool:
    """Whether the query includes the topic. A topic that was removed from the query is not lost data."""
    topics = TopicQuery(reading.query)
    return (
        re.fullmatch(reading.query.strip(), topic) is not None if topics.is_pattern else topic in topics.names
    )
