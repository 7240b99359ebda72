"""Writes one file of quotes."""

import json
from pathlib import Path

QUOTES = [
    {"symbol": "cup", "price": 10.0, "quantity": 1, "cents": 1},
    {"symbol": "cup", "price": 20.0, "quantity": 3, "cents": 99},
    {"symbol": "pot", "price": 8.0, "quantity": 2, "cents": 50},
]

folder = Path("incoming/quotes")
folder.mkdir(parents=True, exist_ok=True)
(folder / "quotes.json").write_text("".join(json.dumps(quote) + "\n" for quote in QUOTES))
