"""Which probes a file, folder or module declares, and what is said when it cannot be read."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from pathlib import Path

import pytest

from ematix_probe.errors import DeclarationError, ModuleLoadError, UsageError
from ematix_probe.loading import load_probes, select_probes
from tests.unit.probe.conftest import Call

ONE = """
from ematix_probe import probe, source

@probe.data(source=source.csv("a.csv"))
def {name}(t):
    t.row_count(at_least=1)
"""


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def forget_modules(ematix_probe: Call) -> None:
    """The modules of a test are forgotten after it."""


def names(*paths: str) -> list[str]:
    return [each.name for each in load_probes(paths)]


def test_the_probes_of_a_file_come_in_the_order_of_their_declaration(shop: Path) -> None:
    assert names("checks.py") == ["customers", "orders", "orders_warning"]


def test_a_probe_of_a_path_is_taken_by_its_name(shop: Path) -> None:
    assert names("checks.py::orders") == ["orders"]


def test_a_folder_is_read_with_its_folders_and_without_what_is_no_probe() -> None:
    write("checks/b.py", ONE.format(name="b"))
    write("checks/deeper/a.py", ONE.format(name="a"))
    write("checks/plain.py", "raise RuntimeError('never imported')")
    write("checks/conftest.py", "raise RuntimeError('probe')")
    write("checks/.hidden/c.py", "raise RuntimeError('probe')")
    write("checks/env/pyvenv.cfg", "")
    write("checks/env/d.py", "raise RuntimeError('probe')")
    assert names("checks") == ["b", "a"]


def test_a_module_is_found_by_its_dotted_name_in_the_working_directory() -> None:
    write("quality/__init__.py", "")
    write("quality/daily.py", ONE.format(name="daily"))
    assert names("quality.daily") == ["daily"]


def test_a_file_of_a_package_may_import_its_neighbours() -> None:
    write("quality/__init__.py", "")
    write("quality/parts.py", ONE.format(name="part"))
    write("quality/all.py", "from quality.parts import part\nfrom .parts import part as again\n")
    assert names("quality/all.py") == ["part"]


def test_two_files_of_one_name_are_both_read() -> None:
    write("one/checks.py", ONE.format(name="first"))
    write("two/checks.py", ONE.format(name="second"))
    assert names("one/checks.py", "two/checks.py") == ["first", "second"]


def test_probes_in_lists_and_dicts_are_found_once() -> None:
    write(
        "made.py",
        ONE.format(name="p") + "\nlisted = [p]\nby_name = {'p': p}\n",
    )
    assert names("made.py", "made.py") == ["p"]


def test_two_probes_of_one_name_are_refused_with_both_places() -> None:
    write("one.py", ONE.format(name="p"))
    write("two.py", ONE.format(name="p"))
    with pytest.raises(ModuleLoadError, match="two probes are called 'p'") as raised:
        load_probes(["one.py", "two.py"])
    assert raised.value.where == "one.py:4 and two.py:4"


LOAD = """
from ematix_probe import http, probe

@probe.load(target=http("GET", "http://127.0.0.1:1/"), rate=1, duration=1, name="{name}")
def p(t):
    t.p99_under(1)
"""


@pytest.mark.parametrize(
    "text", [ONE.format(name="p") + ONE.format(name="p"), LOAD.format(name="a") + LOAD.format(name="b")]
)
def test_a_probe_that_a_later_one_of_its_file_replaces_is_refused_with_both_places(text: str) -> None:
    write("twice.py", text)
    with pytest.raises(DeclarationError, match="two functions of probes are called 'p'") as raised:
        load_probes(["twice.py"])
    assert raised.value.where == "twice.py:4 and twice.py:10"


def test_a_probe_may_replace_one_of_another_import_of_its_file_or_of_another_file() -> None:
    write("parts.py", ONE.format(name="p"))
    file = write("again.py", "from parts import p\n" + ONE.format(name="p"))
    assert names("again.py") == ["p"]
    file.write_text("\n\nx = 1\n" + ONE.format(name="p"), encoding="utf-8")
    importlib.reload(sys.modules["again"])
    write("loop.py", "made = []\nfor n in (1, 2):\n" + indent(LOOPED))
    assert names("loop.py") == ["p1", "p2"]


LOOPED = """
from ematix_probe import probe, source

