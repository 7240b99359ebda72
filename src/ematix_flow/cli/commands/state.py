"""``flow state``: the state that windows and joins of streams keep."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.local_time import format_local_time, local_zone_name
from ematix_flow.cli.options import ModuleOption, OutputOption
from ematix_flow.cli.output import OutputColumn, write_json, write_table
from ematix_flow.cli.project import complete_streams, configured_module, load_project
from ematix_flow.cli.terminal import say
from ematix_flow.errors import UnknownName, did_you_mean

if TYPE_CHECKING:
    from ematix_flow.engine.streams.state.status import StateStatus
    from ematix_flow.spec.streams import StreamSpec

app = new_app("Show the state that windows and joins of streams keep.")


@app.command("show")
def show_state(
    stream: Annotated[
        str | None,
        typer.Argument(
            metavar="STREAM", help="Only this stream.", show_default=False, autocompletion=complete_streams
        ),
    ] = None,
    module: ModuleOption = None,
    output: OutputOption = "text",
) -> None:
    """Show how large the state of each stream is, and how far its event time has come.

    With a module: the state of its streams. Otherwise: every state below the state folder. The values are
    those after the last batch; the stream may be running.
    """
    found = _declared_states(stream, module) if configured_module(module) else _local_states(stream)
    if output == "json":
        write_json([_as_json(status) for status in found])
        return
    if not found:
        say("no stream has a state" if stream is None else f"stream {stream!r} has no state")
        return
    zone = local_zone_name()
    columns = (
        OutputColumn("stream"),
        OutputColumn("targets"),
        OutputColumn("state of", wraps=True),
        OutputColumn("store"),
        OutputColumn("rows", right=True),
        OutputColumn("bytes", right=True),
        OutputColumn(f"watermark ({zone})"),
        OutputColumn(f"takes rows from ({zone})"),
        OutputColumn(f"next due ({zone})"),
        OutputColumn("version", right=True),
        OutputColumn(f"changed ({zone})"),
    )
    write_table(columns, [_row(status) for status in found])


def _declared_states(stream: str | None, module: str | None) -> list[StateStatus]:
    registry = load_project(module)
    names = list(registry.streams) if stream is None else [stream]
    return [status for name in names for status in _states_of(registry.stream(name).spec)]


def _states_of(spec: StreamSpec) -> Iterable[StateStatus]:
    from ematix_flow.engine.streams.state.status import StateStatus, read_statuses
    from ematix_flow.engine.streams.stream_folder import stream_folder_for

    if spec.state_store is None or spec.state_store.kind != "postgres":
        return list(read_statuses(stream_folder_for(spec).folder))
    from ematix_flow.backends.state_stores.stream_states import open_stream_states

    with closing(open_stream_states(spec.state_store)) as states:
        texts = [entry.status for entry in states.read_all(spec.name).values()]
    return [status for text in texts if text and (status := StateStatus.from_text(text)) is not None]


def _local_states(stream: str | None) -> list[StateStatus]:
    from ematix_flow.engine.streams.state.status import read_statuses
    from ematix_flow.state.state_root import state_root

    root = state_root(os.environ) / "streams"
    found = [status for folder in sorted(root.glob("*")) for status in read_statuses(folder)]
    if stream is None:
        return found
    names = sorted({status.stream for status in found})
    if stream not in names:
        raise UnknownName(
            f"there is no state of a stream {stream!r} in {root}.{did_you_mean(stream, names)}",
            next_step="give --module to show the streams that a module declares",
        )
    return [status for status in found if status.stream == stream]


def _row(status: StateStatus) -> Sequence[object]:
    return (
        status.stream,
        status.query,
        status.operator,
        status.store,
        f"{status.rows:,}",
        f"{status.bytes:,}",
        *(format_local_time(_time(at)) for at in (status.watermark, status.border, status.next_due)),
        status.version,
        format_local_time(dt.datetime.fromtimestamp(status.changed_at, dt.timezone.utc)),
    )


def _as_json(status: StateStatus) -> dict[str, Any]:
    from dataclasses import asdict

    times = {name: _time(getattr(status, name)) for name in ("watermark", "border", "next_due")}
    return {
        **asdict(status),
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
        "changed_at": dt.datetime.fromtimestamp(status.changed_at, dt.timezone.utc).isoformat(),
    }


def _time(micros: int | None) -> dt.datetime | None:
    """The event time; None if it is not set or beyond the years of Python."""
    if micros is None:
        return None
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=micros)
    except OverflowError:
        return None
