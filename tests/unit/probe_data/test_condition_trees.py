"""The trees of conditions: many are joined without copying the joined ones again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlglot import exp

from ematix_probe.compiling.trees import all_of, any_of, column, is_null


@pytest.mark.parametrize("join", [all_of, any_of])
def test_each_condition_is_copied_once(
    join: Callable[..., exp.Expression | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions = [is_null(column("a")) for _ in range(50)]
    copied: list[exp.Expression] = []
    copy = exp.Expression.copy

    def counted(tree: Any) -> Any:
        copied.extend(each for each in tree.walk() if isinstance(each, exp.Is))
        return copy(tree)

    monkeypatch.setattr(exp.Expression, "copy", counted)
    joined = join(*conditions)
    assert len(copied) == 50
    assert joined is not None and joined.sql().count("IS NULL") == 50


def test_conditions_keep_their_parentheses_and_are_not_changed() -> None:
    one, two = exp.Not(this=column("a")), column("b")
    joined = any_of(one, two, all_of(two, one))
    assert joined is not None
    assert joined.sql() == '((NOT "checked"."a") OR "checked"."b") OR ("checked"."b" AND (NOT "checked"."a"))'
    assert one.parent is None and two.parent is None
