"""Tuning rules: each looks at the shape of a load and sets one value, with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.plan.decisions import Decision

_PART_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class LoadShape:
    """What the tuning rules look at."""

    path: str
    source: Capabilities
    target: Capabilities
    cores: int
    source_bytes: int | None = None  # size of the files that the query may read, if known
    partition_by: tuple[str, ...] = ()


def read_tasks(shape: LoadShape) -> Decision | None:
    """How many tasks read the source at once."""
    if shape.path == "same_db":
        return None
    if not shape.source.parallel_read:
        return Decision("read tasks", "1", "the source offers no snapshot that several readers could share")
    if not shape.target.parallel_write:
        return Decision("read tasks", "1", "the target takes one writer, and each task writes what it reads")
    return Decision("read tasks", str(shape.cores), "one a core; all see one snapshot of the source")


def write_parts(shape: LoadShape) -> Decision | None:
    """The most tasks that write staging."""
    if shape.path == "same_db":
        return None
    if not shape.target.parallel_write:
        return Decision("staging parts", "1", "the target takes one writer")
    if not shape.target.file_bytes or shape.path != "spark":
        return None
    if shape.source_bytes is None:
        return None
    parts = max(1, shape.source_bytes // _PART_BYTES)
    why = f"each of at least {_format_size(_PART_BYTES)} of the source's {_format_size(shape.source_bytes)}"
    return Decision("staging parts", str(parts), f"{why}: a load leaves no small files")


def partition_in_one_task(shape: LoadShape) -> Decision | None:
    """Whether one task writes all rows of a partition."""
    if shape.path != "spark" or not shape.target.file_bytes or not shape.partition_by:
        return None
    why = "one task writes all rows of a partition: no file for each task in each of them"
    return Decision("rows together by", ", ".join(shape.partition_by), why)


def file_size(shape: LoadShape) -> Decision | None:
    """The size at which a new data file begins."""
    if not shape.target.file_bytes:
        return None
    why = "large enough to be read fast, small enough for several readers"
    return Decision("file size", f"up to {_format_size(shape.target.file_bytes)}", why)


def _format_size(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MB" if size >= 1 << 20 else f"{size / 1024:,.0f} KB"


TUNING_RULES = (read_tasks, write_parts, partition_in_one_task, file_size)


def choose_tuning(shape: LoadShape) -> tuple[Decision, ...]:
    return tuple(decision for entry in TUNING_RULES if (decision := entry(shape)) is not None)


def tuned_value(decisions: tuple[Decision, ...], name: str, default: int) -> int:
    return next((int(c.value) for c in decisions if c.name == name), default)
