"""Shows what the targets of a run committed: one line for each entry of their ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.cli.local_time import format_local_time, local_zone_name
from ematix_flow.cli.output import OutputColumn, format_count, write_table, write_text

if TYPE_CHECKING:
    from ematix_flow.run.run_ledger import TargetLedger


def write_ledgers(ledgers: Sequence[TargetLedger]) -> None:
    """A table of all entries, and under it what is to be said about each target."""
    columns = (
        OutputColumn("committed to"),
        OutputColumn(f"at ({local_zone_name()})"),
        OutputColumn("batch", wraps=True),
        OutputColumn("read", right=True),
        OutputColumn("inserted", right=True),
        OutputColumn("updated", right=True),
        OutputColumn("deleted", right=True),
        OutputColumn("source from", wraps=True),
        OutputColumn("source to", wraps=True),
    )
    rows = [
        (
            entry.target,
            format_local_time(entry.committed_at),
            entry.batch_key,
            format_count(entry.rows.read),
            format_count(entry.rows.inserted),
            format_count(entry.rows.updated),
            format_count(entry.rows.deleted),
            entry.source_from,
            entry.source_to,
        )
        for each in ledgers
        for entry in each.entries
    ]
    if rows:
        write_table(columns, rows)
    for each in ledgers:
        if each.note:
            write_text(f"{each.target}: {each.note}")
        if each.error:
            write_text(f"{each.target}: {each.error}")
