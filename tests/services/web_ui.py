"""The tools that build the pages of `flow web`, from npm, as web-ui/package-lock.json pins them."""

from __future__ import annotations

from pathlib import Path

from tests.services.npm import bring_package, found_package

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "web-ui"
PRIVATE = REPOSITORY / ".services" / "web-ui"
_SCRIPT = "vite/bin/vite.js"


def find() -> Path | None:
    """The script of the build tool, if exactly what is locked is installed."""
    return found_package(SOURCES, PRIVATE, _SCRIPT)


def install() -> Path:
    """Install the locked packages; Node must be installed."""
    return find() or bring_package("the build of the pages", SOURCES, PRIVATE, _SCRIPT)
