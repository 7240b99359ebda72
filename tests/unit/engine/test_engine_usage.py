"""Who uses Spark: a restart waits for runs, is refused under streams, and never ends what is at work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow.engine.spark import session, spark_users
from ematix_flow.engine.spark.session import spark_session
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.engine.spark.spark_users import using_spark
from ematix_flow.errors import EngineError

SETTINGS = EngineSettings.resolve(engine="local", env={})


class Engine:
    """What would start and end Java, without it."""

    def __init__(self) -> None:
        self.started: list[frozenset[str]] = []
        self.ended = 0
        self.jobs: list[int] = []
        self.queries: list[Any] = []

    def start(self, settings: EngineSettings, groups: frozenset[str]) -> Any:
        self.started.append(groups)
        tracker = SimpleNamespace(getActiveJobsIds=lambda: self.jobs)
        return SimpleNamespace(
            settings=settings,
            groups=groups,
            session=SimpleNamespace(streams=SimpleNamespace(active=self.queries), groups=groups),
            context=SimpleNamespace(statusTracker=lambda: tracker),
            is_alive=True,
            owner=session.os.getpid(),
        )

    def end(self, running: Any, train: bool = True) -> None:
        self.ended += running is not None


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    monkeypatch.setattr(session, "_running", None)
    monkeypatch.setattr(session, "_start", made.start)
    monkeypatch.setattr(session, "_end_session", made.end)
    monkeypatch.setattr(session, "_share_import_path", lambda running: None)
    monkeypatch.setattr(spark_users, "_POLL_SECONDS", 0.01)
    yield made
    assert spark_users._holders == []


class User(threading.Thread):
    """A run in its own thread that asks for jars, and then works until the test ends it."""

    def __init__(self, name: str, *jars: str, is_endless: bool = False) -> None:
        super().__init__(name=name, daemon=True)
        self.jars, self.is_endless = jars, is_endless
        self.got, self.end = threading.Event(), threading.Event()
        self.error: EngineError | None = None
        self.start()

    def run(self) -> None:
        with using_spark(self.name, is_endless=self.is_endless):
            try:
                spark_session(SETTINGS, jar_groups=self.jars)
            except EngineError as error:
                self.error = error
            self.got.set()
            self.end.wait(60)

    def over(self) -> None:
        self.end.set()
        self.join(60)


def test_a_run_that_needs_other_jars_waits_until_the_other_run_has_ended(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    first = User("pipeline 'a'", "delta")
    assert first.got.wait(60)
    second = User("pipeline 'b'", "kafka")
    _wait(lambda: "pipeline 'b' waits until pipeline 'a' ends" in caplog.text)
    assert not second.got.is_set() and engine.ended == 0
    first.over()
    assert second.got.wait(60) and second.error is None
    second.over()
    assert engine.started == [frozenset({"delta"}), frozenset({"delta", "kafka"})]


def test_runs_that_need_no_other_jars_share_one_session(engine: Engine) -> None:
    first = User("a", "delta", "kafka")
    assert first.got.wait(60)
    for user in (User("b", "kafka"), User("c"), first):
        assert user.got.wait(60) and user.error is None
        user.over()
    assert engine.started == [frozenset({"delta", "kafka"})]


def test_under_a_stream_a_restart_is_refused_with_its_name(engine: Engine) -> None:
    stream = User("stream 'events'", "kafka", is_endless=True)
    assert stream.got.wait(60)
    other = User("stream 'lake'", "delta", is_endless=True)
    assert other.got.wait(60) and other.error is not None
    assert "Spark is used by stream 'events', and would have to restart for the jars of delta" in str(
        other.error
    )
    assert engine.ended == 0
    for user in (stream, other):
        user.over()


def test_two_runs_that_both_use_spark_and_both_need_more_do_not_wait_for_each_other(engine: Engine) -> None:
    other = User("pipeline 'b'", "kafka")
    assert other.got.wait(60)
    with using_spark("pipeline 'a'"):
        spark_session(SETTINGS, jar_groups=["kafka"])
        with pytest.raises(EngineError, match="used by pipeline 'b'"):
            spark_session(SETTINGS, jar_groups=["iceberg"])
        other.over()
        spark_session(SETTINGS, jar_groups=["iceberg"])  # now it is the only one
    assert engine.started[-1] == {"kafka", "iceberg"}


@pytest.mark.parametrize("busy", ["jobs", "query"])
def test_jobs_and_queries_of_who_says_nothing_are_not_ended_either(engine: Engine, busy: str) -> None:
    spark_session(SETTINGS, jar_groups=["kafka"])
    if busy == "jobs":
        engine.jobs.append(7)
    else:
        engine.queries.append(SimpleNamespace(name="mine", id="1"))
    with pytest.raises(EngineError, match="would have to restart for the jars of delta"):
        spark_session(SETTINGS, jar_groups=["delta"])
    with pytest.raises(EngineError, match="would have to restart for other engine settings"):
        spark_session(EngineSettings.resolve(engine="local[3]", env={}), jar_groups=["kafka"])
    assert engine.ended == 0


def test_after_java_has_died_all_jars_are_there_again(engine: Engine) -> None:
    spark_session(SETTINGS, jar_groups=["kafka"])
    session._running.is_alive = False  # type: ignore[union-attr,misc]
    spark_session(SETTINGS, jar_groups=["delta"])
    assert engine.started[-1] == {"delta", "kafka"}


def test_a_run_within_a_run_is_a_part_of_it(engine: Engine) -> None:
    with using_spark("outer"):
        spark_session(SETTINGS, jar_groups=["kafka"])
        with using_spark("inner"):
            spark_session(SETTINGS, jar_groups=["delta"])
        assert [each.name for each in spark_users._holders] == ["outer"]


def _wait(is_so: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if is_so():
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not come to that")
