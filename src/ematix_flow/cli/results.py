"""What runs did, as a table for a person and as JSON."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ematix_flow.cli.output import Column, count, render_table, status_column, table_width, write_json
from ematix_flow.cli.terminal import are_one, width_of, write

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.schedule.dag import Outcome
    from ematix_flow.schedule.run_due import SlotOutcome

_COLUMNS = (
    Column("pipeline"),
    status_column(),
    Column("mode"),
    Column("path"),
    Column("read", right=True),
    Column("inserted", right=True),
    Column("updated", right=True),
    Column("deleted", right=True),
    Column("unchanged", right=True),
    Column("seconds", right=True),
    Column("attempts", right=True),
    Column("reason", wraps=True),
)


def write_outcomes(outcomes: Sequence[Outcome], registry: Registry, *, as_json: bool) -> None:
    if as_json:
        write_json([outcome_json(outcome) for outcome in outcomes])
    else:
        write(outcome_table(outcomes, registry, stream=sys.stdout), sys.stdout)


def outcome_table(outcomes: Sequence[Outcome], registry: Registry, *, stream: TextIO) -> str:
    """One line each. Where a terminal is too narrow for the reasons, they stand below the table."""
    columns, rows = _shown([_row(outcome, registry) for outcome in outcomes])
    width = width_of(stream)
    table = render_table(columns[:-1], [row[:-1] for row in rows], stream=stream)
    reasons = [(row[0], row[-1]) for row in rows if row[-1]]
    longest = max((len(str(reason)) for _, reason in reasons), default=0)
    if width is None or table_width(columns[:-1], rows) + longest + 2 <= width:
        return render_table(columns, rows, stream=stream)
    below = [f"  {line}" for name, why in reasons for line in textwrap.wrap(f"{name}: {why}", width - 4)]
    return "\n".join([table, "", *below]) if below else table


def _shown(rows: list[tuple[object, ...]]) -> tuple[list[Column], list[tuple[object, ...]]]:
    """Without what no row has anything to say about: an append updates nothing, most need one attempt."""
    silent = {"updated": ("", "0"), "deleted": ("", "0"), "unchanged": ("", "0"), "attempts": ("", "1")}
    kept = [
        place
        for place, column in enumerate(_COLUMNS)
        if column.name not in silent or any(row[place] not in silent[column.name] for row in rows)
    ]
    return [_COLUMNS[place] for place in kept], [tuple(row[place] for place in kept) for row in rows]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """The error's own code when one pipeline was named; of several 2 if all are declared wrong; else 1."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(outcomes) == 1 and errors:
        return errors[0].exit_code
    if errors and all(error.exit_code == 2 for error in errors):
        return 2  # what is declared is wrong, wherever it was found
    return 1 if errors or any(outcome.status in ("failed", "not_run") for outcome in outcomes) else 0


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    if outcome.result is not None:
        return {**outcome.result.to_json(), "reason": outcome.reason, "error": None}
    return {
        "pipeline": outcome.pipeline,
        "status": outcome.status,
        "attempts": outcome.attempts,
        "reason": outcome.reason,
        "error": outcome.error.to_json() if outcome.error else None,
    }


def _row(outcome: Outcome, registry: Registry) -> tuple[object, ...]:
    targets = registry.pipelines[outcome.pipeline].spec.targets
    mode = ", ".join(dict.fromkeys(target.mode for target in targets))
    result, status = outcome.result, outcome.status.replace("_", " ")
    attempts = str(outcome.attempts or "")
    if result is None:
        empty = ("",) * (len(_COLUMNS) - 5)
        return outcome.pipeline, status, mode, *empty, attempts, unsaid_reason(outcome)
    return (
        outcome.pipeline,
        status,
        mode,
        result.path,
        count(result.rows_read),
        count(result.rows_inserted),
        count(result.rows_updated),
        count(result.rows_deleted),
        count(result.rows_unchanged),
        f"{result.seconds:.1f}",
        attempts,
        unsaid_reason(outcome),
    )


def unsaid_reason(outcome: Outcome | SlotOutcome) -> str:
    """For the table: where the error has just been shown in full it is not said once more."""
    error = outcome.error
    reason = outcome.reason or (error.what if error is not None else "")
    if error is not None and are_one(sys.stdout, sys.stderr):
        return reason.removesuffix(error.what).removesuffix(": ")
    return reason
