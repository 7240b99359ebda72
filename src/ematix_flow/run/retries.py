"""The delay before the next attempt at a pipeline, by its retry policy."""

from __future__ import annotations

import random

from ematix_flow.spec.pipelines import RetryPolicy

MAX_JITTER = 1.1  # a retry delay is at most this much longer


def retry_delay(policy: RetryPolicy, failures: int, rng: random.Random) -> float:
    """Return the seconds before the next attempt, spread by a tenth so that many do not start at once."""
    return policy.delay_seconds(failures) * rng.uniform(1.0, MAX_JITTER)
