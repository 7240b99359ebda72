"""Writes the saved results into docs/how-it-works/benchmarks.md, between two marks; none is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import REPOSITORY
from benchmarks.results import FOLDER, Result, newest
from benchmarks.tables import columns, heading, markdown_table, remarks, rows

PAGE = REPOSITORY / "docs" / "how-it-works" / "benchmarks.md"
BEGIN = "<!-- results begin: written by  python -m benchmarks --publish -->"
END = "<!-- results end -->"


def publish(page: Path = PAGE, folder: Path = FOLDER) -> int:
    """The newest result of each case; how many there were."""
    results = newest(folder)
    page.write_text(with_results(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    return len(results)


def with_results(text: str, results: Sequence[Result]) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no place for results: the marks that begin and end it are missing")
    body = "\n\n".join(section(result) for result in results) or "None are published yet."
    return f"{before}{BEGIN}\n\n{body}\n\n{END}{after}"


def section(result: Result) -> str:
    parts = [f"### {heading(result)}", markdown_table(columns(result), rows(result))]
    found = remarks(result)
    if found:
        parts.append("\n".join(f"- {remark}" for remark in found))
    parts.append(circumstances(result))
    return "\n\n".join(parts)


def circumstances(result: Result) -> str:
    """When, where and with what, in one paragraph."""
    machine = result.machine
    repetitions = max((run.round for run in result.runs), default=0)
    about = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return (
        f"{result.date[:10]}, commit {result.commit}, {repetitions} rounds. {machine['cores']} cores of"
        f" {machine['processor']}, {machine['memory_bytes'] / 2**30:.0f} GB, {machine['system']},"
        f" load at the start {machine['load_average']}. {about}."
    )
