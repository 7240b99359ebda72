"""The run log in a SQLite file: several processes, sudden death, old and broken files."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from ematix_flow.errors import CannotConnect, ConfigError, UsageError
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog import base
from ematix_flow.state.runlog.base import NullRunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.sql import SqlRunLog
from ematix_flow.state.runlog.statements import newest_runs_statement
from ematix_flow.state.runlog.tables import UPGRADES, TableUpgrade, migrate, version
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.slots.sql import SqlSlotStore
from ematix_flow.state.sql.table_versions import stored_version
from ematix_flow.state.times import utc_now

# the processes fork after the imports, so that they begin at the same time
CHILD = """
import os, sys
import ematix_flow.state.runlog.sql
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.local_stores import open_local_run_log
url, processes, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
others = []
while len(others) < processes - 1:
    pid = os.fork()
    if pid == 0:
        others = []
        break
    others.append(pid)
with open_local_run_log(url, env={}) as log:
    for turn in range(turns):
        run_id = f"{os.getpid()}-{turn}"
        log.start(RunRecord(run_id, "orders", "dw.orders", "append"))
        log.finish(run_id, "succeeded", rows=RowCounts(read=turn))
sys.exit(any([os.waitpid(pid, 0)[1] for pid in others]))
"""


@contextmanager
def direct(path: Path) -> Iterator[sqlite3.Connection]:
    """The file behind the log, without the log."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def a_run(run_id: str = "r1") -> RunRecord:
    return RunRecord(run_id, "orders", "dw.orders", "append")


