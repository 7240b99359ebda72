"""How far one query of a stream has come, as a plan shows it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class QueryProgress:
    """``label`` names the targets of the query; ``last_batch`` is None before its first batch."""

    label: str
    checkpoint: str
    last_batch: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: dt.datetime | None = None
    new_targets: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "targets": self.label,
            "checkpoint": self.checkpoint,
            "last_batch": self.last_batch,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "watermark": None if self.watermark is None else self.watermark.isoformat(),
            "new_targets": list(self.new_targets),
        }

    def lines(self) -> list[str]:
        """The lines of a plan as text."""
        of = "" if self.label == "all" else f"{self.label}: "
        if self.last_batch is None:
            return [f"  position  {of}new, no batch is loaded yet"]
        lines = [f"  position  {of}continues after batch {self.last_batch} of {self.checkpoint}"]
        if self.state_rows is not None:
            seen = "" if self.watermark is None else f", watermark {self.watermark.isoformat()}"
            lines.append(
                f"              the state has {self.state_rows:,} rows and {self.state_bytes:,} bytes{seen}"
            )
        lines += [
            f"              {label} is new: it gets what comes from now on" for label in self.new_targets
        ]
        return lines
