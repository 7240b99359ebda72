"""The state of a version: layout, files, ledger and watermarks, in one JSON file.

It becomes visible together with the data. Old ledger entries are sealed into separate files that later
versions share, so that a commit does not rewrite the whole ledger.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ematix_flow.backends.base import LedgerEntry
from ematix_flow.backends.objectstore.layout.file_layout import FileLayout
from ematix_flow.backends.stores.ledger_records import (
    StoredWatermark,
    entry_from_json,
    entry_to_json,
    find_watermark,
    with_watermark,
)
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.watermarks import Watermark

STATE_FILE = "state.json"
STATE_VERSION = 1
SEALED_ENTRIES = 1_000


@dataclass(frozen=True)
class FileFacts:
    """What is known of a data file. ``highest`` is its highest value of each watermark column."""

    rows: int
    highest: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplacedVersion:
    """An earlier version that running readers may still be reading."""

    version: str
    replaced_at: dt.datetime


@dataclass(frozen=True)
class PendingChange:
    """Files of a quarantine table that a load of its target has added, and those that it removes.

    It counts once the state of the target has its token.
    """

    target: str
    token: str
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PendingChange:
        return cls(value["target"], value["token"], tuple(value["added"]), tuple(value["removed"]))


@dataclass(frozen=True)
class TableState:
    """The state of one version of a table."""

    table: str
    layout: FileLayout
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    ledger: tuple[LedgerEntry, ...] = ()  # the newest last; older ones are sealed
    sealed: int = 0
    sealed_as: tuple[str, ...] = ()  # the sealed files, where their number alone does not name them
    watermarks: tuple[StoredWatermark, ...] = ()
    replaced: tuple[ReplacedVersion, ...] = ()
    adopted: tuple[str, ...] = ()  # a user's own files among ours
    begun: bool = False  # in a bucket: the first load has not committed; for readers there is no table
    pending: tuple[PendingChange, ...] = ()  # of a quarantine table
    quarantines: tuple[tuple[str, str], ...] = ()  # names, and the token of the last commit that changed each

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        return find_watermark(self.watermarks, pipeline, target, column)

    def with_watermark(self, pipeline: str, target: str, watermark: Watermark) -> TableState:
        return replace(self, watermarks=with_watermark(self.watermarks, pipeline, target, watermark))

    def to_json(self) -> dict[str, Any]:
        value = {
            "version": STATE_VERSION,
            "table": self.table,
            "layout": self.layout.to_json(),
            "files": {name: asdict(facts) for name, facts in self.files.items()},
            "watermarks": [w.to_json() for w in self.watermarks],
            "replaced": [{"version": r.version, "at": r.replaced_at.isoformat()} for r in self.replaced],
            "sealed": self.sealed,
            "ledger": [entry_to_json(entry) for entry in self.ledger],
        }
        rare = {
            "sealed_as": list(self.sealed_as),
            "adopted": list(self.adopted),
            "begun": self.begun,
            "pending": [asdict(change) for change in self.pending],
            "quarantines": dict(self.quarantines),
        }
        return {**value, **{name: some for name, some in rare.items() if some}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TableState:
        return cls(
            table=value["table"],
            layout=FileLayout.from_json(value["layout"]),
            files={name: FileFacts(**facts) for name, facts in value["files"].items()},
            ledger=tuple(entry_from_json(entry) for entry in value["ledger"]),
            sealed=value["sealed"],
            sealed_as=tuple(value.get("sealed_as", ())),
            adopted=tuple(value.get("adopted", ())),
            begun=value.get("begun", False),
            pending=tuple(PendingChange.from_json(change) for change in value.get("pending", ())),
            quarantines=tuple(value.get("quarantines", {}).items()),
            watermarks=tuple(StoredWatermark.from_json(w) for w in value["watermarks"]),
            replaced=tuple(
                ReplacedVersion(r["version"], dt.datetime.fromisoformat(r["at"])) for r in value["replaced"]
            ),
        )


def read_state(version: Path) -> TableState:
    """Read the state in a version's folder; TargetFailed if it is damaged."""
    path = version / STATE_FILE
    try:
        return parse_state(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        raise _unreadable_error(str(path), "it is missing") from error
    except OSError as error:
        raise _unreadable_error(str(path), error.strerror or str(error)) from error


def parse_state(text: str, shown: str) -> TableState:
    """Parse a state file; TargetFailed, which names the file as ``shown``, if it is damaged."""
    try:
        value = json.loads(text)
        found = value["version"]
        if found == STATE_VERSION:
            return TableState.from_json(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable_error(shown, f"it is damaged ({type(error).__name__}: {error})") from error
    raise _unreadable_error(shown, f"it is of version {found!r}, and this release knows {STATE_VERSION}")


def _unreadable_error(shown: str, why: str) -> TargetFailed:
    return TargetFailed(
        f"cannot read the table's state {shown}: {why}",
        state="the data files are unchanged and readable, but it is not known which batches they hold",
        next_step="restore the file from a backup, or move the table's folder away and load it again",
    )


# ------------------------------------------------------------------ the ledger


def sealed_file(number: int) -> str:
    return f"ledger-{number:06d}.jsonl"


def sealed_lines(entries: tuple[LedgerEntry, ...]) -> str:
    return "".join(json.dumps(entry_to_json(entry)) + "\n" for entry in entries)


ReadSealed = Callable[[int], str]
"""The lines of the sealed file of this number, from 1 on."""


def sealed_reader(version: Path) -> ReadSealed:
    """A reader of the sealed ledger files in a version's folder."""
    return lambda number: (version / sealed_file(number)).read_text(encoding="utf-8")


def ledger_entries(
    sealed: ReadSealed, state: TableState, pipeline: str, target: str
) -> Iterator[LedgerEntry]:
    """The committed batches of a pipeline and target, newest first."""
    for entry in reversed(state.ledger):
        if (entry.pipeline, entry.target) == (pipeline, target):
            yield entry
    for number in range(state.sealed, 0, -1):
        for line in reversed(sealed(number).splitlines()):
            entry = entry_from_json(json.loads(line))
            if (entry.pipeline, entry.target) == (pipeline, target):
                yield entry


def ledger_has_batch(
    sealed: ReadSealed, state: TableState, pipeline: str, target: str, batch_key: str
) -> bool:
    """Whether this batch is already committed."""
    wanted = (pipeline, target, batch_key)
    if any((e.pipeline, e.target, e.batch_key) == wanted for e in state.ledger):
        return True
    needle = json.dumps(batch_key)
    for number in range(1, state.sealed + 1):
        text = sealed(number)
        if needle in text:
            entries = (entry_from_json(json.loads(line)) for line in text.splitlines() if needle in line)
            if any((e.pipeline, e.target, e.batch_key) == wanted for e in entries):
                return True
    return False
