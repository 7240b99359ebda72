"""The planner's choices, each with its reason, from capabilities alone."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.errors import GuaranteeRefused, Unsupported
from ematix_flow.plan.connection_comparison import ConnectionComparison
from ematix_flow.plan.load_paths import choose_path, derive_guarantee
from ematix_flow.plan.tuning import LoadShape, choose_tuning, tuned_value
from ematix_flow.spec.pipelines import PipelineSpec, SourceSpec, TargetSpec

DATABASE = Capabilities(
    source=True, strategies=frozenset({"append"}), transactions=True, same_db=True, parallel_read=True
)
ONE_WRITER = Capabilities(
    source=True, strategies=frozenset({"append"}), transactions=True, parallel_write=False
)


def spec(**options: Any) -> PipelineSpec:
    return PipelineSpec("load", "module:load", (TargetSpec("warehouse"),), **options)


def path(force_path: str | None = None, **facts: Any) -> str:
    known: dict[str, Any] = {
        "endpoints": ConnectionComparison(False),
        "native_source": False,
        "computes": None,
        "target": DATABASE,
    }
    return choose_path(spec(force_path=force_path), **{**known, **facts}).value


def test_one_database_computes_by_itself() -> None:
    assert path(endpoints=ConnectionComparison(True)) == "same_db"
    assert path(endpoints=ConnectionComparison(True), computes="normalisation of email") == "same_db"


def test_two_systems_copy_unless_something_must_be_computed() -> None:
    assert path() == "copy"
    assert path(computes="normalisation of email") == "spark"
    assert path(native_source=True) == "spark"


def test_a_path_can_be_forced_where_it_is_possible() -> None:
    assert path("copy", endpoints=ConnectionComparison(True)) == "copy"
    assert path("spark") == "spark"
    assert path("cross_db", endpoints=ConnectionComparison(True)) == "copy"
    assert path("cross_db", endpoints=ConnectionComparison(True), computes="x") == "spark"
    assert path("cross_db") == "copy"


@pytest.mark.parametrize(
    ("forced", "facts", "words"),
    [
        ("same_db", {}, "not the same database"),
        ("copy", {"native_source": True}, "Spark reads this source"),
        ("copy", {"computes": "normalisation of email"}, "computes nothing"),
    ],
)
def test_an_impossible_path_is_refused_with_the_reason(
    forced: str, facts: dict[str, Any], words: str
) -> None:
    with pytest.raises(Unsupported, match=words):
        path(forced, **facts)


def test_a_promise_that_the_target_cannot_keep_is_refused() -> None:
    without = Capabilities(strategies=frozenset({"append"}))
    assert derive_guarantee(spec(), DATABASE, "postgres").value == "exactly_once"
    assert derive_guarantee(spec(guarantee="at_least_once"), without, "kafka").value == "at_least_once"
    with pytest.raises(GuaranteeRefused, match="no transaction"):
        derive_guarantee(spec(guarantee="exactly_once"), without, "kafka")


def test_rows_that_come_late_unseen_are_promised_at_most_once() -> None:
    given = derive_guarantee(spec(), DATABASE, "postgres", "shop")
    assert given.value == "at_most_once"
    assert "shop does not show which transactions are open" in given.reason


@pytest.mark.parametrize("promise", ["exactly_once", "at_least_once"])
def test_a_promise_beyond_rows_that_come_late_unseen_is_refused(promise: str) -> None:
    with pytest.raises(GuaranteeRefused, match=f"'{promise}'.* below the watermark is never read") as refused:
        derive_guarantee(spec(guarantee=promise), DATABASE, "postgres", "shop")
    assert "set lag= to more seconds" in str(refused.value)


def test_a_lag_is_what_the_promise_then_rests_on() -> None:
    held_back = SourceSpec(watermark_column="at", lag_seconds=60.0)
    given = derive_guarantee(spec(source=held_back, guarantee="exactly_once"), DATABASE, "postgres", "shop")
    assert given.value == "exactly_once"
    assert "no transaction in shop may stay open longer than lag=60 seconds" in given.reason


@pytest.mark.parametrize(
    ("source", "target", "tasks", "parts"),
    [(DATABASE, DATABASE, 8, 0), (DATABASE, ONE_WRITER, 1, 1), (ONE_WRITER, DATABASE, 1, 0)],
)
def test_tasks_follow_what_both_ends_can_do(
    source: Capabilities, target: Capabilities, tasks: int, parts: int
) -> None:
    chosen = choose_tuning(LoadShape("copy", source, target, 8))
    assert tuned_value(chosen, "read tasks", -1) == tasks
    assert tuned_value(chosen, "staging parts", 0) == parts
    assert all(choice.reason for choice in chosen)
    assert choose_tuning(LoadShape("same_db", source, target, 8)) == ()


FILES = Capabilities(source=True, strategies=frozenset({"append"}), transactions=True, file_bytes=256 << 20)


@pytest.mark.parametrize(
    ("size", "parts", "why"),
    [(0, 1, "0 KB"), (5 << 20, 1, "5 MB"), (100 << 20, 6, "100 MB"), (10 << 30, 640, "10,240 MB")],
)
def test_a_load_of_files_into_files_leaves_no_small_ones(size: int, parts: int, why: str) -> None:
    chosen = {c.name: c for c in choose_tuning(LoadShape("spark", FILES, FILES, 8, size, ("day",)))}
    assert chosen["staging parts"].value == str(parts)
    assert f"of the source's {why}" in chosen["staging parts"].reason
    assert chosen["rows together by"].value == "day"
    assert chosen["file size"].value == "up to 256 MB"


def test_what_is_not_known_of_a_source_decides_nothing() -> None:
    names = {c.name for c in choose_tuning(LoadShape("spark", DATABASE, FILES, 8))}
    assert names == {"read tasks", "file size"}
    assert {c.name for c in choose_tuning(LoadShape("spark", FILES, DATABASE, 8, 5, ("day",)))} == {
        "read tasks"
    }
