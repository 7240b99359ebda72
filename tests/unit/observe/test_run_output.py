"""The output of a run is kept for that run, and still reaches every other receiver."""

from __future__ import annotations

import logging
import threading
import warnings

import pytest

from ematix_flow.observe.run_output import RunOutput

LOG = logging.getLogger("users.own")


def test_what_is_logged_is_kept_without_secrets() -> None:
    output = RunOutput()
    with output.capture():
        LOG.warning("careful with %s", "password=hunter2")
        try:
            raise ValueError("broken")
        except ValueError:
            LOG.exception("it failed")
        output.add_text("a note")
    LOG.warning("after it")
    text = output.text()
    assert "WARNING users.own: careful with password=***" in text
    assert "ERROR users.own: it failed\nTraceback" in text and "ValueError: broken" in text
    assert text.endswith("Z INFO a note\n") and "after it" not in text


@pytest.mark.filterwarnings("always")
def test_warnings_are_kept_and_still_shown() -> None:
    output, shown = RunOutput(), []
    before = warnings.showwarning
    warnings.showwarning = lambda message, *others, **named: shown.append(str(message))
    try:
        with output.capture():
            warnings.warn("it is old", DeprecationWarning, stacklevel=1)
        assert shown == ["it is old"]
    finally:
        warnings.showwarning = before
    assert "WARNING DeprecationWarning: it is old (" in output.text()
    assert warnings.showwarning is before


def test_runs_side_by_side_do_not_mix() -> None:
    outputs = [RunOutput() for _ in range(4)]
    together = threading.Barrier(len(outputs))

    def run(number: int) -> None:
        with outputs[number].capture():
            for turn in range(50):
                together.wait(30)
                LOG.warning("run %d turn %d", number, turn)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(outputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, output in enumerate(outputs):
        lines = output.text().splitlines()
        assert len(lines) == 50 and all(f"run {number} turn" in line for line in lines)


def test_a_thread_of_the_only_run_is_part_of_it() -> None:
    output = RunOutput()
    with output.capture():
        thread = threading.Thread(target=lambda: LOG.warning("from a thread"))
        thread.start()
        thread.join()
    assert "from a thread" in output.text()


def test_a_run_within_a_run_has_its_own_and_the_outer_goes_on() -> None:
    outer, inner = RunOutput(), RunOutput()
    with outer.capture():
        with inner.capture():
            LOG.warning("inner")
        LOG.warning("outer")
    assert "inner" in inner.text() and "inner" not in outer.text() and "outer" in outer.text()


def test_only_the_end_of_a_long_story_is_kept() -> None:
    output = RunOutput(most=1_000)
    for number in range(500):
        output.add_text(f"line {number}")
    kept = output.text().splitlines()
    assert kept[-1].endswith("line 499") and len(output.text()) <= 1_000 and len(kept) > 10


def test_a_warning_that_nobody_handles_is_printed_as_python_does(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    last = logging.lastResort
    assert last is not None
    try:
        with RunOutput().capture():
            LOG.warning("printed all the same")
            LOG.info("not this")
    finally:
        root.handlers = handlers
    assert capsys.readouterr().err == "printed all the same\n"


def test_a_library_that_logs_wrongly_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    output = RunOutput()
    with output.capture():
        LOG.warning("%d rows", "many")
    assert "WARNING users.own: %d rows (TypeError:" in output.text()