@probe.data(source=source.csv("a.csv"), name=f"p{n}")
def p(t):
    t.row_count(at_least=1)
made.append(p)
"""


def indent(text: str) -> str:
    return textwrap.indent(text, "    ")


def test_a_syntax_error_is_told_with_its_line() -> None:
    write("broken.py", "from ematix_probe import probe\ndef x(:\n")
    with pytest.raises(ModuleLoadError, match="raised SyntaxError while it was imported") as raised:
        load_probes(["broken.py"])
    assert raised.value.where == "broken.py:2"
    assert raised.value.state == "nothing was run"


def test_what_a_file_raises_is_told_with_the_innermost_line_of_the_user() -> None:
    write("parts.py", "def fetch():\n    return int('x')\n")
    write("broken.py", "import parts\n\nprobe = parts.fetch()\n")
    with pytest.raises(ModuleLoadError, match=r"broken\.py raised ValueError") as raised:
        load_probes(["broken.py"])
    assert raised.value.where == "parts.py:2"


def test_a_file_that_exits_does_not_end_the_command() -> None:
    write("leaves.py", "import sys\nsys.exit(0)\n")
    with pytest.raises(ModuleLoadError, match="raised SystemExit"):
        load_probes(["leaves.py"])


def test_a_wrong_declaration_points_at_its_line() -> None:
    write("wrong.py", ONE.format(name="p").replace("at_least=1", "at_least=-1"))
    with pytest.raises(Exception, match="at_least") as raised:
        load_probes(["wrong.py"])
    assert getattr(raised.value, "where", None) == "wrong.py:6"


def test_a_missing_file_suggests_a_near_one(shop: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file check\.py\. Did you mean 'checks\.py'"):
        load_probes(["check.py"])


def test_a_missing_module_suggests_a_near_file(shop: Path) -> None:
    with pytest.raises(UsageError, match=r"no file, folder or module 'check' .* Did you mean 'checks\.py'"):
        load_probes(["check"])


def test_a_module_that_a_module_lacks_is_the_modules_error_and_no_wrong_path() -> None:
    write("needy.py", "import no_such_library\n")
    with pytest.raises(ModuleLoadError, match=r"ModuleNotFoundError.*no_such_library"):
        load_probes(["needy"])


@pytest.mark.parametrize("path", ["empty.py", "empty"])
def test_a_file_without_probes_says_how_to_declare_one(path: str) -> None:
    write("empty.py", "x = 1\n")
    with pytest.raises(UsageError, match=f"{path} declares no probe") as raised:
        load_probes([path])
    assert "@probe.data" in str(raised.value.next_step)


def test_a_folder_without_probes_says_which_files_were_read() -> None:
    write("checks/a.py", "# no probe here\n")
    with pytest.raises(UsageError, match="the folder checks declares no probe") as raised:
        load_probes(["checks"])
    assert raised.value.state == "read: checks/a.py"


def test_a_file_of_a_folder_that_cannot_be_read_is_named() -> None:
    Path("checks").mkdir()
    os.symlink("/nowhere/gone.py", "checks/gone.py")
    with pytest.raises(ModuleLoadError, match=r"checks/gone\.py cannot be read: No such file"):
        load_probes(["checks"])


def test_what_is_neither_path_nor_module_is_refused() -> None:
    with pytest.raises(UsageError, match="'a b' is neither a file, a folder nor a module"):
        load_probes(["a b"])


def test_names_are_selected_with_wildcards_and_an_unknown_one_is_suggested(shop: Path) -> None:
    found = load_probes(["checks.py"])
    assert [each.name for each in select_probes(found, ["orders*"])] == ["orders", "orders_warning"]
    with pytest.raises(UsageError, match=r"no probe 'order'\. Did you mean 'orders'") as raised:
        select_probes(found, ["order"])
    assert raised.value.next_step == "the probes are customers, orders, orders_warning"


def test_an_object_that_answers_every_question_is_no_probe() -> None:
    write(
        "mocked.py",
        ONE.format(name="p") + "\nfrom unittest.mock import MagicMock\nclient = MagicMock()\n",
    )
    assert names("mocked.py") == ["p"]
