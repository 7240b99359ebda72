"""Writes one of two files of page views."""

import json
import sys
from pathlib import Path

VIEWS = {
    "first": ["ann home 10:00", "ann shop 10:03", "ann pay 10:11", "bob help 10:01"],
    "second": ["ann cart 10:07", "bob home 11:00"],
}

folder = Path("incoming/views")
folder.mkdir(parents=True, exist_ok=True)
views = [dict(zip(("user", "page", "at"), view.split(), strict=True)) for view in VIEWS[sys.argv[1]]]
lines = [json.dumps({**view, "at": f"2026-05-01T{view['at']}:00Z"}) for view in views]
(folder / f"{sys.argv[1]}.json").write_text("\n".join(lines) + "\n")
