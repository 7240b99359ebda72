"""Times in JSON lines: those with fractions of a second have the type of those without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_probe import probe, source


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (['"2026-11-18T16:39:00"'], "timestamp"),
        (['"2026-11-18T16:39:00.000"', "null", '"2026-11-18 16:39:00.123456"'], "timestamp"),
        (['"2026-11-18T16:39:00.5"', '"2026-11-18T16:40:00"'], "timestamp"),
        (['"2026-11-18T16:39:00.123Z"'], "timestamptz"),
        (['"2026-11-18T16:39:00.5"', '"soon"'], "text"),
        (['"2026-13-18T16:39:00.5"'], "text"),
        (["null", '"a"'], "text"),
        (['"2026-11-18T16:39:00.5"'] * 300 + ['"soon"'], "text"),
    ],
)
def test_a_time_with_a_fraction_is_a_time(tmp_path: Path, values: list[str], kind: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f'{{"ts": {value}, "n": "x"}}\n' for value in values))

    @probe.data(source=source.jsonl(path))
    def events(t: Any) -> None:
        t.schema_match({"ts": kind, "n": "text"})
        if kind != "text":
            t.column("ts").between("2026-11-18 16:39:00", "2026-11-18 16:41:00")

    assert [each.message for each in events.run().assertions if each.verdict != "pass"] == []
