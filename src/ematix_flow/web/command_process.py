"""Runs a command of `flow` in its own process, for what needs drivers or may take long.

None of its libraries stays in the server, and a command that does not end is ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.errors import FlowError
from ematix_flow.web.answers import Refused


def run_command(
    arguments: Sequence[str], shown: str, longest: float, variables: Mapping[str, str] | None = None
) -> Any:
    """Return the JSON that a command writes. Raises the refusal 503 with its error if it fails.

    ``shown`` is the command as a person types it. Secrets belong into ``variables``: others see arguments.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ematix_flow", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=longest,
            check=False,
            env={**os.environ, **(variables or {})},
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise Refused(503, _no_answer(shown, f"it did not end within {longest:g} s")) from error
    except (OSError, ValueError) as error:
        raise Refused(503, _no_answer(shown, type(error).__name__)) from error
    if isinstance(found, dict) and "error" in found:
        problem = found["error"]
        raise Refused(503, FlowError(problem["what"], state=problem["state"], next_step=problem["next"]))
    return found


def _no_answer(shown: str, why: str) -> FlowError:
    return FlowError(
        f"{shown} gave no answer: {why}", state="nothing was changed", next_step=f"{shown}  shows why"
    )
