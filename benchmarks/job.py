"""What a contestant's process reads and writes: a job file, and a file of marks."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.datasets import DATASETS, Dataset
from benchmarks.endpoint import Endpoint


@dataclass(frozen=True)
class Job:
    """One or two loads: the rows of a table in the source into that table in each of the targets."""

    source: Endpoint
    targets: tuple[Endpoint, ...]
    jars: tuple[str, ...]
    cores: int
    marks: str
    table: str = "orders"
    rows: int = 0
    options: Mapping[str, str] = field(default_factory=dict)  # of one kind of benchmark

    @property
    def dataset(self) -> Dataset:
        return DATASETS[self.table]

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Job:
        told = json.loads(file.read_text(encoding="utf-8"))
        endpoints = {
            "source": Endpoint(**told["source"]),
            "targets": tuple(Endpoint(**target) for target in told["targets"]),
            "jars": tuple(told["jars"]),
        }
        return cls(**{**told, **endpoints})

    def mark(self, name: str, **details: Any) -> None:
        """Record that a point is reached now. The clock is the machine's, the same in every process."""
        line = json.dumps({"name": name, "at": time.monotonic(), "details": details}, default=str)
        with Path(self.marks).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@dataclass(frozen=True)
class Mark:
    name: str
    at: float
    details: Mapping[str, Any]


def read_marks(file: Path) -> dict[str, Mark]:
    """The marks of the process so far, by name."""
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: Mark(**line) for line in lines}
