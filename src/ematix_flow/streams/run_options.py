"""The options of one run of a stream, as `StreamingPipeline.run` and `StreamingPipeline.start` take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.streams.restarts import RestartPolicy

if TYPE_CHECKING:
    from ematix_flow.engine.spark.settings import EngineSettings
    from ematix_flow.observe.stream_listener import StreamListener


@dataclass(frozen=True)
class StreamRunOptions:
    """How a stream runs. With ``once`` it loads what is there now and ends."""

    once: bool = False
    metrics_port: int | None = None
    restart_on_error: bool = False
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    max_restarts: int | None = None
    reset_backoff_after_secs: float = 60
    run_log: str | None = None
    engine: str | EngineSettings | None = None
    watch: StreamListener | None = None

    def restart_policy(self) -> RestartPolicy:
        """Return the policy for restarts. Raises ConfigError if the options contradict each other."""
        return RestartPolicy(
            initial_backoff_ms=min(self.initial_backoff_ms, self.max_backoff_ms),
            max_backoff_ms=self.max_backoff_ms,
            max_restarts=self.max_restarts if self.restart_on_error else 0,
            reset_backoff_after_seconds=self.reset_backoff_after_secs,
        )
