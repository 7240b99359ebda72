"""``flow alerts``: sends test alerts."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ematix_flow.cli.command_group import new_app
from ematix_flow.cli.options import OutputOption
from ematix_flow.cli.output import OutputColumn, status_column, write_json, write_table
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.spec.location import NamedLocation

if TYPE_CHECKING:
    from ematix_flow.observe.alerts.alerter_urls import AlertSubscription

app = new_app("Test the alerters that report failed pipelines.")


@app.command()
def test(
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL", help="Alerters; by default those of the settings.", show_default=False),
    ] = None,
    output: OutputOption = "text",
) -> int:
    """Send a test alert to each alerter and show the results. Exit code 1 when one fails."""
    from ematix_flow.observe.alerts.alerter_urls import open_alerter
    from ematix_flow.observe.settings import ALERTERS_VARIABLE, Observability

    given = tuple(urls or ()) or Observability.resolve(os.environ).alerters
    if not given:
        raise UsageError(
            "no alerter is set",
            next_step=f"give a URL, or set {ALERTERS_VARIABLE}, or [alerts] urls in .ematix-flow.toml",
        )
    try:
        addresses = [open_alerter(url) for url in given]
    except FlowError as error:
        place = "an argument of flow alerts test" if urls else f"{ALERTERS_VARIABLE}, or [alerts] urls"
        raise error.with_location(NamedLocation.of(place)) from error.__cause__
    results = [_send_test(address) for address in addresses]
    if output == "json":
        write_json(results)
    else:
        columns = (
            OutputColumn("alerter"),
            status_column("result"),
            OutputColumn("seconds", right=True),
            OutputColumn("why"),
        )
        write_table(
            columns, [(r["alerter"], r["status"], f"{r['seconds']:.1f}", r["reason"]) for r in results]
        )
    return 1 if any(result["status"] == "failed" for result in results) else 0


def _send_test(address: AlertSubscription) -> dict[str, Any]:
    from ematix_flow.observe.alerts.alerter import AlertNotSent, send_with_timeout
    from ematix_flow.observe.alerts.event import AlertEvent

    started, reason = time.monotonic(), None
    try:
        send_with_timeout(address.alerter, AlertEvent("test", "flow alerts test"))
    except AlertNotSent as error:
        reason = error.what
    return {
        "alerter": address.alerter.name,
        "status": "failed" if reason else "ok",
        "seconds": round(time.monotonic() - started, 3),
        "reason": reason,
    }
