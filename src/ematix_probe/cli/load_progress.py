"""Shows the progress of a load probe while it runs: a live line on a terminal, else a line now and then."""

from __future__ import annotations

from ematix_probe.load.progress import LiveProgress, PlainProgress, progress_for


def shown_progress(name: str) -> LiveProgress | PlainProgress:
    """What to call with the progress of the load of this name, as a context manager."""
    return progress_for(name)
