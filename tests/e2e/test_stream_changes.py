"""Streams whose declaration changed: what continues at its position, and what is refused."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from ematix_flow import BigInt, ManagedTable, Target
from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import DataLost, Unsupported
from ematix_flow.observe.stream_listener import StreamListener
from ematix_flow.streaming import Source
from tests.services.kafka import KafkaServer
from tests.stream_runs import events_into, kafka_connection, load, produce, query, stream, warehouse

pytestmark = pytest.mark.usefixtures("spark")


class Ids(ManagedTable):
    id: BigInt


def test_a_stream_whose_topics_change_goes_on_in_each_where_it_stood(
    kafka: KafkaServer, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL)")
    first, second = kafka.create_topic("first", 1), kafka.create_topic("second", 1)

    def leave_checkpoint() -> None:
        shutil.rmtree(stream_folder_for(events_into(pg_database, kafka, first).spec).checkpoint("all"))

    def loaded(topics: str) -> int:
        return load(events_into(pg_database, kafka, topics)).total_rows

    produce(kafka, first, [{"id": n} for n in range(10)])
    produce(kafka, second, [{"id": n} for n in range(100, 110)])
    assert loaded(first) == 10
    assert loaded(f"{first}, {second}") == 10
    produce(kafka, first, [{"id": 10}])
    produce(kafka, second, [{"id": 110}])
    assert loaded(first) == 1  # the second is no longer asked for: that is no loss
    leave_checkpoint()  # as when a start dies that has put it aside for other topics
    assert loaded(second) == 1  # and continues at its position, as does the first
    produce(kafka, first, [{"id": 11}])
    assert loaded(f"{second},{first}") == 1
    assert query(pg_database, "SELECT count(*), count(DISTINCT id) FROM events") == [(23, 23)]


def test_a_topic_that_comes_back_goes_on_where_the_group_stood(kafka: KafkaServer) -> None:
    """Into a broker, which has no ledger."""
    first, second, out = (kafka.create_topic(name, 1) for name in ("first", "second", "out"))

    def sent(topics: str) -> int:
        return load(
            stream(
                source=kafka_connection(kafka),
                source_query=topics,
                source_columns=Ids,
                target=kafka_connection(kafka, "sink"),
                target_topic=out,
            )
        ).total_rows

    produce(kafka, first, [{"id": 1}])
    produce(kafka, second, [{"id": 2}])
    assert sent(f"{first},{second}") == 2
    produce(kafka, first, [{"id": 3}])
    assert sent(first) == 1
    produce(kafka, second, [{"id": 4}])
    assert sent(f"{first},{second}") == 1
    ids = [json.loads(message.value())["id"] for message in kafka.consume_all(out)]
    assert sorted(ids) == [1, 2, 3, 4]


def test_targets_that_are_not_equally_far_take_no_other_topics(kafka: KafkaServer, pg_database: str) -> None:
    first, second = kafka.create_topic("first", 1), kafka.create_topic("second", 1)

    def both(topics: str) -> None:
        tables = [Target(warehouse(pg_database), table=("public", name)) for name in ("one", "two")]
        load(stream(source=kafka_connection(kafka), source_query=topics, source_columns=Ids, targets=tables))

    produce(kafka, first, [{"id": 1}])
    both(first)
    produce(kafka, first, [{"id": 2}])
    both(first)
    # as when the process had died between the commits of the two, and Spark's note is not written
    behind = (
        "SELECT batch_key FROM ematix_flow.ledger WHERE target LIKE '%two' ORDER BY committed_at DESC LIMIT 1"
    )
    query(pg_database, f"DELETE FROM ematix_flow.ledger WHERE target LIKE '%two' AND batch_key IN ({behind})")
    with pytest.raises(Unsupported, match="have not read equally far"):
        both(second)
    assert query(pg_database, "SELECT count(*) FROM one") == [(2,)]


def test_another_number_of_sources_is_refused(kafka: KafkaServer, pg_database: str) -> None:
    first, second = kafka.create_topic("first", 1), kafka.create_topic("second", 1)

    def followed(*topics: str) -> None:
        sources = [Source(kafka_connection(kafka, topic), topic) for topic in topics]
        load(
            stream(
                sources=sources,
                source_columns=Ids,
                target=warehouse(pg_database),
                target_table=("public", "ids"),
            )
        )

    produce(kafka, first, [{"id": 1}])
    followed(first)
    with pytest.raises(Unsupported, match="had 1 sources and has 2 now"):
        followed(first, second)


def created_again(kafka: KafkaServer, topic: str, ids: range) -> None:
    """Delete a topic, create it again, and let it grow past the position of every reader of the old one."""
    kafka.drop_topic(topic)
    kafka.create_topic(name=topic)
    produce(kafka, topic, [{"id": n} for n in ids])


def forget_ids(url: str, checkpoint: Path) -> None:
    """As positions were written before they held the ids of topics."""
    query(url, "UPDATE ematix_flow.ledger SET source_to = regexp_replace(source_to, ', \"place ids.*', '}]')")
    (checkpoint / "place-ids.json").unlink()


@pytest.mark.parametrize("kept", ["checkpoint and ledger", "ledger", "checkpoint", "no id until now"])
def test_a_topic_that_was_created_again_is_lost_data_and_is_then_read_from_its_beginning(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    out = kafka.create_topic("out", 1)
    to_broker = {"target": kafka_connection(kafka, "sink"), "target_topic": out}
    to_table = {"target": warehouse(pg_database), "target_table": ("public", "events")}

    def declared(**options: bool) -> StreamingPipeline:
        target = to_broker if kept == "checkpoint" else to_table  # that broker keeps no ledger of ours
        source = {"source": kafka_connection(kafka), "source_query": kafka_topic, "source_columns": Ids}
        return stream(**source, **target, **options)

    checkpoint = stream_folder_for(declared().spec).checkpoint("all")
    produce(kafka, kafka_topic, [{"id": n} for n in range(5)])
    assert load(declared()).total_rows == 5
    if kept == "no id until now":
        forget_ids(pg_database, checkpoint)
        produce(kafka, kafka_topic, [{"id": 5}])
        assert load(declared()).total_rows == 1  # continues, and stores the id
    created_again(kafka, kafka_topic, range(100, 108))
    if kept == "ledger":
        shutil.rmtree(checkpoint)
    with pytest.raises(DataLost, match=f"topic '{kafka_topic}' was deleted and created again"):
        load(declared())
    assert load(declared(fail_on_data_loss=False)).total_rows == 8
    assert f"topic '{kafka_topic}' was deleted and created again" in caplog.text
    produce(kafka, kafka_topic, [{"id": 108}])
    assert load(declared()).total_rows == 1  # the new topic is the one that is known now


def test_a_topic_that_is_created_again_under_a_running_stream_stops_it(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    produce(kafka, kafka_topic, [{"id": n} for n in range(3)])
    loaded = threading.Event()

    class Watch(StreamListener):
        def batch_committed(self, *arguments: object) -> None:
            loaded.set()

    running = events_into(pg_database, kafka, kafka_topic, source_columns=Ids).start(watch=Watch())
    assert loaded.wait(120)
    created_again(kafka, kafka_topic, range(100, 110))
    with pytest.raises(DataLost, match=r"created again|no longer exists"):
        running.wait(120)
    ids = {row[0] for row in query(pg_database, "SELECT id FROM events")}
    assert ids == {0, 1, 2}
