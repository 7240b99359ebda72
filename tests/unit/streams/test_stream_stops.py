"""Streams that are stopped on request while they fail, or between two attempts. Without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log
from ematix_flow.errors import FlowError, TargetFailed
from ematix_flow.graph.registry import current_registry
from ematix_flow.observe.observer import Observers
from ematix_flow.observe.stream_listener import StreamListener
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.run.recording import RunRecording
from ematix_flow.schedule.actions.carrier import ActionCarrier
from ematix_flow.schedule.actions.requests import request_action
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.slots.memory import MemorySlotStore
from ematix_flow.streams.restarts import RestartPolicy
from ematix_flow.streams.run_options import StreamRunOptions
from ematix_flow.streams.running_stream import RunningStream
from ematix_flow.streams.supervised_stream import SupervisedStream
from tests.waiting import wait_until

LOST = "the server went away"
AT_ONCE = RestartPolicy(1, 1, max_restarts=3)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/log.db"


@pytest.fixture
def log(url: str) -> Iterator[RunLog]:
    with open_run_log(url, env={}) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _watched_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 0.02)


def start(
    url: str,
    log: RunLog,
    monkeypatch: pytest.MonkeyPatch,
    follow: Callable[[RunRecording], None],
    policy: RestartPolicy = AT_ONCE,
) -> RunningStream:
    """A stream under supervision, each attempt of which does what ``follow`` does."""
    monkeypatch.setattr(SupervisedStream, "_follow", lambda run, recording, samples: follow(recording))
    spec: Any = SimpleNamespace(name="clicks", targets=(), where=None)

    def run(running: RunningStream) -> None:
        options = StreamRunOptions(run_log=url)
        SupervisedStream(spec, running, options, StreamMetrics(), log, Observers()).run_supervised(policy)

    return RunningStream("clicks", run, StreamListener())


def stop(url: str, run_id: str) -> None:
    with open_actions(url, env={}) as store:
        store.request("stop", run_id, {}, by="ada", via="cli")


def request_stop(log: RunLog, url: str, run_id: str) -> None:
    """Request a stop as ``flow stop`` does; a scheduler that polls then leaves it to the run."""
    with open_actions(url, env={}) as store:
        request_action(
            "stop",
            run_id,
            {},
            by="ada",
            via="cli",
            registry=current_registry(),
            run_log=log,
            slots=MemorySlotStore(),
            actions=store,
        )
        ActionCarrier(store, log, MemorySlotStore(), current_registry(), "pipelines").poll()


def ended_stop(url: str) -> tuple[str, str | None]:
    with open_actions(url, env={}) as store:
        (action,) = store.list(kind="stop")
    return action.status, action.outcome


def test_a_stream_that_fails_after_it_was_asked_to_stop_does_not_start_again(
    url: str, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_when_stopped(recording: RunRecording) -> None:
        stop(url, recording.record.run_id)
        wait_until(lambda: recording.control.stop_error)
        raise TargetFailed(LOST)

    result = start(url, log, monkeypatch, fail_when_stopped).wait(60)
    (run,) = log.list("clicks")
    assert (run.status, run.error_type) == ("cancelled", "RunStopped")
    assert "was stopped by ada" in (run.error_message or "") and LOST in (run.error_message or "")
    assert (result.shutdown_triggered, result.restarts) == (True, 0)
    assert ended_stop(url) == ("done", f"run {run.run_id[:8]} ended: cancelled")


def test_a_stream_that_is_not_asked_to_stop_starts_again_after_a_failure(
    url: str, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[FlowError] = [TargetFailed(LOST)]

    def fail_once(recording: RunRecording) -> None:
        if errors:
            raise errors.pop()

    assert start(url, log, monkeypatch, fail_once).wait(60).restarts == 1
    assert [run.status for run in log.list("clicks")] == ["succeeded", "failed"]


def test_a_stream_is_stopped_while_it_waits_for_its_next_attempt(
    url: str, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(recording: RunRecording) -> None:
        raise TargetFailed(LOST)

    an_hour = RestartPolicy(3_600_000, 3_600_000, jitter=False)
    running = start(url, log, monkeypatch, fail, an_hour)
    wait_until(lambda: log.list("clicks", status="failed"))
    (run,) = log.list("clicks")
    request_stop(log, url, run.run_id)
    assert running.wait(60).shutdown_triggered and not running.is_running
    assert [each.status for each in log.list("clicks")] == ["failed"]
    assert ended_stop(url) == ("done", "the run had failed; it is not attempted again")


def test_a_stop_that_a_failing_attempt_has_not_seen_ends_the_restarts(
    url: str, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 600.0)

    def fail(recording: RunRecording) -> None:
        stop(url, recording.record.run_id)
        raise TargetFailed(LOST)

    assert start(url, log, monkeypatch, fail).wait(60).shutdown_triggered
    assert [run.status for run in log.list("clicks")] == ["failed"]
    assert ended_stop(url)[0] == "done"


def test_a_stream_is_stopped_by_a_stop_of_the_attempt_before(
    url: str, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    def fail_once(recording: RunRecording) -> None:
        if not failed:
            failed.append(recording.record.run_id)
            raise TargetFailed(LOST)
        stop(url, failed[0])
        wait_until(lambda: recording.control.stop_error)

    assert start(url, log, monkeypatch, fail_once).wait(60).restarts == 1
    assert [run.status for run in log.list("clicks")] == ["cancelled", "failed"]
    assert ended_stop(url)[0] == "done"
