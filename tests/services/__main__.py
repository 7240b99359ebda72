"""``python -m tests.services install [name …]``: install the servers that the tests need.

A server is a module in this folder with ``find()``, which gives the folder of its programs or None, and
``install()``, which installs them. Adding such a module is all it takes. ``LONG_TESTS_ONLY`` marks one that
``make test`` does not need.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from tests.services.process import ServiceUnavailable


def servers() -> dict[str, ModuleType]:
    """Every server of this folder, by name."""
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))
    modules = {name: importlib.import_module(f"tests.services.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "install")}


def main(arguments: list[str] | None = None) -> int:
    known = servers()
    parser = argparse.ArgumentParser(prog="python -m tests.services", description="The tests' own servers.")
    parser.add_argument("command", choices=["install", "list"])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; all when none is named")
    parser.add_argument("--long", action="store_true", help="also those that only long tests need")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.names) - set(known)
    if unknown:
        parser.error(f"no server is named {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    failed = False
    usual = [name for name in known if chosen.long or not getattr(known[name], "LONG_TESTS_ONLY", False)]
    for name in chosen.names or usual:
        try:
            found = known[name].install() if chosen.command == "install" else known[name].find()
            print(f"{name}: {found or 'not installed'}", flush=True)
        except ServiceUnavailable as problem:
            failed = True
            print(f"{name}: {problem}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
