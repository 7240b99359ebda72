"""Names of columns that trip generated SQL, drivers and file formats."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

HOSTILE = (
    # what strategies and dialects call their rows, work tables and helper columns among themselves
    *"stvrnmqpekciogd",
    *("src", "tgt", "rows", "ranged", "numbered", "level0", "_level0", "_rows", "c0", "c1", "key0", "k0"),
    *("value", "col", "batch", "changed", "gone", "events", "history", "ematix_t", "_since", "file"),
    # words of SQL
    *("select", "order", "NULL", "true", "default", "current_date", "rowid", "count", "max", "*", "--", "/*"),
    # marks
    *(
        "a.b",
        "t.id",
        ".",
        "s.t.u",
        "`",
        "a`b",
        "``",
        "'",
        "it's",
        '"',
        'd"q',
        "a,b",
        "(x)",
        "[0]",
        "{0}",
        "{}",
    ),
    *("per%cent", "%s", "%(x)s", ":name", "?", "$1", "@v", "#", "\\", "\\n", "a/b", "a=b", "a|b", "~", "{0}"),
    # spaces and letters
    *("two words", "  ", " leading", "\tleading", "a\tb", "a\nb", "\u00a0"),
    *("ID", "Mixed", "_LOADED", "é", "e\u0301", "ß", "İ", "列", "emoji \U0001f600", "x" * 63),
)


def fitting(never: Collection[str] = (), *, folds_case: bool = True) -> tuple[str, ...]:
    """The names that a system accepts; ``never`` are those it refuses, or characters in them."""
    marks = [mark for mark in never if len(mark) == 1]
    fit = [n for n in HOSTILE if n not in never and not any(mark in n for mark in marks)]
    return tuple({(n.lower() if folds_case else n): n for n in fit}.values())


def column_names(count: int, *, never: Collection[str] = ()) -> st.SearchStrategy[list[str]]:
    """This many different names."""
    return st.lists(st.sampled_from(fitting(never)), min_size=count, max_size=count, unique=True)
