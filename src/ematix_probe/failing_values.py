"""Whether failing rows may be shown. They hold values of the data, which may be personal."""

from __future__ import annotations

import os

SAMPLES_VARIABLE = "EMATIX_PROBE_SAMPLES"


def are_samples_wanted() -> bool:
    """Whether samples of failing rows are read. Any value of the variable but a "yes" turns them off."""
    return os.environ.get(SAMPLES_VARIABLE, "").strip().lower() in ("", "1", "true", "yes", "on")


def is_figure(value: object) -> bool:
    """Whether it is a number, which a measure may show; a text is the value of a single row."""
    return not isinstance(value, (str, bytes, bytearray))
