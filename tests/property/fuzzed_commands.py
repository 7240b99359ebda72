"""Generated command lines: every command with the options that its parser knows, and with wrong words."""

from __future__ import annotations

from typing import Any

import typer
from hypothesis import strategies as st

from ematix_flow.cli.app import app
from tests.property.fuzzed_values import TEXTS, misspelled

# these wait, write a project, start Spark or download; their options are tried by their own tests
_NOT_TRIED = {"scheduler", "web", "mcp", "demo", "init", "doctor", "jars fetch", "run-slot", "run-action"}
_NOT_GIVEN = {"--follow", "--show", "--install-completion", "--show-completion"}  # waits; shows a secret


def _commands() -> dict[str, list[tuple[str, bool]]]:
    """The options of each command, and whether they are flags."""
    found: dict[str, list[tuple[str, bool]]] = {}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        context = typer.Context(command)
        for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
            walk(command.get_command(context, name), (*path, name))
        if path and " ".join(path) not in _NOT_TRIED:
            found[" ".join(path)] = [
                (max(each.opts, key=len), bool(getattr(each, "is_flag", False)))
                for each in command.params
                if each.opts[0].startswith("-") and not set(each.opts) & _NOT_GIVEN
            ]

    walk(typer.main.get_command(app), ())
    return found


_OPTIONS = _commands()
_SELECTORS = [
    *["load", "load", "lod", "tag:x", "tag:", "source:shop", "source:x", "target:x", "workflow:x", "foo:x"],
    *["+load", "load+", "2+load+1", "@load", "load,tag:x", "l*", "[", "load load", " "],
]
_NUMBERS = ["1", "0", "-1", "x", "1.5", "nan", "inf", "99999999999999999999", "1e3", ""]
_URLS = ["sqlite:///runs.db", "foo://x", "x", "", "stdout://", "postgres://u:p@127.0.0.1:1/x", "file:///"]
_FIT = {
    "--select": _SELECTORS,
    "--exclude": _SELECTORS,
    "--module": ["project", "project.py", "projct", "nothing.py", ".", "..", "/", "a b", "os"],
    "--output": ["json", "text", "yaml"],
    "--engine": ["local", "lokal", "spark://", "local[x]"],
    "--run-log": _URLS,
    "--alerter": _URLS,
    "--metrics": _URLS,
    "--traces": _URLS,
    "--store": _URLS,
    "--force-path": ["same_db", "cross_db", "cross"],
    "--since": ["1d", "yesterday", "2026-01-01", "2026-13-01", "-1d"],
    "--older-than": ["30d", "0d", "x"],
    "--keep": _NUMBERS,
    "--status": ["failed", "faild", "succeeded"],
    "--pipeline": ["load", "lod", ""],
    "--max-shrink": ["0.5", "1", "2", "x", "nan"],
}
_POSITIONAL = st.one_of(
    st.sampled_from(_SELECTORS),
    st.sampled_from(["shop", "shp", "away", "${LOADED_BY}", "${NOT_SET}", "stdout://", "last", "0", "--"]),
    TEXTS,
)


@st.composite
def command_lines(draw: st.DrawFn, most: int = 3) -> list[str]:
    path = draw(st.sampled_from(sorted(_OPTIONS)))
    words = [draw(misspelled(word)) for word in path.split()]
    words += draw(st.lists(_POSITIONAL, max_size=draw(st.sampled_from([0, 1, 1, 2]))))
    for option, is_flag in draw(st.lists(st.sampled_from(_OPTIONS[path] or [("-h", True)]), max_size=most)):
        words.append(draw(misspelled(option)))
        if not is_flag:
            values = st.sampled_from(_FIT.get(option, _NUMBERS))
            words += draw(st.one_of(values, values, values, TEXTS).map(lambda value: [value]))
    if draw(st.integers(0, 20)) == 20:
        words.append(draw(st.sampled_from(["--debug", "--log-format", "--log-format=json", "-h", "--help"])))
    return [*words, "--plan"] if path == "consume" else words
