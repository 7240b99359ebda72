"""What a query of a stream was declared as when it last ran, in a file of its checkpoint.

A start compares it with the declaration of now: `declared_changes` refuses what the checkpoint and the state
cannot continue. A checkpoint that an earlier version has written has no such file.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ematix_flow.errors import EngineError
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.private_files import write_private

RECORD_FILE = "declaration.json"
CHANGE_ORDER = ("envelope", "ts_field")
DELETE_OPTIONS = ("delete_mode", "soft_delete_column")
_FORMAT = 1


@dataclass(frozen=True)
class LoadedTarget:
    """How a target was last loaded."""

    mode: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeclarationRecord:
    """``operator`` are the options of the window or join that its state depends on; None without either.

    ``store`` is the kind of the state store, and ``state_id`` the id in the state's file. ``targets`` are
    those that have been loaded, by their labels; ``declared`` are all that the stream may create.
    """

    operator: Mapping[str, Any] | None = None
    store: str | None = None
    state_id: str | None = None
    cdc: Mapping[str, Any] | None = None  # what orders the changes of a key, and what a delete does
    sources: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()  # of the sources' positions
    targets: Mapping[str, LoadedTarget] = field(default_factory=dict)
    declared: tuple[str, ...] = ()

    def to_text(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_text(cls, text: str) -> DeclarationRecord:
        found = json.loads(text)
        return cls(
            operator=found["operator"],
            store=found["store"],
            state_id=found["state_id"],
            cdc=found["cdc"],
            sources=tuple(found["sources"]),
            kinds=tuple(found["kinds"]),
            declared=tuple(found["declared"]),
            targets={
                label: LoadedTarget(each["mode"], tuple(each["keys"]))
                for label, each in found["targets"].items()
            },
        )


def declared_record(spec: StreamSpec, kinds: Sequence[str] = ()) -> DeclarationRecord:
    """The record of a stream as it is declared now, without what only a run knows.

    ``kinds`` are those of the sources' connections.
    """
    names = (*CHANGE_ORDER, *DELETE_OPTIONS)
    cdc = None if spec.cdc is None else {name: getattr(spec.cdc, name) for name in names}
    return DeclarationRecord(
        operator=operator_options(spec),
        store=(spec.state_store.kind if spec.state_store else "checkpoint") if spec.is_stateful else None,
        cdc=cdc,
        sources=tuple(source.query for source in spec.sources),
        kinds=tuple(kind.removesuffix("_local").removesuffix("_s3") for kind in kinds),
    )


def operator_options(spec: StreamSpec) -> dict[str, Any] | None:
    """The options of the window or join that decide what its state holds, by their names."""
    if spec.join is not None:
        join = spec.join
        left, right = spec.joined_sources
        return {
            "join=": join.kind,
            "left_source": spec.sources[left].query,
            "right_source": spec.sources[right].query,
            "left_keys": list(join.left_keys),
            "right_keys": list(join.right_keys),
            "min_delta_ms": join.min_delta,
            "max_delta_ms": join.max_delta,
            "event_time_column": join.event_time_column,
        }
    if spec.window is None:
        return None
    window = spec.window
    length = {"gap_ms": window.gap_ms} if window.is_session else {"duration_ms": window.duration_ms}
    return {
        "window=": window.kind,
        **length,
        **({"hop_ms": window.hop_ms} if window.kind == "hopping" else {}),
        "event_time_column": window.event_time_column,
        "group_by": list(window.group_by),
        "aggregations": [
            each.agg if each.column is None else f"{each.agg} of {each.column}"
            for each in window.aggregations
        ],
    }


def read_record(checkpoint: Path) -> DeclarationRecord | None:
    """The record of a checkpoint's folder; None if it has none."""
    path = checkpoint / RECORD_FILE
    try:
        return DeclarationRecord.from_text(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(
            f"{path} is damaged: {error}",
            state="nothing was loaded",
            next_step="bring the stream's folder back from a backup; or remove this file, if the stream is "
            "declared as it was when it last ran",
        ) from error


def write_record(checkpoint: Path, record: DeclarationRecord) -> None:
    """Replace the record if it differs."""
    text, path = record.to_text(), checkpoint / RECORD_FILE
    if path.exists() and path.read_text() == text:
        return
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_private(aside, text)
    aside.replace(path)
