"""axe-core from npm, pinned with its integrity: a script that finds where a page keeps people out.

The tests put it into a page and let it look; it is no server and needs none.
"""

from __future__ import annotations

from pathlib import Path

from tests.services.npm import bring_package, found_package
from tests.services.process import ServiceUnavailable

PACKAGE = Path(__file__).parent / "axe"
PRIVATE = Path(__file__).resolve().parents[2] / ".services" / "axe"
_SCRIPT = "axe-core/axe.min.js"


def find() -> Path | None:
    """The script, if exactly what is locked is installed."""
    return found_package(PACKAGE, PRIVATE, _SCRIPT)


def install() -> Path:
    """Install the locked package; npm must be installed."""
    return find() or bring_package("axe-core", PACKAGE, PRIVATE, _SCRIPT)


def script() -> str:
    """The text of the script."""
    found = find()
    if found is None:
        raise ServiceUnavailable("axe-core is not installed: run  python -m tests.services install")
    return found.read_text(encoding="utf-8")
