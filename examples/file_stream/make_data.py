"""Writes another file with two clicks; it gets its name when it is complete."""

import json
from pathlib import Path

folder = Path("incoming/clicks")
folder.mkdir(parents=True, exist_ok=True)
number = len(list(folder.glob("*.jsonl")))
lines = [json.dumps({"click_id": 2 * number + n, "page": "/"}) for n in (1, 2)]
(folder / ".new").write_text("\n".join(lines) + "\n")
(folder / ".new").rename(folder / f"{number}.jsonl")
