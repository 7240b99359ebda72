"""Ctrl-C ends a statement also when it comes while the statement's thread starts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ematix_probe.sources.interrupting import run_interruptibly


@pytest.mark.parametrize("started", [True, False])
def test_ctrl_c_while_the_thread_starts_leaves_no_statement_running(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    begun, interrupted, ended = threading.Event(), threading.Event(), threading.Event()
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        if started:
            start(thread)
            assert begun.wait(60)
        raise KeyboardInterrupt

    def statement() -> Any:
        begun.set()
        assert interrupted.wait(60)
        ended.set()

    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(statement, interrupted.set)
    assert (begun.is_set(), ended.is_set()) == (started, started)
