"""The stores next to the run log that a running stream uses: requests about it, and its samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ematix_flow.backends.state_stores.run_logs import open_actions, open_samples
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.samples.base import SampleStore


@dataclass(frozen=True)
class StreamStores:
    """How the stores are opened. Each run of a stream opens its own."""

    open_actions: Callable[[], ActionStore]
    open_samples: Callable[[], SampleStore]

    @classmethod
    def at(cls, run_log: str | None) -> StreamStores:
        """Return the stores next to the run log at this URL; None: the one that the environment names."""
        return cls(
            partial(open_actions, run_log, env=os.environ, keep_open=True),
            partial(open_samples, run_log, env=os.environ, keep_open=True),
        )
