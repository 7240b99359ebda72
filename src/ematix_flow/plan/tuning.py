"""Choices made from the data and the machine. Each entry: what it looks at, what it sets, why."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.plan.definition import Choice


@dataclass(frozen=True)
class Shape:
    """What the entries look at."""

    path: str
    source: Capabilities
    target: Capabilities
    cores: int


def machine_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def read_tasks(shape: Shape) -> Choice | None:
    """How many tasks read the source at once."""
    if shape.path == "same_db":
        return None
    if not shape.source.parallel_read:
        return Choice("read tasks", "1", "the source offers no snapshot that several readers could share")
    if not shape.target.parallel_write:
        return Choice("read tasks", "1", "the target takes one writer, and each task writes what it reads")
    return Choice("read tasks", str(shape.cores), "one a core; all see one snapshot of the source")


def write_parts(shape: Shape) -> Choice | None:
    """Whether staging is written by one task or several."""
    if shape.path == "same_db" or shape.target.parallel_write:
        return None
    return Choice("staging parts", "1", "the target takes one writer")


CATALOG = (read_tasks, write_parts)


def choose(shape: Shape) -> tuple[Choice, ...]:
    return tuple(choice for entry in CATALOG if (choice := entry(shape)) is not None)


def value(choices: tuple[Choice, ...], name: str, default: int) -> int:
    return next((int(c.value) for c in choices if c.name == name), default)
