"""The words of a report for people: one line a probe, the assertions that did not pass, and their samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ematix_probe.control_characters import escape_controls, mask_and_escape
from ematix_probe.duration import format_duration
from ematix_probe.redaction import mask
from ematix_probe.report import AssertionResult, RunReport, as_json

TAGS = {"pass": "[PASS]", "warn": "[WARN]", "fail": "[FAIL]", "error": "[ ERR]"}
STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "error": "bold red"}
_LONGEST_VALUE = 80
_LONGEST_ERROR = 160
_SHOWN_ERRORS = 3
_WORDS = {"pass": "passed", "warn": "warned", "fail": "failed", "error": "with errors"}


def sample_lines(result: AssertionResult) -> list[str]:
    """The sample rows: ``id=7, email=NULL``."""
    return [
        ", ".join(f"{mask_and_escape(str(name))}={_value(value)}" for name, value in row.items())
        for row in result.samples
    ]


def message_lines(result: AssertionResult) -> list[str]:
    """The lines of the message: one at least."""
    text = escape_controls(mask(result.message).replace("\r\n", "\n"), keep="\n")
    return text.rstrip("\n").split("\n")


def failing_lines(result: AssertionResult, indent: str = "  ") -> Iterator[str]:
    """Name and message of an assertion, and its samples below."""
    first, *more = message_lines(result)
    yield f"{indent}{mask_and_escape(result.name)}: {first}"
    yield from (f"{indent}    {line}" for line in more)
    lines = sample_lines(result)
    if lines:
        rest = (result.failing or 0) - len(lines)
        yield from (f"{indent}    {line}" for line in lines)
        if rest > 0:
            yield f"{indent}    … and {rest:,} more"


def head_line(report: RunReport) -> str:
    """The line of a probe, without its tag: ``orders (shop.orders)``."""
    return f"{mask_and_escape(report.probe_name)} ({mask_and_escape(report.subject)})"


def tail_of(report: RunReport) -> str:
    number = len(report.assertions)
    return f"{number} assertion{'' if number == 1 else 's'} in {format_duration(report.duration_seconds)}"


def summary(reports: Sequence[RunReport]) -> str:
    """``3 probes: 1 passed, 2 failed``."""
    counts = Counter[str](report.verdict for report in reports)
    said = ", ".join(f"{counts[verdict]} {word}" for verdict, word in _WORDS.items() if counts[verdict])
    return f"{len(reports)} probe{'' if len(reports) == 1 else 's'}: {said}"


def note_lines(report: RunReport) -> Iterator[str]:
    """What a reader must know before trusting the figures, such as requests that were started late."""
    known = {each.message for each in report.assertions}
    for each in report.metadata.get("warnings") or ():
        if each not in known:
            yield mask_and_escape(str(each))


def error_lines(report: RunReport) -> Iterator[str]:
    """The most frequent errors of a load that does not pass, with a message: ``5 × timeout: no answer``."""
    if report.verdict == "pass" or report.metadata.get("kind") != "load":
        return
    messages = report.metadata.get("error_messages") or {}
    counts = Counter[str](report.metadata.get("errors") or {})
    for kind, count in counts.most_common(_SHOWN_ERRORS):
        said = mask(messages[kind][0]).split() if messages.get(kind) else []
        text = mask_and_escape(" ".join([f"{kind}:", *said] if said else [kind]))
        shown = text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 1] + "…"
        yield f"{count:,} × {shown}"


def report_text(report: RunReport) -> str:
    """The whole report as plain text."""
    lines = [f"{TAGS[report.verdict]} {head_line(report)}  {tail_of(report)}"]
    for result in report.assertions:
        if result.verdict != "pass":
            lines += failing_lines(result)
    lines += (f"  {line}" for line in error_lines(report))
    lines += (f"  note: {line}" for line in note_lines(report))
    return "\n".join(lines)


def figures(measures: Mapping[str, Any]) -> str:
    """``row_count=12, null_share=0.25``."""
    return ", ".join(f"{mask_and_escape(name)}={_value(value)}" for name, value in measures.items())


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    shown = as_json(value)
    text = mask_and_escape(shown if isinstance(shown, str) else str(shown))
    if isinstance(value, str) and (not text or text != text.strip() or "," in text):
        text = f"'{text}'"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
