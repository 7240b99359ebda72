"""``ematix-probe run``: runs probes, prints their verdicts, and writes reports."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ematix_probe.calling import call_probe, shows_progress
from ematix_probe.cli.error_report import INTERRUPTED, show_error, unexpected_error
from ematix_probe.cli.history_option import HistoryOption, optional_history
from ematix_probe.cli.output import OutputOption, write_json
from ematix_probe.cli.terminal import say, style_text, write
from ematix_probe.errors import ProbeError, ReportNotWritten, UsageError
from ematix_probe.history.forgiving import ForgivingHistory
from ematix_probe.history.store import RunHistory
from ematix_probe.loading import FoundProbe, load_probes, select_probes
from ematix_probe.report import AssertionResult, RunReport
from ematix_probe.reports.files import check_file
from ematix_probe.reports.json_report import report_json

HELP = """Run the probes of files, folders or modules.

PATH is a .py file, a folder of them, or a module; PATH::NAME is one probe of it. Exit code 0 when all
assertions hold, 1 when one does not, 2 when nothing was run: a file cannot be imported, or a load would
send to a host that was not allowed; 130 after Ctrl-C.
"""
FailOn = Literal["fail", "warn"]


def run(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Files, folders or modules.")],
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", "-s", metavar="NAME", help="Only these probes: a name or orders_*. May be repeated."
        ),
    ] = None,
    history: HistoryOption = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit's XML, which CI servers read.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the reports as JSON.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the reports as one HTML page with charts."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="HOST", help="Let load probes send to this host. May be repeated."
        ),
    ] = None,
    fail_on: Annotated[
        FailOn,
        typer.Option("--fail-on", help="With warn, warnings too make the exit code 1.", show_default=False),
    ] = "fail",
    output: OutputOption = "text",
) -> int:
    chosen = select_probes(load_probes(paths), select or ())
    files = _report_files(junit, json_file, html, fail_on)
    opened = optional_history(history)
    _check_before(chosen, allow_host or (), list(files), opened)
    recording = None if opened is None else ForgivingHistory(opened)
    reports: list[RunReport] = []
    errors: list[ProbeError] = []
    interrupted = False
    for each in chosen:
        started = dt.datetime.now(dt.timezone.utc)
        try:
            report = run_probe(each, recording, allow_host or ())
        except KeyboardInterrupt:
            interrupted = True
            known = _interruption(len(reports), len(chosen))
            show_error(known, each.name)
            reports.append(failed_report(each, known, started))
            break
        except Exception as error:  # also a fault of this program or of the probe: the others are run
            known = error if isinstance(error, ProbeError) else unexpected_error(error)
            errors.append(known)
            show_error(known, each.name)
            reports.append(failed_report(each, known, started))
            continue
        reports.append(report)
        interrupted = bool(report.metadata.get("interrupted"))
        if output == "text":
            print_report(report)
        if interrupted:  # Ctrl-C during a load: report what was measured, and run nothing more
            break
    if output == "json":
        write_json([report_json(report) for report in reports])
    elif len(chosen) > 1:
        from ematix_probe.reports.text import summary

        say(summary(reports))
    for path, write_reports in files.items():
        try:
            write_reports(reports, path)
        except ReportNotWritten as error:  # JSON may be on stdout already, which takes one document
            errors.append(error)
            show_error(error)
    if recording is not None:
        for name, unrecorded in recording.errors:
            show_error(unrecorded, name)
            errors.append(unrecorded)
        if recording.run_ids and not recording.errors and output == "text":
            say(f"recorded in {recording.location}", "dim")
    return INTERRUPTED if interrupted else exit_code(reports, errors, fail_on)


def run_probe(found: FoundProbe, history: Any, allowed_hosts: Sequence[str]) -> RunReport:
    """Run one probe; a load probe shows its progress."""
    if not shows_progress(found.probe):
        return call_probe(found.probe, history=history, allow_hosts=allowed_hosts)
    from ematix_probe.load.progress import progress_for

    with progress_for(found.name) as progress:
        return call_probe(found.probe, history=history, allow_hosts=allowed_hosts, progress=progress)


def failed_report(found: FoundProbe, error: ProbeError, started: dt.datetime) -> RunReport:
    """The report of a probe that could not be run: each of its assertions is an error."""
    names = found.probe.assertion_names()
    results = [AssertionResult(index, "error", str(error), name) for index, name in enumerate(names)]
    return RunReport(
        found.name,
        getattr(found.probe, "table", found.name),
        getattr(found.probe, "schema", None),
        "error",
        results,
        started,
        dt.datetime.now(dt.timezone.utc),
        {"error": str(error)},
    )


def _interruption(done: int, probes: int) -> ProbeError:
    return ProbeError(
        "interrupted",
        state=f"{done} of {probes} probes were run; nothing of this one was recorded",
        next_step="run the same command again",
    )


def _check_before(
    chosen: Sequence[FoundProbe],
    allowed_hosts: Sequence[str],
    files: Sequence[Path],
    history: RunHistory | None,
) -> None:
    """Refuse, before the first probe runs, what could not be done later.

    That is a load that is declared wrongly or sends to a host that nobody allowed, a report that cannot be
    written, and a history that does not open.
    """
    failures: list[ProbeError] = []
    for probe in (each.probe for each in chosen if hasattr(each.probe, "refuse")):
        try:
            probe.refuse(allowed_hosts)
        except ProbeError as error:
            failures.append(error)
    for path in files:
        try:
            check_file(path)
        except ReportNotWritten as error:
            failures.append(error)
    if history is not None:
        try:
            history.prepare()
        except ProbeError as error:
            failures.append(error)
    failures.sort(key=lambda error: error.exit_code)  # the last one makes the exit code
    for failure in failures:
        failure.state = failure.state or "no probe was run"
    for failure in failures[:-1]:
        show_error(failure)
    if failures:
        raise failures[-1]


def print_report(report: RunReport) -> None:
    """``[FAIL] orders (shop.orders)``, and below it the assertions that do not hold, errors and notes."""
    from ematix_probe.reports.text import (
        STYLES,
        TAGS,
        error_lines,
        failing_lines,
        head_line,
        note_lines,
        tail_of,
    )

    tag = style_text(TAGS[report.verdict], STYLES[report.verdict], sys.stdout)
    lines = [f"{tag} {head_line(report)}  {style_text(tail_of(report), 'dim', sys.stdout)}"]
    for result in report.assertions:
        if result.verdict != "pass":
            first, *rest = failing_lines(result, " " * 9)
            mark = style_text(f"{result.verdict:>5}:", STYLES[result.verdict], sys.stdout)
            lines += [f"  {mark} {first.lstrip()}", *rest]
    lines += (f"         {line}" for line in error_lines(report))
    lines += (f"  {style_text(' note:', 'dim', sys.stdout)} {line}" for line in note_lines(report))
    write("\n".join(lines))


def exit_code(reports: Sequence[RunReport], errors: Sequence[ProbeError], fail_on: FailOn) -> int:
    """1 when something does not hold, was not run or was not recorded, else 0."""
    bad = {"fail", "error", "warn"} if fail_on == "warn" else {"fail", "error"}
    return 1 if errors or any(report.verdict in bad for report in reports) else 0


def _report_files(
    junit: Path | None, json_file: Path | None, html: Path | None, fail_on: FailOn
) -> dict[Path, Callable[[Sequence[RunReport], Path], None]]:
    """The files to write, each with its writer."""
    files: dict[Path, Callable[[Sequence[RunReport], Path], None]] = {}
    named = [path.absolute() for path in (junit, json_file, html) if path is not None]
    if same := next((path for path in named if named.count(path) > 1 and not path.is_char_device()), None):
        raise UsageError(f"two reports go to the file {same}", next_step="give each report its own file")
    if junit is not None:
        from ematix_probe.reports.junit import write_junit

        files[junit] = partial(write_junit, fail_on_warn=fail_on == "warn")
    if json_file is not None:
        from ematix_probe.reports.json_report import write_json

        files[json_file] = write_json
    if html is not None:
        from ematix_probe.reports.html import write_html

        files[html] = write_html
    return files
