"""A small file next to a state that says how large it is and how far it has come.

The state itself can be opened by the running stream only. The file is replaced with each batch, so
``flow state show`` reads it at any time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ematix_flow.state.private_files import make_private_folders, write_private

_log = logging.getLogger(__name__)
_FILE = "status.json"


@dataclass(frozen=True)
class StateStatus:
    """The state of one query of a stream. Event times are in microseconds since 1970."""

    stream: str
    query: str  # the targets that share the query
    store: str
    operator: str
    format: int
    version: int | None
    rows: int
    bytes: int
    watermark: int | None
    border: int | None  # what ends before it takes no more rows
    next_due: int | None  # the watermark at which the next rows are loaded
    changed_at: float  # seconds since 1970

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> StateStatus | None:
        """None if another version has written the text and it lacks something."""
        try:
            found: dict[str, Any] = json.loads(text)
            numbers = (found["rows"], found["bytes"], found["changed_at"])
            if not all(isinstance(number, (int, float)) for number in numbers):
                return None
            return cls(**{each.name: found[each.name] for each in fields(cls)})
        except (ValueError, KeyError, TypeError):
            return None


def write_status(folder: Path, status: StateStatus) -> None:
    make_private_folders(folder)
    aside = folder / f".{_FILE}"
    write_private(aside, status.to_text())
    aside.replace(folder / _FILE)


def remove_status(folder: Path) -> None:
    (folder / _FILE).unlink(missing_ok=True)


def read_status(folder: Path) -> StateStatus | None:
    """The status in the folder of a state; None if it has none that can be read."""
    try:
        return StateStatus.from_text((folder / _FILE).read_text())
    except (OSError, UnicodeDecodeError):
        return None


def read_statuses(stream_folder: Path) -> Iterator[StateStatus]:
    """The states in a stream's folder, one for each of its queries."""
    for path in sorted(stream_folder.glob(f"checkpoints/[!.]*/*/{_FILE}")):
        try:
            found = StateStatus.from_text(path.read_text())
        except (
            OSError,
            UnicodeDecodeError,
        ) as error:  # the stream replaces its folder, or the file is damaged
            _log.warning("%s cannot be read: %s", path, error)
            continue
        if found is not None:
            yield found
