"""Values and names of which generated projects are made, each as the text of a Python expression."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st


def seeded(cases: int) -> settings:
    """The same cases in every run; a failing case is not minimised, because that takes too long."""
    return settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


def more(cases: int) -> settings:
    """Other cases in every run, for tests that are marked ``long``."""
    return settings(max_examples=cases, database=None, suppress_health_check=list(HealthCheck))


ODD_NAMES = [
    "",
    " ",
    "ä",
    "select",
    "a b",
    'a"b',
    "a'b",
    "a`b",
    "a.b",
    "a/b",
    "../a",
    "x" * 70,
    "x" * 5_000,
    "\u202e",
    "a\nb",
    "a\x00b",
    "%s",
    "{0}",
    "${LOADED_BY}",
    "${",
    "0",
    "-",
    "--all",
    "*",
    "é́",
    "A",
    "ß",
]
WORDS = ["orders", "a", "b", "id", "raw", "shop", "append", "daily", "1h", "UTC", "CEST", "trim", "load"]
TEXTS = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(ODD_NAMES),
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=6),
)
_OBJECTS = st.sampled_from(
    [
        "None",
        "True",
        "False",
        "0",
        "-1",
        "1",
        "10**30",
        "1.5",
        "float('nan')",
        "float('inf')",
        "b'x'",
        "...",
        "object()",
        "print",
        "(lambda: 1)",
        "(lambda a, b, c: 1)",
        "(lambda conn: 'SELECT a, b FROM raw')",
        "Orders",
        "Orders()",
        "shop",
        "away",
        "ematix",
        "os",
        "BigInt",
        "Text | None",
        "String",
        "pk()",
        "trim",
        "trim()",
        "Decimal('1')",
        "dt.timedelta(hours=1)",
        "dt.timedelta(-1)",
        "dt.date(2026, 1, 1)",
        "{1, 2}",
        "range(3)",
        "[]",
        "{}",
        "()",
        "[[]]",
        "[None]",
        "[{}]",
        "{'a': {}}",
        "{1: 2}",
        "{None: None}",
        "os.environ['LOADED_BY']",
        "['load']",
        "['a']",
        "['b', 'b']",
        "iter(['a'])",
        "Exception('x')",
    ]
)
VALUES = st.one_of(
    _OBJECTS,
    TEXTS.map(repr),
    st.lists(TEXTS, max_size=2).map(repr),
    st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(-1, 5)), max_size=2).map(repr),
)


@st.composite
def misspelled(draw: st.DrawFn, name: str) -> str:
    """The name itself, most of the time; else with a letter too many, too few, or two that changed places."""
    slip = draw(st.sampled_from([*[""] * 27, "left out", "swapped", "added"]))
    if not slip:
        return name
    place = draw(st.integers(0, max(len(name) - 2, 0)))
    before, one, two, after = (
        name[:place],
        name[place : place + 1],
        name[place + 1 : place + 2],
        name[place + 2 :],
    )
    if slip == "added":
        return f"{name}s"
    return (before + two + one + after) if slip == "swapped" else (before + two + after) or "x"
