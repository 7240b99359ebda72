"""A stream whose source is not there: no restart makes one, but one that vanished may come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.engine.streams.stream_runner import StreamRunner
from ematix_flow.errors import CannotConnect, FlowError, SourceMissing
from ematix_flow.spec.connections import (
    DeltaLocalConnection,
    KinesisConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
)
from ematix_flow.streams import supervised_stream
from ematix_flow.streams.running_stream import RunningStream
from tests.stream_runs import stream


def declared(tmp_path: Path, connection: Any, query: str | None) -> StreamingPipeline:
    return stream(
        source=connection,
        source_query=query,
        target=SQLiteConnection(name="out", path=str(tmp_path / "out.db")),
        target_table="events",
    )


def ended(pipeline: StreamingPipeline) -> tuple[FlowError, RunningStream]:
    """The end of a stream that is restarted after each failure that a restart may fix."""
    running = pipeline.start(restart_on_error=True, initial_backoff_ms=1, max_backoff_ms=1, max_restarts=5)
    with pytest.raises(FlowError) as failure:
        running.wait(120)
    return failure.value, running


def connection(kind: str, folder: Path) -> Any:
    if kind == "folder":
        return ObjectStoreLocalConnection(name="inbox", path=str(folder), format="csv")
    return DeltaLocalConnection(name="lake", path=str(folder))


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_a_source_that_was_never_there_ends_the_stream_at_once(kind: str, tmp_path: Path) -> None:
    error, running = ended(declared(tmp_path, connection(kind, tmp_path), "nowhere"))
    assert isinstance(error, SourceMissing) and error.next_step
    assert running.result().restarts == 0


def test_a_source_that_vanishes_under_the_stream_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Vanishing(StreamRunner):
        """A stream whose source is there for a while."""

        def run(self) -> None:
            self.heartbeat()
            raise SourceMissing("the queue 'q' was deleted while it was read")

    monkeypatch.setattr(supervised_stream, "StreamRunner", Vanishing)
    error, running = ended(declared(tmp_path, connection("folder", tmp_path), "q"))
    assert isinstance(error, SourceMissing)
    assert running.result().restarts == 5


def test_a_server_that_is_away_is_no_missing_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: StreamRunner) -> None:
        raise CannotConnect("nobody answers")

    monkeypatch.setattr(StreamRunner, "run", refuse)
    _, running = ended(declared(tmp_path, connection("folder", tmp_path), "q"))
    assert running.result().restarts == 5


def test_a_stream_of_kinesis_is_named_by_the_query_or_by_its_connection(tmp_path: Path) -> None:
    from ematix_flow.backends.kinesis.source import KinesisSource
    from ematix_flow.backends.messages.base import ReadRequest

    kinesis = KinesisConnection(name="clicks", stream_name="own", region="eu-west-1")
    source = KinesisSource(kinesis)
    assert source._stream(ReadRequest(declared(tmp_path, kinesis, None).spec.sources[0].query)) == "own"
    assert source._stream(ReadRequest(declared(tmp_path, kinesis, "other").spec.sources[0].query)) == "other"
    assert declared(tmp_path, kinesis, None).spec.sources[0].label == "clicks"
