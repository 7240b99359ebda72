"""Ctrl-C ends a statement of a DuckDB target also when it comes while the statement's thread starts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ematix_flow.backends.duckdb.session import open_write_session
from ematix_flow.backends.embedded.database_file import DatabaseFile

_ENDLESS = "SELECT sum(a.range % 7 * b.range) FROM range(1000000000) a, range(1000000000) b"


def test_ctrl_c_while_the_thread_starts_leaves_no_statement_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    with open_write_session(DatabaseFile.of("DuckDB", "target", str(tmp_path / "a.duckdb"))) as session:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                session.execute(_ENDLESS)
        (statement,) = started
        statement.join(60)
        is_running = statement.is_alive()
        session.connection.interrupt()
        assert not is_running
        assert session.fetch("SELECT 1") == [(1,)]
