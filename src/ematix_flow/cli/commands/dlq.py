"""``flow dlq``: the dead letters of streams."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.dead_letter_stores import LetterPlace, locations, no_letters_text
from ematix_flow.cli.local_time import format_local_time, local_zone_name
from ematix_flow.cli.options import ModuleOption, OutputOption, RunLogOption
from ematix_flow.cli.output import OutputColumn, write_json, write_table, write_text
from ematix_flow.cli.project import load_project
from ematix_flow.cli.terminal import is_terminal, say
from ematix_flow.errors import UsageError
from ematix_flow.state.dead_letters.base import (
    DeadLetter,
    DeadLetterStore,
    LetterCount,
    LetterStage,
    LetterStatus,
)
from ematix_flow.state.dead_letters.shown_letters import letter_with_payload, list_oldest

app = new_app("Show the dead letters of streams; replay, park or purge them.")

PipelineOption = Annotated[
    str | None, typer.Option("--pipeline", "-p", metavar="NAME", help="Only letters of this stream.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where the letters are: a URL or the name of a connection. Without it: the store that the "
        "stream of --pipeline declares, else all stores that the module's streams declare and "
        "dead_letters.db in the state folder.",
    ),
]
TableOption = Annotated[str | None, typer.Option("--table", metavar="NAME", help="The store's table.")]
StageOption = Annotated[
    LetterStage | None, typer.Option("--stage", help="Only letters that failed in this stage.")
]
StatusOption = Annotated[LetterStatus | None, typer.Option("--status", help="Only letters with this status.")]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only letters whose reason contains this text.")
]
EveryOption = Annotated[bool, typer.Option("--all", help="Every letter that the other options match.")]
FirstOption = Annotated[int | None, typer.Option("--first", metavar="N", min=1, help="Only the oldest N.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", hidden=True)]


@app.command("list")
def list_letters(
    pipeline: PipelineOption = None,
    stage: StageOption = None,
    status: StatusOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most N, oldest first.")] = 20,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Skip the first N.")] = 0,
    module: ModuleOption = None,
    store: StoreOption = None,
    table: TableOption = None,
    output: OutputOption = "text",
) -> None:
    """Show dead letters, oldest first, and how many there are."""
    place = LetterPlace(pipeline, module, store, table)
    with place.open() as stores:
        found = list_oldest(stores, pipeline, stage, status, limit, offset)
        needs_counts = output == "text" or len(found) == limit
        by_store = [(each.location, each.counts(pipeline)) for each in stores] if needs_counts else []
        counts = [count for _, each in by_store for count in each]
        places = locations(stores)
        none_there = "" if found or counts or output == "json" else no_letters_text(stores, pipeline)
    matching = sum(
        count.letters for count in counts if stage in (None, count.stage) and status in (None, count.status)
    )
    total = sum(count.letters for count in counts)
    if output == "json":
        write_json([letter.to_json() for letter in found])
        _report_more(len(found), offset, matching)
        return
    if not found:
        say(none_there or f"no such dead letter among the {total:,} in {places}")
        return
    columns = (
        OutputColumn("id"),
        OutputColumn("pipeline"),
        OutputColumn("stage"),
        OutputColumn("status"),
        OutputColumn("attempt", right=True),
        OutputColumn(f"failed ({local_zone_name()})"),
        OutputColumn("position"),
        OutputColumn("reason", wraps=True),
    )
    write_table(columns, [_letter_row(letter) for letter in found])
    _report_more(len(found), offset, matching)
    for location, each in by_store:
        if each:
            say(_store_summary(location, each))
    say(f"{place.command(f'show {found[0].id[:12]}', pipeline=True)}  shows the first of them")


@app.command("show")
def show_letter(
    id: Annotated[str, typer.Argument(metavar="ID", hidden=True)],
    pipeline: PipelineOption = None,
    most: Annotated[int, typer.Option("--bytes", min=0, help="How much of the payload to show.")] = 4096,
    module: ModuleOption = None,
    store: StoreOption = None,
    table: TableOption = None,
    output: OutputOption = "text",
) -> None:
    """Show one letter with its payload. The first characters of its id are enough."""
    place = LetterPlace(pipeline, module, store, table)
    with place.open() as stores:
        _, letter = place.find(stores, id)
    if output == "json":
        write_json(letter_with_payload(letter, most))
        return
    facts = {
        "id": letter.id,
        "pipeline": letter.pipeline,
        "stage": letter.stage,
        "status": f"{letter.status}, attempt {letter.attempt}",
        "failed": f"{format_local_time(letter.failed_at)} {local_zone_name()}",
        "reason": letter.reason,
        "source": letter.source,
        "position": _position_text(letter),
        "target": letter.target,
        "batch": letter.batch,
        "event": f"{format_local_time(letter.event_ts)} {local_zone_name()}" if letter.event_ts else None,
        "headers": letter.headers,
        "key": None if letter.key is None else _payload_text(letter.key[:most]),
        "payload": f"{letter.payload_size:,} bytes, {letter.payload_format}",
    }
    write_text(
        "\n".join(
            f"{label:<10}{_printable(str(value))}" for label, value in facts.items() if value is not None
        )
    )
    write_text("")
    write_text(_printable(_payload_text(letter.payload[:most]), lines=True))
    if letter.payload_size > most:
        say(f"the first {most:,} bytes; more with  --bytes {letter.payload_size}")


@app.command("replay")
def replay_letters(
    ids: IdsArgument = None,
    everything: EveryOption = False,
    first: FirstOption = None,
    pipeline: PipelineOption = None,
    stage: StageOption = None,
    reason: ReasonOption = None,
    status: StatusOption = None,
    module: ModuleOption = None,
    store: StoreOption = None,
    table: TableOption = None,
    run_log: RunLogOption = None,
    output: OutputOption = "text",
) -> int:
    """Run letters through their stream again. A letter that fails again stays, and is finally parked."""
    from ematix_flow.streams.dead_letter_replay import replay_recorded

    place = LetterPlace(pipeline, module, store, table)
    with place.open() as stores:
        letters, name, selection = place.select(stores, ids, everything, first, stage, reason, status)
        result, _ = replay_recorded(load_project(module).stream(name), letters, selection, run_log)
    if output == "json":
        write_json(result.to_json())
    elif not result.taken:
        say(f"no dead letter of {name!r} to replay")
    else:
        write_text(
            f"{result.replayed:,} of {result.taken:,} replayed, {result.failed:,} failed again"
            + (f", {result.parked:,} of them parked" if result.parked else "")
            + (f", {result.released:,} not tried" if result.released else "")
            + (f", {result.lost:,} taken by another replay" if result.lost else "")
        )
        for id, why in result.failures.items():
            say(f"  {id[:12]}  {_printable(why)}")
    return 1 if result.failed or result.lost else 0


@app.command("park")
def park_letters(
    ids: IdsArgument = None,
    everything: EveryOption = False,
    first: FirstOption = None,
    pipeline: PipelineOption = None,
    stage: StageOption = None,
    reason: ReasonOption = None,
    module: ModuleOption = None,
    store: StoreOption = None,
    table: TableOption = None,
    output: OutputOption = "text",
) -> None:
    """Exclude letters from replays, except replays that name their ids."""
    place = LetterPlace(pipeline, module, store, table)
    with place.open() as stores:
        letters, name, selection = place.select(stores, ids, everything, first, stage, reason, None)
        _report_count("parked", name, letters.park(name, selection), letters, output)


@app.command("purge")
def purge_letters(
    ids: IdsArgument = None,
    everything: EveryOption = False,
    first: FirstOption = None,
    pipeline: PipelineOption = None,
    stage: StageOption = None,
    reason: ReasonOption = None,
    status: StatusOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    module: ModuleOption = None,
    store: StoreOption = None,
    table: TableOption = None,
    output: OutputOption = "text",
) -> None:
    """Delete letters permanently."""
    place = LetterPlace(pipeline, module, store, table)
    with place.open() as stores:
        letters, name, selection = place.select(stores, ids, everything, first, stage, reason, status)
        if not yes and letters.counts(name):
            _confirm(f"delete the chosen dead letters of {name!r} in {letters.location} permanently?")
        _report_count("purged", name, letters.purge(name, selection), letters, output)


# ------------------------------------------------------------------ questions and answers


def _confirm(question: str) -> None:
    if not is_terminal(sys.stdin):
        raise UsageError(
            "cannot ask for confirmation without a terminal",
            state="nothing was changed",
            next_step="give --yes",
        )
    if not typer.confirm(question, err=True):
        raise UsageError("not confirmed", state="nothing was changed")


def _store_summary(location: str, counts: list[LetterCount]) -> str:
    """How many letters a store has, by status."""
    by_status: dict[str, int] = {}
    for count in counts:
        by_status[count.status] = by_status.get(count.status, 0) + count.letters
    listed = ", ".join(f"{letters:,} {status}" for status, letters in by_status.items())
    return f"{sum(by_status.values()):,} in {location}: {listed}"


def _report_more(shown: int, left_out: int, matching: int) -> None:
    if left_out + shown < matching:
        say(f"{shown:,} of {matching:,}; --limit shows more")


def _report_count(what: str, pipeline: str, number: int, store: DeadLetterStore, output: str) -> None:
    if output == "json":
        write_json({"pipeline": pipeline, what: number})
    elif not number and not store.counts(pipeline):
        say(no_letters_text([store], pipeline))
    else:
        write_text(f"{number:,} dead letter{'' if number == 1 else 's'} of {pipeline} {what}")


# ------------------------------------------------------------------ as a person reads it


def _letter_row(letter: DeadLetter) -> tuple[object, ...]:
    return (
        letter.id[:12],
        _printable(letter.pipeline),
        letter.stage,
        letter.status,
        letter.attempt,
        format_local_time(letter.failed_at),
        _printable(_position_text(letter) or ""),
        _printable(letter.reason.split("\n")[0][:300]),
    )


def _position_text(letter: DeadLetter) -> str | None:
    parts = (letter.source, letter.partition, letter.position)
    return "/".join(part for part in parts if part is not None) or None


def _payload_text(payload: bytes) -> str:
    """The payload as text, even if it is cut within a character; else as a hex dump."""
    for end in range(4):
        try:
            text = payload[: len(payload) - end].decode("utf-8")
        except UnicodeDecodeError:
            continue
        if "\x00" not in text:
            return text
        break
    return "\n".join(
        f"{start:06x}  {payload[start : start + 16].hex(' '):<47}  "
        + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in payload[start : start + 16])
        for start in range(0, len(payload), 16)
    )


def _printable(text: str, *, lines: bool = False) -> str:
    """The text with control characters escaped, so that a terminal does not interpret them."""
    kept = "\n\t" if lines else "\t"
    return "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)
