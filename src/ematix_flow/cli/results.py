"""Writes the outcomes of runs as a table or as JSON."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ematix_flow.cli.expectation_tables import expectations_text, probes_text
from ematix_flow.cli.output import (
    OutputColumn,
    format_count,
    render_table,
    status_column,
    table_width,
    write_json,
)
from ematix_flow.cli.terminal import are_same_output, terminal_width, write
from ematix_flow.errors import ExpectationFailed

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.run.dag import PipelineOutcome
    from ematix_flow.schedule.run_due import SlotOutcome

_COLUMNS = (
    OutputColumn("pipeline"),
    status_column(),
    OutputColumn("mode"),
    OutputColumn("path"),
    OutputColumn("read", right=True),
    OutputColumn("inserted", right=True),
    OutputColumn("updated", right=True),
    OutputColumn("deleted", right=True),
    OutputColumn("unchanged", right=True),
    OutputColumn("seconds", right=True),
    OutputColumn("attempts", right=True),
    OutputColumn("reason", wraps=True),
)


def write_outcomes(outcomes: Sequence[PipelineOutcome], registry: Registry, *, as_json: bool) -> None:
    if as_json:
        write_json([outcome_json(outcome) for outcome in outcomes])
    else:
        write(outcome_table(outcomes, registry, stream=sys.stdout), sys.stdout)
        for text in _checks_texts(outcomes):
            write("\n" + text, sys.stdout)


def _checks_texts(outcomes: Sequence[PipelineOutcome]) -> list[str]:
    """What expectations and data probes of the pipelines found."""
    texts = []
    for outcome in outcomes:
        targets: list[dict[str, Any]] = []
        if outcome.result is not None:
            found = outcome.result.to_json()
            targets = found["targets"]
            texts.append(probes_text(found["probes"]))
        elif isinstance(outcome.error, ExpectationFailed):
            targets = [{"target": outcome.pipeline, **outcome.error.to_json()}]
        texts.append(expectations_text(targets, stream=sys.stdout))
    return [text for text in texts if text]


def outcome_table(outcomes: Sequence[PipelineOutcome], registry: Registry, *, stream: TextIO) -> str:
    """One line per outcome. If the terminal is too narrow for the reasons, they follow below the table."""
    columns, rows = _without_empty_columns([_row(outcome, registry) for outcome in outcomes])
    width = terminal_width(stream)
    table = render_table(columns[:-1], [row[:-1] for row in rows], stream=stream)
    reasons = [(row[0], row[-1]) for row in rows if row[-1]]
    longest = max((len(str(reason)) for _, reason in reasons), default=0)
    if width is None or table_width(columns[:-1], rows) + longest + 2 <= width:
        return render_table(columns, rows, stream=stream)
    below = [f"  {line}" for name, why in reasons for line in textwrap.wrap(f"{name}: {why}", width - 4)]
    return "\n".join([table, "", *below]) if below else table


def _without_empty_columns(
    rows: list[tuple[object, ...]],
) -> tuple[list[OutputColumn], list[tuple[object, ...]]]:
    """Drop columns that are empty in every row, such as ``updated`` for an append."""
    silent = {"updated": ("", "0"), "deleted": ("", "0"), "unchanged": ("", "0"), "attempts": ("", "1")}
    kept = [
        place
        for place, column in enumerate(_COLUMNS)
        if column.name not in silent or any(row[place] not in silent[column.name] for row in rows)
    ]
    return [_COLUMNS[place] for place in kept], [tuple(row[place] for place in kept) for row in rows]


def exit_code(outcomes: Sequence[PipelineOutcome]) -> int:
    """The error's exit code for a single pipeline; for several 2 if all have declaration errors, else 1."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(outcomes) == 1 and errors:
        return errors[0].exit_code
    if errors and all(error.exit_code == 2 for error in errors):
        return 2  # every error is in a declaration
    return 1 if errors or any(outcome.status in ("failed", "not_run") for outcome in outcomes) else 0


def outcome_json(outcome: PipelineOutcome) -> dict[str, Any]:
    if outcome.result is not None:
        return {**outcome.result.to_json(), "reason": outcome.reason, "error": None}
    return {
        "pipeline": outcome.pipeline,
        "status": outcome.status,
        "attempts": outcome.attempts,
        "reason": outcome.reason,
        "error": outcome.error.to_json() if outcome.error else None,
    }


def _row(outcome: PipelineOutcome, registry: Registry) -> tuple[object, ...]:
    targets = registry.pipelines[outcome.pipeline].spec.targets
    mode = ", ".join(dict.fromkeys(target.mode for target in targets))
    result, status = outcome.result, outcome.status.replace("_", " ")
    attempts = str(outcome.attempts or "")
    if result is None:
        empty = ("",) * (len(_COLUMNS) - 5)
        return outcome.pipeline, status, mode, *empty, attempts, reason_for_table(outcome)
    return (
        outcome.pipeline,
        status,
        mode,
        result.path,
        format_count(result.rows_read),
        format_count(result.rows_inserted),
        format_count(result.rows_updated),
        format_count(result.rows_deleted),
        format_count(result.rows_unchanged),
        f"{result.seconds:.1f}",
        attempts,
        reason_for_table(outcome),
    )


def reason_for_table(outcome: PipelineOutcome | SlotOutcome) -> str:
    """The reason for the table. An error that was already shown in the same terminal is not repeated."""
    error = outcome.error
    reason = outcome.reason or (error.what if error is not None else "")
    if error is not None and are_same_output(sys.stdout, sys.stderr):
        return reason.removesuffix(error.what).removesuffix(": ")
    return reason
