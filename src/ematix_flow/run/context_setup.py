"""Builds what every entry point needs to run or plan a pipeline: engine and run log, from settings."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log
from ematix_flow.config.project_file import project_settings
from ematix_flow.engine.connections import StartSpark
from ematix_flow.engine.spark.settings import EngineSettings, check_engine
from ematix_flow.errors import EngineError
from ematix_flow.observe.listener import Listener
from ematix_flow.observe.run_logging import LoggingListener
from ematix_flow.observe.settings import Observability, open_observers
from ematix_flow.run.run_context import RunContext
from ematix_flow.state.runlog.base import project_run_log, run_retention

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def engine_settings(engine: str | EngineSettings | None = None) -> EngineSettings:
    """Return the settings by the argument, then the environment, then ``[engine]`` of the project's file."""
    if isinstance(engine, EngineSettings):
        return engine
    return EngineSettings.resolve(engine=engine, env=os.environ, config=project_settings())


def spark_starter(
    engine: str | EngineSettings | None = None, also: Collection[str] = frozenset()
) -> StartSpark:
    """Return a function that starts Spark on its first call; most commands never call it.

    Invalid settings are refused at once, even if Spark is not needed later. ``also`` are jar groups that
    other users of the session need: Spark cannot restart while they run.
    """
    if not isinstance(engine, EngineSettings):
        check_engine(engine, os.environ, project_settings())

    def start(jar_groups: Sequence[str]) -> SparkSession:
        from ematix_flow.engine.spark.session import spark_session

        return spark_session(engine_settings(engine), jar_groups=sorted({*jar_groups, *also}))

    return start


def refuse_spark(_: Sequence[str]) -> SparkSession:
    """Refuse to start Spark: in place of `spark_starter` where no engine is started to read a ledger."""
    raise EngineError("no engine is started to read a ledger")


@contextmanager
def run_context(
    *,
    run_log: str | None = None,
    engine: str | EngineSettings | None = None,
    listener: Listener | None = None,
    trigger: str = "sync",
    slot: dt.datetime | None = None,
    observability: Observability | None = None,
) -> Iterator[RunContext]:
    """Open the run log and the observers.

    Arguments win over the environment, which wins over the project's file.
    """
    observability_settings = observability or Observability.resolve(os.environ)
    with (
        open_run_log(run_log or project_run_log(os.environ), env=os.environ) as log,
        open_observers(observability_settings, log) as observers,
    ):
        starter = spark_starter(engine)
        yield RunContext(
            log,
            starter,
            listener or LoggingListener(),
            trigger,
            slot,
            observers=observers,
            keep_runs_for=run_retention(),
            actions=partial(
                open_actions, run_log or project_run_log(os.environ), env=os.environ, keep_open=True
            ),
        )