def child(*arguments: object, fault: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        env={**os.environ, "EMATIX_FLOW_FAULT": fault},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def warnings_seen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(base, "_warned", set())
    caplog.set_level(logging.WARNING)
    return caplog


def test_the_default_log_is_made_at_first_use_for_this_user_alone(tmp_path: Path) -> None:
    with open_local_run_log(env={"HOME": str(tmp_path)}) as log:
        log.start(a_run())
    root = tmp_path / ".ematix-flow"
    assert (root / "run_log.db").is_file()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_processes_that_create_and_fill_one_log_at_once_lose_nothing(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/log.db"
    process = child(url, 3, 5)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, "")
    with open_local_run_log(url, env={}) as log:
        assert len(log.list(status="succeeded", limit=1000)) == 15


def test_the_start_of_a_run_survives_the_sudden_death_of_its_process(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/log.db"
    process = child(url, 1, 1, fault="runlog.before_finish=kill")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    with open_local_run_log(url, env={}) as log:
        (dead,) = log.running("orders")
        assert (dead.run_id, dead.pid) == (f"{process.pid}-0", process.pid)


def test_a_log_that_cannot_be_made_warns_once_and_lets_the_run_go_on(
    tmp_path: Path, warnings_seen: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        log = open_local_run_log(f"sqlite://{tmp_path}/file/log.db", env={})
        log.start(a_run())
        assert not log.finish("r1", "succeeded", rows=RowCounts(read=1))
        assert not log.settle("r1", "interrupted", "x")
        assert log.running("orders") == ()
    assert isinstance(log, NullRunLog)
    assert len(warnings_seen.records) == 1
    assert "Runs go on, but are not recorded" in warnings_seen.text


def test_a_reader_of_a_log_that_cannot_be_made_gets_an_error_and_no_warning(
    tmp_path: Path, warnings_seen: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        open_local_run_log(f"sqlite://{tmp_path}/file/log.db", env={}, reading=True)
    assert warnings_seen.records == []


def test_reading_what_a_run_could_not_record_is_an_error(tmp_path: Path, warnings_seen: object) -> None:
    (tmp_path / "file").write_text("")
    log = open_local_run_log(f"sqlite://{tmp_path}/file/log.db", env={})
    for read in (log.list, lambda: log.get("r1"), lambda: log.last("orders")):
        with pytest.raises(ConfigError, match="cannot make the folder"):
            read()


@pytest.mark.parametrize("spoil", ["a folder", "no database"])
def test_a_place_that_is_no_log_is_a_warning_to_runs_and_an_error_to_readers(
    spoil: str, tmp_path: Path, warnings_seen: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.db"
    path.mkdir() if spoil == "a folder" else path.write_text("not a database, but a poem " * 99)
    open_local_run_log(str(path), env={}).start(a_run())
    assert "not recorded" in warnings_seen.text
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        open_local_run_log(str(path), env={}, reading=True)
    assert "EMATIX_FLOW_RUN_LOG_URL" in str(caught.value.next_step)


def test_a_log_that_breaks_during_a_run_does_not_stop_it(
    tmp_path: Path, warnings_seen: pytest.LogCaptureFixture
) -> None:
    log = open_local_run_log(str(tmp_path / "log.db"), env={})
    with direct(tmp_path / "log.db") as file:
        file.execute("DROP TABLE run_log")
    log.start(a_run())
    assert not log.finish("r1", "succeeded")
    assert len(warnings_seen.records) == 1
    assert "no such table" in warnings_seen.text
    with pytest.raises(ConfigError, match="cannot be used: no such table"):
        log.list()


def test_a_log_of_a_later_version_is_left_alone(
    tmp_path: Path, warnings_seen: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.db"
    open_local_run_log(str(path), env={}).start(a_run("old"))
    with direct(path) as file:
        file.execute("UPDATE run_log_version SET version = 99")
    open_local_run_log(str(path), env={}).start(a_run("new"))
    assert "has version 99" in warnings_seen.text
    with pytest.raises(ConfigError, match=f"knows only up to {len(UPGRADES) + 1}"):
        open_local_run_log(str(path), env={}, reading=True)
    with direct(path) as file:
        assert file.execute("SELECT run_id FROM run_log").fetchall() == [("old",)]


def _add_team(upgrading: TableUpgrade) -> None:
    upgrading.connection.execute(sa.text("ALTER TABLE run_log ADD COLUMN team TEXT"))


def _break(upgrading: TableUpgrade) -> None:
    upgrading.connection.execute(sa.text("ALTER TABLE run_log ADD COLUMN half TEXT"))
    raise RuntimeError("upgrade broke")


def _columns(path: Path) -> set[str]:
    with direct(path) as file:
        return {row[1] for row in file.execute("PRAGMA table_info(run_log)")}


def test_an_older_log_is_upgraded_with_its_runs_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = open_local_run_log(str(path), env={})
    log.start(a_run("old"))
    for _ in range(2):
        with log._transaction() as connection:  # type: ignore[attr-defined]
            migrate(connection, "here", [*UPGRADES, _add_team])
            assert stored_version(connection, version, None) == len(UPGRADES) + 2
    assert "team" in _columns(path)
    with direct(path) as file:
        assert file.execute("SELECT run_id, team FROM run_log").fetchall() == [("old", None)]


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = open_local_run_log(str(path), env={})
    with pytest.raises(RuntimeError, match="upgrade broke"), log._transaction() as connection:  # type: ignore[attr-defined]
        migrate(connection, "here", [*UPGRADES, _add_team, _break])
    assert _columns(path).isdisjoint({"team", "half"})
    with log._transaction() as connection:  # type: ignore[attr-defined]
        assert stored_version(connection, version, None) == len(UPGRADES) + 1


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    log = open_local_run_log(str(tmp_path / "log.db"), env={})
    log.start(a_run())
    writer = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        assert log.get("r1").status == "running"
    finally:
        writer.close()


def test_a_page_of_a_long_log_is_read_from_an_index(tmp_path: Path) -> None:
    open_local_run_log(str(tmp_path / "log.db"), env={}).close()
    with direct(tmp_path / "log.db") as file:
        for condition in ("", "WHERE pipeline = 'a'", "WHERE status = 'failed'"):
            query = f"SELECT * FROM run_log {condition} ORDER BY started_at DESC, run_id DESC LIMIT 20"
            steps = " ".join(row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {query}"))
            assert "USING INDEX" in steps
            assert "TEMP B-TREE" not in steps


def test_the_newest_of_many_pipelines_are_read_from_indices(tmp_path: Path) -> None:
    log = open_local_run_log(str(tmp_path / "log.db"), env={})
    query = newest_runs_statement(2, 20, "sqlite").compile(dialect=log._engine.dialect)  # type: ignore[attr-defined]
    given = [query.params[name] for name in query.positiontup or ()]
    with direct(tmp_path / "log.db") as file:
        shown = [value.isoformat(" ") if hasattr(value, "isoformat") else value for value in given]
        steps = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {query}", shown)]
    read = [step for step in steps if "run_log" in step or "inner_run" in step or "good" in step]
    assert len(read) >= 3 and all("USING" in step and "INDEX run_log_by_" in step for step in read)


def test_a_run_is_found_by_the_beginning_of_its_id_from_an_index(tmp_path: Path) -> None:
    log = open_local_run_log(str(tmp_path / "log.db"), env={})
    for run_id in ("ab", "abc", "ab~", "abé", "ac", "aB"):
        log.start(a_run(run_id))
    asked: list[str] = []
    sa.event.listen(log._reader, "before_cursor_execute", lambda *told: asked.append(told[2]))  # type: ignore[attr-defined]
    assert log.get("abé").run_id == "abé"
    assert log.get("aB").run_id == "aB"
    assert log.get("ac").run_id == "ac"
    with pytest.raises(UsageError, match="several runs begin with 'a'"):
        log.get("a")
    with direct(tmp_path / "log.db") as file:
        plans = [
            row[3]
            for statement in asked
            if "LIKE" in statement
            for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", ["a"] * statement.count("?"))
        ]
    assert plans and all("run_log USING INDEX" in plan and "run_id>?" in plan for plan in plans)


def test_a_server_that_goes_away_during_a_run_does_not_stop_it(
    tmp_path: Path, warnings_seen: pytest.LogCaptureFixture
) -> None:
    reached = True

    def connect() -> sqlite3.Connection:
        if not reached:
            raise CannotConnect("connection 'run_log' cannot reach it: refused", next_step="look at it")
        return sqlite3.connect(tmp_path / "log.db")

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.NullPool)
    log, slots = SqlRunLog(engine, "postgres://away"), SqlSlotStore(engine, "postgres://away")
    reached = False
    log.start(a_run())
    log.save_output("r1", "said")
    assert not log.finish("r1", "succeeded")
    assert len(warnings_seen.records) == 1 and "the run log postgres://away" in warnings_seen.text
    for read in (log.list, lambda: slots.open([Slot("orders", utc_now())])):
        with pytest.raises(CannotConnect, match="the run log postgres://away cannot reach it: refused"):
            read()


READER = """
import os, sys
from ematix_flow.state.local_stores import open_local_run_log, open_slots_file
from ematix_flow.state.runlog.base import run_log_location
open_local_run_log("memory://", env={}).list()  # imports what another user may not be able to import
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root may write everything
url = sys.argv[1]
with open_local_run_log(url, env={}, reading=True, read_only=True) as log:
    print([run.run_id for run in log.list()])
with open_slots_file(run_log_location(url, {}), read_only=True) as slots:
    print(slots.unfinished())
"""


@pytest.mark.parametrize("writer_is_active", [False, True])
def test_a_user_who_may_not_write_the_log_can_read_it(writer_is_active):
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter the folders of pytest
        path = Path(folder) / "runs.db"
        with open_local_run_log(f"sqlite:///{path}", env={}) as log:
            log.start(RunRecord("1", "orders", "dw.orders", "append"))
        with direct(path) as writer:
            if writer_is_active:
                writer.execute("INSERT INTO run_log_output VALUES ('1', 'text')")
                writer.commit()
            for file in Path(folder).iterdir():
                file.chmod(0o444)
            Path(folder).chmod(0o555)
            before = sorted(Path(folder).iterdir())
            assert len(before) == (3 if writer_is_active else 1)
            read = subprocess.run(
                [sys.executable, "-c", READER, f"sqlite:///{path}"],
                capture_output=True,
                text=True,
            )
            assert (read.stdout, read.stderr) == ("['1']\n[]\n", "")
            assert sorted(Path(folder).iterdir()) == before
            Path(folder).chmod(0o755)
