"""The folder of a stream: its checkpoints, its spools, and the columns inferred from its first messages."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ematix_flow.errors import ConfigError
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.state.private_files import open_private
from ematix_flow.state.state_root import ENVIRONMENT, absolute_path, private_directory, state_root


class StreamFolder:
    """One stream's folder. ``query`` is a part of the stream with its own checkpoint."""

    def __init__(self, folder: Path, chosen_by: str = ENVIRONMENT) -> None:
        self.folder, self._chosen_by = folder, chosen_by

    def checkpoint(self, query: str) -> Path:
        return self.folder / "checkpoints" / _folder_name(query)

    def spool(self, source: int) -> Path:
        return self.folder / "spools" / str(source)

    def columns_file(self, source: int | None = None) -> Path:
        """The file for the columns of the stream, or of one source of a join."""
        return self.folder / ("columns.json" if source is None else f"columns-{source}.json")

    def create(self) -> None:
        private_directory(self.folder, chosen_by=self._chosen_by, tighten=self._chosen_by == ENVIRONMENT)
        for inside in ("checkpoints", "spools"):  # Spark writes into them by the umask
            private_directory(self.folder / inside, chosen_by=self._chosen_by, tighten=True)

    def pinned_columns(self, source: int | None = None) -> tuple[ColumnSpec, ...] | None:
        """The columns inferred from the first messages, so that a restart uses the same ones."""
        file = self.columns_file(source)
        try:
            text = file.read_text()
        except FileNotFoundError:
            return None
        try:
            return tuple(ColumnSpec.from_json(column) for column in json.loads(text)["columns"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{file} is damaged: {error}",
                next_step="remove it: the columns are then inferred again from the next messages",
            ) from error

    def pin_columns(self, columns: Sequence[ColumnSpec], source: int | None = None) -> None:
        text = json.dumps({"columns": [column.to_json() for column in columns]}, indent=1)
        file = self.columns_file(source)
        aside = file.with_suffix(".tmp")
        with open_private(aside, "w") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
        aside.replace(file)


def stream_folder_for(spec: StreamSpec) -> StreamFolder:
    """The folder below the state root, or the one that ``checkpoint=`` names."""
    if spec.checkpoint is not None:
        if "://" in spec.checkpoint and not spec.checkpoint.startswith("file://"):
            raise ConfigError(
                f"checkpoint={spec.checkpoint!r} is not a folder of this machine",
                where=spec.where,
                next_step="give a folder that driver and executors see; on a cluster a shared one",
            )
        return StreamFolder(absolute_path(spec.checkpoint.removeprefix("file://"), os.environ), "checkpoint=")
    return StreamFolder(state_root(os.environ) / "streams" / _folder_name(spec.name))


def _folder_name(name: str) -> str:
    """A unique folder name that resembles ``name``."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60].strip(".") or "_"
    return plain if plain == name else f"{plain}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
