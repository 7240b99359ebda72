"""``flow consume`` and ``flow consume-list``: which streams are meant, how they run and how they stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.api.streaming import StreamingPipeline
from ematix_flow.engine.spark import session
from ematix_flow.engine.streams.stream_runner import StreamRunner
from ematix_flow.errors import EngineError, FlowError, TargetFailed
from ematix_flow.streams import supervised_stream

STREAMS = '''
from ematix_flow import KafkaConnection, PostgresConnection, ematix

kafka = KafkaConnection(name="kafka_prod", bootstrap_servers="localhost:9092")
warehouse = PostgresConnection(name="warehouse", url="postgres://localhost/db")

@ematix.streaming_pipeline(source=kafka, source_query="events", target=warehouse,
                           target_table=("public", "events"))
def events():
    """Events, as they come."""

@ematix.streaming_pipeline(source=kafka, source_query="clicks", target=warehouse,
                           target_table=("public", "clicks"), mode="merge", keys=["id"])
def clicks():
    pass
'''
TOML = """\
pipeline_name = "from_file"
source_query = "events"
[source]
kind = "kafka"
bootstrap_servers = "localhost:9092"
[target]
kind = "postgres"
url = "postgres://localhost/db"
table = "public.events"
"""


@dataclass(frozen=True)
class Result:
    name: str
    total_rows: int = 1234
    rows_read: int = 1240
    iterations: int = 3
    shutdown_triggered: bool = False
    dead_letters: int = 6
    dropped: int = 0
    restarts: int = 1
    seconds: float = 2.5

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Running:
    """What `start_stream` gives, without Spark: it ends when it is stopped, or as the test chose."""

    def __init__(self, name: str, error: FlowError | None = None, *, forever: bool = False) -> None:
        self.name, self.error = name, error
        self.ended = threading.Event()
        self.was_stopped = False
        if not forever:
            self.ended.set()

    def stop(self) -> None:
        self.was_stopped = True
        self.ended.set()

    def wait(self, timeout: float | None = None, *, handle_signals: bool = False) -> Result:
        assert not handle_signals, "several streams share the handler of the command"
        assert self.ended.wait(60)
        if self.error is not None:
            raise self.error
        return Result(self.name, shutdown_triggered=self.was_stopped)


class Started:
    """The streams that were started, and how. ``make`` decides what each does."""

    def __init__(self) -> None:
        self.how: dict[str, dict[str, Any]] = {}
        self.running: dict[str, Running] = {}
        self.make: dict[str, Running | FlowError] = {}

    def start(self, pipeline: StreamingPipeline, **how: Any) -> Running:
        made = self.make.get(pipeline.name, Running(pipeline.name))
        if isinstance(made, FlowError):
            raise made
        self.how[pipeline.name] = how
        self.running[pipeline.name] = made
        watch = how["watch"]
        watch.started(pipeline.name, "")
        watch.batch_committed(pipeline.name, 7, 1240, 1234, 0.5, {"0": 3, "1": 4})
        watch.dead_letters_added(pipeline.name, 6)
        if made.ended.is_set() and made.error is None:
            watch.stopped(pipeline.name)
        return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    found = Started()
    monkeypatch.setattr(StreamingPipeline, "start", lambda self, **how: found.start(self, **how))
    yield found
    for running in found.running.values():
        running.stop()


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    (tmp_path / "streams.py").write_text(STREAMS, encoding="utf-8")
    return tmp_path


# ------------------------------------------------------------------ which streams


def test_a_file_is_followed(flow, tmp_path, started):
    (tmp_path / "other.toml").write_text(TOML)
    assert flow("consume", "other.toml").code == 0
    assert list(started.how) == ["from_file"]


def test_the_file_pipeline_toml_is_followed_when_nothing_is_named(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML)
    assert flow("consume").code == 0
    assert list(started.how) == ["from_file"]


def test_several_files_are_followed_together(flow, tmp_path, started):
    (tmp_path / "a.toml").write_text(TOML)
    (tmp_path / "b.toml").write_text(TOML.replace("from_file", "other"))
    assert flow("consume", "a.toml", "b.toml").code == 0
    assert list(started.how) == ["from_file", "other"]


def test_two_files_with_one_name_are_refused(flow, tmp_path, started):
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(TOML)
    failed = flow("consume", "a.toml", "b.toml")
    assert failed.code == 2
    assert "two of the files declare a stream 'from_file'" in failed.err
    assert started.how == {}


def test_streams_of_a_module_are_followed_by_name(flow, streams, started):
    assert flow("consume", "--module", "streams", "clicks", "events", "clicks").code == 0
    assert list(started.how) == ["clicks", "events"]


def test_all_streams_of_a_module_are_followed(flow, streams, started):
    assert flow("consume", "--module", "streams", "--all").code == 0
    assert list(started.how) == ["events", "clicks"]


def test_the_environment_names_the_module(flow, streams, started, monkeypatch):
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "streams")
    assert flow("consume", "events").code == 0
    assert "give one of: events, clicks, or --all" in flow("consume").err


def test_running_a_stream_of_a_module_without_pipelines_names_flow_consume(flow, streams):
    failed = flow("run", "--module", "streams", "events")
    assert failed.code == 2
    assert "It is a stream, which  flow consume events  follows." in failed.err
    failed = flow("run", "--module", "streams", "--all")
    assert "the module declares no pipeline" in failed.err
    assert "flow consume --all  follows its streams" in failed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no pipeline.toml in"),
        (["gone.toml"], "there is no file gone.toml"),
        (["--module", "streams"], "give one of: events, clicks, or --all"),
        (["--module", "streams", "evnets"], "Did you mean 'events'?"),
        (["--module", "streams", "--all", "events"], "give names or --all, not both"),
        (["--module", "streams", "there.toml"], "--module cannot be combined with it"),
        (["there.toml", "events"], "the name 'events' cannot be combined with it"),
        (["there.toml", "--all"], "--all cannot be combined with it"),
        (["events"], "no module is given"),
        (["--module", "nothing", "events"], "declares no streaming pipeline"),
        (["broken.toml"], "Did you mean 'source_query'?"),
        (["there.toml", "--max-restarts", "-1"], "takes a number from 0 up"),
        (["there.toml", "--metrics-port", "70000"], "takes a number up to 65535"),
        (["there.toml", "--onec"], "Did you mean --once?"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_explained(flow, streams, started, arguments, words):
    (streams / "there.toml").write_text(TOML)
    (streams / "broken.toml").write_text(TOML.replace("source_query", "source_qeury"))
    (streams / "nothing.py").write_text("")
    failed = flow("consume", *arguments)
    assert failed.code == 2
    assert words in failed.err
    assert started.how == {}


def test_what_is_wrong_in_a_file_is_shown_with_its_line(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML.replace("source_query", "source_qeury"))
    assert "where: pipeline.toml:2" in flow("consume").err


# ------------------------------------------------------------------ how they run


def test_the_options_reach_the_stream(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML)
    options = ["--once", "--restart-on-error", "--initial-backoff-ms", "5", "--max-backoff-ms", "30000"]
    options += ["--max-restarts", "3", "--reset-backoff-after-secs", "9", "--run-log-url", "sqlite://x.db"]
    assert flow("consume", "pipeline.toml", *options, "--engine", "local[1]").code == 0
    how = started.how["from_file"]
    wanted = {
        "once": True,
        "restart_on_error": True,
        "initial_backoff_ms": 5,
        "max_backoff_ms": 30000,
        "max_restarts": 3,
        "reset_backoff_after_secs": 9,
        "run_log": "sqlite://x.db",
        "engine": "local[1]",
    }
    assert {key: how[key] for key in wanted} == wanted


def test_the_defaults_are_those_of_the_reference(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML)
    flow("consume", "--available-now")
    how = started.how["from_file"]
    assert (how["once"], how["restart_on_error"], how["max_restarts"]) == (True, False, None)
    assert (how["initial_backoff_ms"], how["max_backoff_ms"], how["reset_backoff_after_secs"]) == (
        1000,
        60_000,
        60,
    )


def test_several_streams_share_one_port_for_metrics(flow, streams, started):
    shown = flow("consume", "--module", "streams", "--all", "--metrics-port", "0")
    assert shown.code == 0
    assert "metrics at http://127.0.0.1:" in shown.err
    assert started.how["events"]["metrics"] is started.how["clicks"]["metrics"]


def test_streams_of_one_command_start_spark_with_the_jars_of_all_of_them(flow, tmp_path, monkeypatch):
    asked = []

    def spark_session(settings, *, jar_groups):
        asked.append(set(jar_groups))
        raise EngineError("no Spark here")

    class Started(StreamRunner):
        def run(self):
            self.connections.spark()

    monkeypatch.setattr(session, "spark_session", spark_session)
    monkeypatch.setattr(supervised_stream, "StreamRunner", Started)
    lake = TOML.replace("from_file", "lake").replace('"kafka"', '"delta_local"')
    lake = lake.replace('bootstrap_servers = "localhost:9092"', f'path = "{tmp_path}/lake"')
    (tmp_path / "one.toml").write_text(TOML)
    (tmp_path / "two.toml").write_text(lake)
    flow("consume", "one.toml", "two.toml", "--once")
    assert asked == [{"kafka", "delta"}] * 2


def test_the_result_of_one_stream_is_one_document(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML)
    found = flow("consume", "--output", "json").json
    wanted = ("name", "total_rows", "iterations", "shutdown_triggered", "seconds", "dead_letters", "restarts")
    assert [found[key] for key in wanted] == ["from_file", 1234, 3, False, 2.5, 6, 1]


def test_the_results_of_several_streams_are_a_list(flow, streams, started):
    found = flow("consume", "--module", "streams", "--all", "--output", "json").json
    assert [entry["name"] for entry in found] == ["events", "clicks"]


def test_a_person_gets_a_table_and_lines(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML)
    shown = flow("consume")
    header, row = shown.out.splitlines()
    assert header.split() == ["stream", "status", "rows", "batches", "dead", "letters", "restarts", "seconds"]
    assert row.split() == ["from_file", "succeeded", "1,234", "3", "6", "1", "2.5"]
    first, last = shown.err.splitlines()
    assert first.endswith("Z from_file: started")
    assert "from_file: stopped batch=7 rows_read=1240 rows_written=1234 rows_per_second=2468" in last
    assert last.endswith("batch_seconds=0.50 lag=7 dead_letters=6")


def test_quiet_says_nothing_when_all_is_well(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML)
    shown = flow("consume", "--quiet")
    assert (shown.out, shown.err) == ("", "")
    assert "from_file" in flow("consume", "--quiet", "-o", "json").out


def test_a_plan_is_shown_and_nothing_is_started(flow, streams, started, monkeypatch):
    class Plan:
        def __init__(self, name: str) -> None:
            self.name = name

        def __str__(self) -> str:
            return f"stream {self.name}"

        def to_json(self) -> dict[str, Any]:
            return {"pipeline": self.name}

    monkeypatch.setattr(StreamingPipeline, "plan", lambda self, engine=None: Plan(self.name))
    assert flow("consume", "--module", "streams", "--all", "--plan").out == "stream events\n\nstream clicks\n"
    shown = flow("consume", "--module", "streams", "events", "--plan", "-o", "json")
    assert shown.json == [{"pipeline": "events"}]
    assert started.how == {}


# ------------------------------------------------------------------ how they end


def test_the_error_of_a_lone_stream_is_the_commands(flow, tmp_path, started):
    (tmp_path / "pipeline.toml").write_text(TOML)
    started.make["from_file"] = Running("from_file", TargetFailed("the disk is full"))
    failed = flow("consume")
    assert failed.code == 1
    assert failed.err.count("the disk is full") == 1
    assert failed.out == ""
    found = flow("consume", "--output", "json")
    assert found.code == 1
    assert found.json["error"]["what"] == "the disk is full"


def test_a_stream_that_fails_does_not_end_the_others(flow, streams, started):
    started.make["events"] = Running("events", TargetFailed("the disk is full"))
    failed = flow("consume", "--module", "streams", "--all")
    assert failed.code == 1
    assert "error in events: the disk is full" in failed.err
    assert [line.split()[:2] for line in failed.out.splitlines()[1:]] == [
        ["events", "failed"],
        ["clicks", "succeeded"],
    ]


def test_the_error_of_one_of_several_is_in_their_json(flow, streams, started):
    started.make["events"] = Running("events", TargetFailed("the disk is full"))
    failed = flow("consume", "--module", "streams", "--all", "-o", "json")
    assert failed.code == 1
    assert failed.json[0]["error"]["what"] == "the disk is full"
    assert failed.json[1]["total_rows"] == 1234


def test_a_stream_that_cannot_start_stops_those_before_it(flow, streams, started):
    started.make["events"] = Running("events", forever=True)
    started.make["clicks"] = TargetFailed("no such table")
    failed = flow("consume", "--module", "streams", "--all")
    assert failed.code == 1
    assert "no such table" in failed.err
    assert started.running["events"].was_stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_stream_after_its_batch(flow, streams, started, number):
    for name in ("events", "clicks"):
        started.make[name] = Running(name, forever=True)

    def interrupt() -> None:
        while len(started.running) < 2:
            threading.Event().wait(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=interrupt, daemon=True).start()
    ended = flow("consume", "--module", "streams", "--all", "-o", "json")
    assert ended.code == 0
    assert [entry["shutdown_triggered"] for entry in ended.json] == [True, True]
    assert signal.getsignal(number) is before


def test_a_second_signal_does_not_wait(flow, streams, started):
    class Stubborn(Running):
        def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def wait(self, timeout: float | None = None, *, handle_signals: bool = False) -> Result:
            threading.Event().wait(60)
            raise AssertionError("nobody waits so long")

    started.make["events"] = Stubborn("events", forever=True)

    def interrupt() -> None:
        while not started.running:
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    ended = flow("consume", "--module", "streams", "events")
    started.running.clear()
    assert ended.code == 130


# ------------------------------------------------------------------ lists


def test_streams_are_listed(flow, streams):
    header, events, clicks = flow("consume-list", "--module", "streams").out.splitlines()
    assert header.split() == ["stream", "follows", "loads", "declared", "at"]
    assert "kafka_prod:events" in events and "append → warehouse:public.events" in events
    assert "merge → warehouse:public.clicks" in clicks
    assert "streams.py:" in clicks


def test_streams_are_listed_as_json(flow, streams):
    events, clicks = flow("consume-list", "--module", "streams", "--format", "json").json
    assert events["description"] == "Events, as they come."
    assert events["sources"] == ["kafka_prod:events"]
    assert clicks["targets"] == [{"target": "warehouse:public.clicks", "mode": "merge"}]


def test_a_module_without_streams_says_so(flow, project):
    shown = flow("consume-list", "--module", "pipelines")
    assert (shown.code, shown.err) == (0, "the module declares no streaming pipeline\n")


def test_pipelines_and_streams_are_listed_together(flow, streams, project):
    (project / "both.py").write_text((project / "pipelines.py").read_text() + STREAMS)
    lines = flow("list", "--module", "both").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["orders", "pipeline"],
        ["report", "pipeline"],
        ["events", "stream"],
        ["clicks", "stream"],
    ]
    assert "follows kafka_prod:events" in lines[3]
    kinds = [entry["kind"] for entry in flow("list", "--module", "both", "-o", "json").json]
    assert kinds == ["pipeline", "pipeline", "stream", "stream"]
    assert (
        "kafka_prod:clicks ⇝ clicks  → warehouse:public.clicks" in flow("list", "-m", "both", "--graph").out
    )


def test_names_of_streams_are_completed(flow, streams, monkeypatch, capsys):
    from ematix_flow.cli.main import main

    monkeypatch.setenv("_FLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "flow consume --module streams.py cl")
    monkeypatch.setenv("COMP_CWORD", "4")
    main([])
    assert capsys.readouterr().out.split() == ["clicks"]


def test_the_status_of_a_module_with_streams_alone_says_what_shows_them(flow, streams):
    told = flow("status", "-m", "streams")
    assert told.code == 0
    assert "the module declares 2 streaming pipelines" in told.err
    assert "flow consume-list" in told.err and "flow runs list" in told.err
