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

    @property
    def has_begun(self) -> bool:
        return self.last_batch is not None

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
        if not self.has_begun:
            return [f"  position  {of}new, no batch is loaded yet"]
        lines = [f"  position  {of}continues after batch {self.last_batch} of {self.checkpoint}"]
        if self.state_rows is not None:
            seen = "" if self.watermark is None else f", watermark {self.watermark.isoformat()}"
            rows = "1 row" if self.state_rows == 1 else f"{self.state_rows:,} rows"
            lines.append(f"              the state has {rows} and {self.state_bytes:,} bytes{seen}")
        lines += [
            f"              {label} is new: it gets what comes from now on" for label in self.new_targets
        ]
        return lines
