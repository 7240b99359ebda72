"""How a run shows its progress: the rate, the bar on a real terminal, the lines elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from ematix_flow.cli.run_views import LineView, choose_view
from ematix_flow.cli.throughput import describe_throughput, format_clock
from ematix_flow.observe.listener import Attempt, Progress
from ematix_flow.observe.throughput import Throughput

ATTEMPT = Attempt("orders", "r-1")


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = Throughput(0.0)
    pace.record(100.0, Progress(10, 1_000_000))  # the wait for the first rows does not count
    for second in range(1, 21):
        pace.record(100.0 + second, Progress(10 + 5 * second, 1_000_000 + 2_000_000 * second))
    assert (pace.rows_per_second, pace.bytes_per_second) == (5.0, 2_000_000.0)
    assert describe_throughput(pace) == "110 rows, 5/s, 41.0 MB, 2.0 MB/s"


def test_the_time_left_is_shown_when_the_source_knows_how_many_rows_there_are() -> None:
    pace = Throughput(0.0)
    pace.record(1.0, Progress(1_000, 0, 100_000))
    pace.record(2.0, Progress(2_000, 0, 100_000))
    assert describe_throughput(pace) == "2,000 rows, 1,000/s, 1:38 left"


def test_an_expectation_that_proves_wrong_is_dropped() -> None:
    pace = Throughput(0.0)
    pace.record(1.0, Progress(1_000, 0, 900))
    assert (pace.expected_rows, pace.seconds_left) == (None, None)
    assert describe_throughput(pace) == "1,000 rows, 1,000/s"


@pytest.mark.parametrize(("seconds", "shown"), [(0.2, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_a_time_is_shown_as_a_clock_shows_it(seconds: float, shown: str) -> None:
    assert format_clock(seconds) == shown


def test_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    view = LineView(["orders"], stream=io.StringIO())
    run = view.run_started(ATTEMPT)
    run.stage_started("db:orders", "copy")
    for _ in range(40):
        now[0] += 0.25
        run.progress("db:orders", Progress(int(now[0] - 100) * 1_000, 0))
    assert isinstance(view.stream, io.StringIO)
    lines = view.stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == "  orders: 5,000 rows, 1,000/s"


def test_with_several_targets_the_slowest_is_shown() -> None:
    view = LineView(["orders"], stream=io.StringIO())
    run = view.run_started(ATTEMPT)
    run.progress("db:a", Progress(50))
    run.progress("db:b", Progress(20))
    run.progress("db:a", Progress(70))
    assert run.throughput.progress.rows == 20  # type: ignore[attr-defined]


def test_a_stream_that_is_no_terminal_gets_no_bar() -> None:
    assert isinstance(choose_view(["orders"], stream=io.StringIO()), LineView)


BAR = """
import time
from ematix_flow.cli.run_views import choose_view
from ematix_flow.observe.listener import Attempt, Progress
from ematix_flow.observe.throughput import Throughput
view = choose_view(["orders", "customers"])
with view.display():
    view.started("orders")
    orders, customers = (view.run_started(Attempt(name, name)) for name in ("orders", "customers"))
    orders.stage_started("db:orders", "copy")
    customers.stage_started("db:customers", "transform")
    for rows in range(0, 50_001, 10_000):
        orders.progress("db:orders", Progress(rows, rows * 100, 100_000))
        time.sleep(0.15)
    orders.note("something worth saying")
    orders.run_finished(None, None)
    customers.run_finished(None, None)
print("the data")
"""


def on_terminal(code: str, columns: int = 100, **env: str) -> tuple[str, str]:
    """What a script wrote to stderr, which is a terminal, and to stdout, which is not."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stdin=slave,
        stderr=slave,
        text=True,
        env={**plain, "TERM": "xterm-256color", **env},
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                shown += (found := os.read(master, 65536))
            except OSError:  # the other side is closed
                break
            if not found:
                break
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(master)
    assert process.returncode == 0, shown.decode()
    return shown.decode(), out


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def test_a_terminal_shows_bars_with_rows_rate_bytes_and_time_left() -> None:
    shown, out = on_terminal(BAR)
    seen = plain(shown)
    assert re.search(r"orders +━+.* 0:00:0\d 50,000 rows, [\d,]+/s, 0:0\d left, 5\.0 MB, [\d.]+ MB/s", seen)
    assert re.search(r"customers +━+.* 0:00:0\d computing", seen)
    assert "note: orders: something worth saying" in seen
    assert re.search(r"pipelines +━+.* 0 of 2", seen)
    assert out == "the data\n"


def test_without_colour_the_bar_stays_and_its_colours_go() -> None:
    shown, _ = on_terminal(BAR, NO_COLOR="1")
    assert "50,000 rows" in shown
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown)


def test_a_narrow_terminal_keeps_the_bar_on_one_line() -> None:
    shown, _ = on_terminal(BAR, columns=60)
    lines = [line for line in re.split(r"\r\n|\n|\r", plain(shown)) if "rows" in line]
    assert lines and all(len(line.rstrip()) <= 60 for line in lines)
    assert "50,000 rows" in plain(shown)


def test_maintenance_shows_its_step_with_its_time(tmp_path: Path) -> None:
    code = """
import time
from ematix_flow.cli.step_progress import show_steps
with show_steps() as at:
    at("lake.orders"); time.sleep(0.3)
"""
    shown, _ = on_terminal(code)
    assert re.search(r"lake\.orders +0:00:00", plain(shown))
