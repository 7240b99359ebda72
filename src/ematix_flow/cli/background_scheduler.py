"""Runs a scheduler in a thread of another command, as `flow web --with-scheduler` does."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry

_LEASE_SECONDS = 300.0
_log = logging.getLogger(__name__)


@contextmanager
def background_scheduler(
    registry: Registry, module: str, run_log: str | None, engine: str | None, stop: threading.Event
) -> Iterator[None]:
    """Run due slots until ``stop`` is set; leaving the block waits for the runs, as `flow scheduler` does.

    If the scheduler fails for good, it sets ``stop``, and the block's end raises its error.
    """
    from ematix_flow.cli.json_log import log_environment
    from ematix_flow.cli.slot_runners import slot_runner, slots_url, warn_of_missing_drivers
    from ematix_flow.observe.settings import Observability
    from ematix_flow.schedule.executors.executor_urls import open_executor
    from ematix_flow.schedule.scheduler import Scheduler

    watching = Observability.resolve(os.environ)
    executor, store_url = open_executor("subprocess://"), slots_url(run_log)
    executor.check(store_url, engine)
    warn_of_missing_drivers(registry, registry.pipelines)
    failed: list[BaseException] = []
    with slot_runner(
        registry, run_log, engine, None, _LEASE_SECONDS, "schedule", watching, keep_open=True
    ) as runner:
        daemon = Scheduler(
            runner,
            executor,
            module,
            store_url,
            engine,
            stop=stop,
            environment=watching.to_env() | log_environment(),
        )

        def run() -> None:
            try:
                daemon.run()
            except BaseException as error:
                _log.error("the scheduler stopped: %s", error)
                failed.append(error)
                stop.set()

        thread = threading.Thread(target=run, name="ematix-flow-scheduler")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            try:
                thread.join()
            except BaseException:  # the second Ctrl-C
                executor.abandon()
                raise
    if failed:
        raise failed[0]
