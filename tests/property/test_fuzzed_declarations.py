"""Generated declarations: accepted, or refused with an error at the user's line; rows arrive unchanged."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ematix_flow.errors import FlowError, ModuleLoadError
from ematix_flow.graph.module_loading import load_module
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.spec.location import is_package_file
from tests.property.fuzzed_declarations import HEAD, ORDERS, calls, modules, streams
from tests.property.fuzzed_project import (
    CANARY,
    call_flow,
    new_folder,
    require_a_clear_end,
    seed_and_secret,
)
from tests.property.fuzzed_values import more, seeded

__all__ = ["seed_and_secret"]  # a fixture


# what the generated modules raise by themselves; a TypeError would be of a call of ours.
# AttributeError: typing.Annotated reads the attributes of what it is given
_OF_THE_USER = (SyntaxError, NameError, ModuleNotFoundError, RuntimeError, AttributeError)


def require_taken_or_refused(base: Path, module: str) -> None:
    """Import the module as a command does, without the command around it: most of the time a case takes."""
    with new_folder(base) as folder, use_registry(Registry()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (folder / "project.py").write_text(module, encoding="utf-8")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                load_module("project.py")
        except FlowError as error:
            shown = f"{error}\n{module}"
            assert error.advice and str(error.where).startswith("project.py:"), shown
            if isinstance(error, ModuleLoadError):
                assert isinstance(error.__cause__, _OF_THE_USER), shown
                assert not _is_raised_by_us(error.__cause__), shown
            else:
                assert error.exit_code == 2, shown
                assert CANARY not in str(error), shown


def _is_raised_by_us(error: BaseException | None) -> bool:
    """Whether a call of this package raised Python's own error, where it should raise a FlowError."""
    assert error is not None
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    users = [number for number, name in enumerate(frames) if name.endswith("project.py")]
    return bool(users) and any(is_package_file(name) for name in frames[users[-1] :])


@seeded(350)
@given(module=modules())
def test_a_generated_module_is_taken_or_refused(tmp_path: Path, module: str) -> None:
    require_taken_or_refused(tmp_path, module)


@seeded(350)
@given(call=calls())
@example(call="Target(tabel=Orders)")
@example(call="pk(x=1)")
@example(call="ematix.pipline(target=Orders)")
@example(call="ematix_flow.Tagret()")
@example(call="pk")
def test_a_generated_call_of_a_public_name_is_taken_or_refused(tmp_path: Path, call: str) -> None:
    require_taken_or_refused(tmp_path, f"{HEAD}{ORDERS}\nfound = {call}\n")


@seeded(200)
@given(module=streams())
def test_a_generated_stream_is_taken_or_refused(tmp_path: Path, module: str) -> None:
    require_taken_or_refused(tmp_path, module)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@more(20_000)
@given(module=st.one_of(modules(), streams(), calls().map(lambda call: f"{HEAD}{ORDERS}\nfound = {call}\n")))
def test_many_generated_declarations_are_taken_or_refused(tmp_path: Path, module: str) -> None:
    require_taken_or_refused(tmp_path, module)


# --- what the declarations do ----------------------------------------------------------------------

COMMANDS = st.sampled_from(
    [
        ["plan", "load"],
        ["run", "load"],
        ["run", "load"],
        ["validate", "load"],
        ["preview", "load"],
        ["list"],
        ["dry-run", "load"],
        ["run", "--all"],
        ["plan", "--all"],
        ["status"],
        ["transform", "list"],
    ]
)
OUTPUTS = st.sampled_from([["--output", "json"], ["--output", "json"], []])


def require_clear_end_of(base: Path, module: str, command: list[str], output: list[str]) -> None:
    arguments = [*command, "--module", "project.py", *output]
    called = call_flow(base, arguments, {"project.py": module}, [(1, "x"), (2, None)])
    try:
        require_a_clear_end(called)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{module}") from None


@seeded(200)
@given(module=modules(), command=COMMANDS, output=OUTPUTS)
def test_a_command_over_a_generated_module_ends_clearly(
    tmp_path: Path, module: str, command: list[str], output: list[str]
) -> None:
    require_clear_end_of(tmp_path, module, command, output)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@more(10_000)
@given(module=modules(), command=COMMANDS, output=OUTPUTS)
def test_many_commands_over_generated_modules_end_clearly(
    tmp_path: Path, module: str, command: list[str], output: list[str]
) -> None:
    require_clear_end_of(tmp_path, module, command, output)


# --- names and rows --------------------------------------------------------------------------------

CELLS = st.one_of(
    st.none(),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00"), max_size=8),
)
ROWS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), CELLS), max_size=5, unique_by=lambda row: row[0])
NAMES = st.lists(
    st.text(st.characters(whitelist_categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=8),
    min_size=3,
    max_size=3,
    unique_by=str.casefold,
)
MODES = st.sampled_from(["append", "merge", "truncate"])


def require_rows_as_they_are(
    base: Path, rows: list[tuple[int, str | None]], mode: str, names: list[str]
) -> None:
    first, second, table = names
    module = f"""{HEAD}
class Copied(ManagedTable):
    __tablename__ = {table!r}
    one = Column(BigInt, primary_key=True, name={first!r})
    two = Column(Text, name={second!r})

@ematix.pipeline(target=Copied, target_connection="shop", mode={mode!r}, allow_empty=True,
                 column_map={{{first!r}: "a", {second!r}: "b"}}, source_table="raw")
def load():
    pass
"""
    arguments = ["run", "load", "--module", "m.py", "--output", "json"]
    called = call_flow(base, arguments, {"m.py": module}, rows, table)
    require_a_clear_end(called)
    if called.code == 0:
        assert called.rows is not None, called
        assert sorted((row[:2] for row in called.rows), key=repr) == sorted(rows, key=repr), called
    else:  # a name that the control columns or the database have already
        assert re.search(r"column|name|table", called.out), called


@seeded(60)
@given(rows=ROWS, mode=MODES, names=NAMES)
@example(rows=[(1, "x")], mode="merge", names=["valid to", "select", "order"])
def test_rows_arrive_as_they_are_under_any_names(
    tmp_path: Path, rows: list[tuple[int, str | None]], mode: str, names: list[str]
) -> None:
    require_rows_as_they_are(tmp_path, rows, mode, names)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@more(2_000)
@given(rows=ROWS, mode=MODES, names=NAMES)
def test_many_rows_arrive_as_they_are_under_any_names(
    tmp_path: Path, rows: list[tuple[int, str | None]], mode: str, names: list[str]
) -> None:
    require_rows_as_they_are(tmp_path, rows, mode, names)
