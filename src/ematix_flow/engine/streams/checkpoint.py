"""Reads a query's checkpoint: the position that each batch ends at, and which batches are committed.

Spark writes a batch's positions before the batch runs, and its commit afterwards. This module only reads
these files, with one exception: it writes a lost checkpoint again from the positions in a target's ledger.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ematix_flow.backends.messages.base import RESOURCE_IDS
from ematix_flow.errors import EngineError
from ematix_flow.state.private_files import make_private_folders, write_private

_RESOURCE_IDS_FILE = "place-ids.json"
NOTHING = "-"  # Spark's mark for a source that has no position yet


class Checkpoint:
    """One query's checkpoint, in a folder that this process reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def is_new(self) -> bool:
        """Whether no batch was ever planned."""
        return not _batch_numbers(self.folder / "offsets")

    @property
    def state_folder(self) -> Path:
        """The state of windows. It moves with the checkpoint, which it belongs to."""
        return self.folder / "windows"

    def last_planned(self) -> int | None:
        """The newest batch whose positions are written, committed or not."""
        return max(_batch_numbers(self.folder / "offsets"), default=None)

    def query_id(self) -> str:
        """The query's permanent id, which is part of every batch key."""
        try:
            return str(json.loads((self.folder / "metadata").read_text())["id"])
        except (OSError, ValueError, KeyError) as error:
            raise self._damaged_error("metadata") from error

    def positions(self, batch: int) -> tuple[str | None, ...]:
        """The position of each source after this batch, as its JSON; None before its first message."""
        try:
            lines = (self.folder / "offsets" / str(batch)).read_text().splitlines()
        except OSError as error:
            raise self._damaged_error(f"offsets/{batch}") from error
        if len(lines) < 3 or lines[0] != "v1":
            raise self._damaged_error(f"offsets/{batch}")
        return tuple(None if line == NOTHING else line for line in lines[2:])

    def positions_before(self, batch: int) -> tuple[str | None, ...]:
        """The position of each source when this batch began; empty for the first batch."""
        return (
            self.positions(batch - 1)
            if batch > 0 and (self.folder / "offsets" / str(batch - 1)).exists()
            else ()
        )

    def start_positions(self, batch: int) -> tuple[str | None, ...]:
        """As `positions_before`, but for a source without a position its first offset, if the checkpoint has
        it.
        """
        known = self.positions_before(batch) or (None,) * len(self.positions(batch))
        if batch > 0 and not (self.folder / "offsets" / str(batch - 1)).exists():
            return known
        return tuple(
            self._first_position(place) if position is None else position
            for place, position in enumerate(known)
        )

    def _first_position(self, place: int) -> str | None:
        """The first offset of a source, in the format of Kafka's connector: a zero byte, a version, JSON."""
        try:
            read = (self.folder / "sources" / str(place) / "0").read_bytes().lstrip(b"\0").decode()
        except (OSError, ValueError):
            return None
        version, _, position = read.partition("\n")
        return position.strip() if version == "v1" and position.lstrip().startswith("{") else None

    def resource_ids(self, place: int) -> dict[str, str]:
        """The ids of a source's topics, as `store_resource_ids` stored them."""
        try:
            return dict(json.loads((self.folder / _RESOURCE_IDS_FILE).read_text())[place])
        except (OSError, ValueError, IndexError, TypeError):
            return {}  # an old checkpoint without ids

    def store_resource_ids(self, ids: Sequence[Mapping[str, str]]) -> None:
        """Store the topics' ids with the checkpoint, for targets without a ledger."""
        aside = self.folder / f"{_RESOURCE_IDS_FILE}.tmp"
        with aside.open("w") as file:
            file.write(json.dumps([dict(each) for each in ids]))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.folder / _RESOURCE_IDS_FILE)

    def last_committed(self) -> int | None:
        """The newest batch that Spark has marked as committed."""
        return max(_batch_numbers(self.folder / "commits"), default=None)

    def set_aside(self) -> None:
        """Rename the folder so that Spark does not find it. The next start creates a new checkpoint."""
        self.folder.rename(self.folder.with_name(f".{self.folder.name}.{uuid.uuid4().hex}"))

    def _damaged_error(self, name: str) -> EngineError:
        return EngineError(
            f"the checkpoint {self.folder} is damaged: {name} cannot be read",
            state="the targets hold the batches that their ledgers record",
            next_step="move that folder away and start again: the stream continues from the ledger",
        )


def write_checkpoint(folder: Path, positions: Sequence[str]) -> None:
    """Write a checkpoint of a query that has read up to ``positions``. ``folder`` must not exist.

    Some sources resume only from an offset in a checkpoint, not from an option: an offset of Delta may be
    inside a version. ``positions`` are the offsets of the sources, in the order in which the query reads
    them. The query gets a new id, and its next batch is number 1. The checkpoint holds no state of windows
    and joins.
    """
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    for name in ("offsets", "commits"):
        make_private_folders(aside / name)
    write_private(aside / "metadata", json.dumps({"id": str(uuid.uuid4())}))
    facts = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    write_private(aside / "offsets" / "0", "\n".join(["v1", facts, *positions]))
    write_private(aside / "commits" / "0", "v1\n" + json.dumps({"nextBatchWatermarkMs": 0}))
    aside.rename(folder)


def _batch_numbers(folder: Path) -> list[int]:
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    except FileNotFoundError:
        return []


def join_positions(positions: tuple[str | None, ...]) -> str:
    """The positions of all sources as one text, for a ledger."""
    return json.dumps([None if position is None else json.loads(position) for position in positions])


def split_positions(text: str, sources: int) -> tuple[str | None, ...]:
    """The position of each source from a ledger's text; all None if it has another number of sources."""
    try:
        found = json.loads(text)
    except ValueError:
        return (None,) * sources
    if not isinstance(found, list) or len(found) != sources:
        return (None,) * sources
    return tuple(None if position is None else json.dumps(position) for position in found)


def lowest_position(positions: Sequence[str]) -> str:
    """The lowest position of each partition. A partition that one position lacks is left out."""
    return json.dumps(_lowest([json.loads(position) for position in positions]))


def _lowest(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(isinstance(value, dict) for value in values):
        if "reservoirVersion" in first:  # Delta: compare version and index together
            return min(values, key=lambda value: (value["reservoirVersion"], value["index"]))
        shared = [key for key in first if all(key in value for value in values) and key != RESOURCE_IDS]
        found = {key: _lowest([value[key] for value in values]) for key in shared}
        ids = _agreed_ids([value[RESOURCE_IDS] for value in values if RESOURCE_IDS in value])
        return {**found, RESOURCE_IDS: ids} if ids else found
    if all(isinstance(value, list) and len(value) == len(first) for value in values):
        return [_lowest([value[place] for value in values]) for place in range(len(first))]
    return None if any(value is None for value in values) else min(values)


def _agreed_ids(values: Sequence[Mapping[str, str | None]]) -> dict[str, str | None]:
    """The id of each topic; None if the positions disagree."""
    found: dict[str, str | None] = {}
    for value in values:
        for name, known in value.items():
            found[name] = known if found.get(name, known) == known else None
    return found
