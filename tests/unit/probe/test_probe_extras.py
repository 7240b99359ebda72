"""What is said when a library is missing, and which secrets and references texts hold."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ematix_probe import environment, extras, redaction
from ematix_probe.errors import DeclarationError, MissingDependency

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = {
    "ematix-flow-spark": REPOSITORY / "pyproject.toml",
    "ematix-probe-spark": REPOSITORY / "probe" / "pyproject.toml",
}


def project(distribution: str) -> dict[str, list[str]]:
    """The requirements of a distribution: of its base and of each extra."""
    declared = tomllib.loads(FILES[distribution].read_text(encoding="utf-8"))["project"]
    return {"": declared["dependencies"], **declared["optional-dependencies"]}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in requirements}


@pytest.mark.parametrize("distribution", FILES)
@pytest.mark.parametrize("library", extras.LIBRARIES, ids=lambda library: library.name)
def test_the_extra_that_an_error_names_has_the_library(
    distribution: str, library: extras.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda: distribution)
    declared = project(distribution)
    base = names(declared[""])
    if library.name in base:
        return
    assert library.extra is not None
    assert library.name in names(declared[extras.extra_name(library.extra)])
    assert extras.install_command(library.extra).endswith(
        f"-m pip install '{distribution}[{extras.extra_name(library.extra)}]'"
    )


def test_both_distributions_ask_for_the_same_versions() -> None:
    flow, alone = project("ematix-flow-spark"), project("ematix-probe-spark")
    known = {each for group in flow.values() for each in group}
    assert {each for name, group in alone.items() if name != "all" for each in group} <= known


def test_a_missing_library_says_what_to_install() -> None:
    with pytest.raises(MissingDependency, match="a test needs the library 'no_such_library'") as raised:
        extras.require("no_such_library.part", "delta", "a test")
    assert str(raised.value.next_step).startswith(f"{sys.executable} -m pip install 'ematix-")
    with pytest.raises(MissingDependency) as raised:
        extras.require("no_such_library", "duckdb", "a test")
    assert str(raised.value.next_step) == f"{sys.executable} -m pip install duckdb"


def test_a_library_that_is_there_but_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("broken_library.py").write_text("import no_such_part\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        extras.require("broken_library", "delta", "a test")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://eve:geheim@db/shop", "postgres://eve:***@db/shop"),
        ("postgres://eve:ge@he:im@db/shop", "postgres://eve:***@db/shop"),
        ("host=db password=geheim user=eve", "host=db password=*** user=eve"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ('{"api_key": "geheim", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("{'secret_access_key': 'a\\'b'}", "{'secret_access_key': '***'}"),
        ("12:30:00 in the shop", "12:30:00 in the shop"),
        ("no secret here", "no secret here"),
    ],
)
def test_what_follows_the_name_of_a_secret_is_masked(text: str, shown: str) -> None:
    assert redaction.mask(text) == shown


def test_a_hostile_text_is_masked_in_no_time() -> None:
    assert redaction.mask("a://" * 20_000 + "password" * 5_000).startswith("a://")


def test_values_of_variables_that_are_called_like_secrets_are_masked() -> None:
    redaction.remember_secret_variables(
        {
            "SHOP_PASSWORD": "rabbit-hole",
            "SHOP_URL": "postgres://eve:wonder%2Fland@db/x",
            "API_KEY": "production",  # a word: to mask it would damage messages
            "KEY_FILE_KEY": "/etc/key",
            "PLAIN": "nothing-secret",
        }
    )
    text = "rabbit-hole wonder/land production /etc/key nothing-secret"
    assert redaction.mask(text) == "*** *** production /etc/key nothing-secret"
    assert redaction.mask_all({"a": ["rabbit-hole", 1, None]}) == {"a": ["***", 1, None]}


def test_references_are_replaced_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_HOST", "db")
    assert environment.resolve("postgres://${SHOP_HOST}:${env:SHOP_PORT:-5432}/x") == "postgres://db:5432/x"
    assert environment.secrets_in("${SHOP_HOST} ${SHOP_OTHER}") == []
    with pytest.raises(DeclarationError, match="no variable 'SHOP_NAME'") as raised:
        environment.resolve("${SHOP_NAME}", "checks.py:3")
    assert raised.value.where == "checks.py:3"
