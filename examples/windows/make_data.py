"""Writes one of two files of clicks."""

import json
import sys
from pathlib import Path

CLICKS = {
    "first": [("home", "10:00:05"), ("home", "10:00:40"), ("help", "10:00:59"), ("home", "10:01:10")],
    "second": [("help", "10:00:30"), ("home", "10:02:20")],
}

folder = Path("incoming/clicks")
folder.mkdir(parents=True, exist_ok=True)
clicks = [{"page": page, "at": f"2026-05-01T{time}Z"} for page, time in CLICKS[sys.argv[1]]]
(folder / f"{sys.argv[1]}.json").write_text("".join(json.dumps(click) + "\n" for click in clicks))
