"""The read of the source that several targets share, without Spark: what is open when a run may be held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow.backends.base import BatchSource, SourceQuery
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.sqlite.source import SQLiteSource
from ematix_flow.engine.execution import several_targets
from ematix_flow.plan.stages import TransformRows

QUERY = SourceQuery("SELECT n FROM raw")


class Trace:
    """Notes what happens to the source, the kept rows and each target, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def source_frame(self, *_: object) -> Iterator[Any]:
        self.events.append("the source is opened")
        yield self
        self.events.append("the source is closed")

    def persist(self, level: object) -> Trace:
        return self

    def count(self) -> int:
        self.events.append("the rows are kept")
        return 0

    def unpersist(self) -> None:
        self.events.append("the rows are dropped")

    def target(self, name: str) -> Any:
        @contextmanager
        def time_stage(stage: str) -> Iterator[None]:
            self.events.append(f"{stage} {name}")
            yield

        started = SimpleNamespace(stage_started=lambda target, stage: self.events.append(f"{stage} {target}"))
        plan = SimpleNamespace(stages=[TransformRows(QUERY, None, "v", (), False, 1, None)])
        return SimpleNamespace(
            load=SimpleNamespace(target=name),
            table=None,
            listener=started,
            target_plan=plan,
            time_stage=time_stage,
            open_staging=nullcontext,
            spark=lambda: None,
            record_seconds=lambda stage, seconds: None,
            stage_frame=lambda frame, stage, staging: self.events.append(f"staged {name}"),
        )


def test_the_source_is_closed_wherever_a_run_with_several_targets_may_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace()
    source: BatchSource = SQLiteSource(DatabaseFile.of("SQLite", "shop", str(tmp_path / "shop.db")))
    monkeypatch.setattr(several_targets, "open_source", lambda plan, connections: source)
    monkeypatch.setattr(several_targets, "source_frame", trace.source_frame)
    fan_out: Any = object.__new__(several_targets._FanOut)
    fan_out.plan = SimpleNamespace(pipeline=SimpleNamespace(name="orders"), source_columns=())
    fan_out.shared = SimpleNamespace(query=QUERY, tasks=1)
    fan_out.connections = SimpleNamespace(spark_errors=lambda what: nullcontext())
    fan_out.failures, fan_out.continue_on_failure = {}, False
    fan_out.runs = {name: trace.target(name) for name in ("a", "b")}
    fan_out.transform_rows()
    assert trace.events == [
        *("read a", "read b", "the source is opened", "the rows are kept", "the source is closed"),
        *("transform a", "staged a", "transform b", "staged b", "the rows are dropped"),
    ]
