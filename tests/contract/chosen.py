"""Chooses on which stores a contract test runs in ``make test``; ``make test-long`` runs it on all of them.

A contract runs whole on SQLite and Postgres, and on each store that has separate code (Kafka, memory, one
object store). The other stores run the same code through another dialect or client: each
test runs on one of them, and each of them runs its share of every contract.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest

NO_SERVER = ("duckdb",)


def shared_out(*stores: str) -> list[Any]:
    """The stores as parameters of a fixture or test: every run takes each test on one of them."""
    return [
        pytest.param(
            store,
            marks=[
                pytest.mark.sampled(part, of=len(stores), store=store),
                *(() if store in NO_SERVER else (getattr(pytest.mark, store),)),
            ],
        )
        for part, store in enumerate(stores)
    ]


def runs_always(item: pytest.Item) -> bool:
    """Whether the test is in every run: chosen by its class's ``in_every_run``, or in the part of its store.

    The part follows from the test's name, so that a new test moves no other one.
    """
    chosen = getattr(getattr(item, "cls", None), "in_every_run", None)
    sampled = item.get_closest_marker("sampled")
    if chosen is not None and item.name in chosen:
        return True
    if sampled is None:
        return chosen is None
    test = item.name.replace(sampled.kwargs.get("store", ""), "", 1)
    return zlib.crc32(test.encode()) % int(sampled.kwargs["of"]) == sampled.args[0]


# The least that every target must show in every run
IN_EVERY_RUN = frozenset(
    {
        "test_every_type_and_null_arrives_unchanged",
        "test_hostile_column_names_round_trip",
        'test_hostile_table_names_round_trip[quo"te]',
        "test_a_hundred_thousand_rows_in_several_parts_arrive_once_each",
        "test_a_batch_whose_key_is_in_the_ledger_is_not_applied_again",
        "test_truncate_replaces_every_row",
        "test_ties_at_the_boundary_are_neither_lost_nor_doubled_without_a_key",
        "test_a_crash_at_any_commit_point_leaves_before_or_after_and_the_ledger_agrees[truncate]",
        "test_a_second_run_of_the_same_pipeline_is_locked_out",
        "test_a_column_of_another_type_is_a_difference",
        "test_a_new_nullable_column_can_be_added",
        "test_a_late_event_splits_the_version_it_falls_into[staged]",
        "test_merge_inserts_updates_and_leaves_the_rest_untouched[staged]",
        "test_merge_sees_a_change_of_every_type_to_and_from_null",
        "test_two_rows_with_one_key_are_refused_and_named[staged]",
        "test_hard_deletes_remove_what_the_source_lacks[staged]",
        "test_a_merge_that_crashes_at_any_commit_point_leaves_before_or_after[soft]",
    }
)
