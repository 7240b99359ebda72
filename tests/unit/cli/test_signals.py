"""SIGINT and SIGTERM end a command wherever they arrive."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from ematix_flow.cli.signals import interruptible, was_signalled


class Signalling:
    """An object that is signalled while it goes: Python ignores what its `__del__` raises."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_whose_error_python_ignores_interrupts_nevertheless(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), interruptible():
        Signalling()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.01)
    assert was_signalled()
    assert "Exception ignored" not in capsys.readouterr().err
    assert sys.unraisablehook is before


def test_other_ignored_errors_are_shown_as_before() -> None:
    seen: list[str] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda ignored: seen.append(str(ignored.exc_value))

    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    try:
        with interruptible():
            Broken()
    finally:
        sys.unraisablehook = before
    assert seen == ["broken"]
