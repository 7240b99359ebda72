"""The contract of every target as lake tables keep to it: a load costs seconds on Spark.

What a strategy means is held by the databases, whose SQL is the same, and by the model in tests/property.
Every run holds what a lake does in its own way; ``-m long`` holds all of it.
"""

from __future__ import annotations

from ematix_flow.testing.contract_merge import MergeContract
from ematix_flow.testing.contract_scd2 import Scd2Contract


class LakeContract(MergeContract, Scd2Contract):
    thrifty = True
    in_every_run = frozenset(
        {
            "test_every_type_and_null_arrives_unchanged",
            "test_hostile_column_names_round_trip",
            'test_hostile_table_names_round_trip[quo"te]',
            "test_a_hundred_thousand_rows_in_several_parts_arrive_once_each",
            "test_a_batch_whose_key_is_in_the_ledger_is_not_applied_again",
            "test_a_part_whose_answer_never_came_is_not_applied",
            "test_the_ledger_tells_what_each_batch_did",
            "test_truncate_replaces_every_row",
            "test_an_empty_source_does_not_empty_a_table_unasked",
            "test_ties_at_the_boundary_are_neither_lost_nor_doubled_without_a_key",
            "test_a_crash_at_any_commit_point_leaves_before_or_after_and_the_ledger_agrees[truncate]",
            "test_a_second_run_of_the_same_pipeline_is_locked_out",
            "test_staging_that_a_crash_left_is_swept_and_other_pipelines_keep_theirs",
            "test_a_dry_run_counts_and_changes_nothing",
            "test_a_column_of_another_type_is_a_difference",
            "test_a_new_nullable_column_can_be_added",
            "test_merge_inserts_updates_and_leaves_the_rest_untouched[staged]",
            "test_merge_sees_a_change_of_every_type_to_and_from_null",
            "test_two_rows_with_one_key_are_refused_and_named[staged]",
            "test_hard_deletes_remove_what_the_source_lacks[staged]",
            "test_a_merge_that_crashes_at_any_commit_point_leaves_before_or_after[soft]",
        }
    )
