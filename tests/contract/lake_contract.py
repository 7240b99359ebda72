"""The contract of every target as lake tables keep to it: a load costs seconds on Spark.

What a strategy means is held by the databases, whose SQL is the same, and by the model in tests/property.
Every run holds what a lake does in its own way; ``make test-long`` holds all of it.
"""

from __future__ import annotations

from ematix_flow.testing.contract_merge import MergeContract
from ematix_flow.testing.contract_scd2 import Scd2Contract
from tests.contract.chosen import IN_EVERY_RUN


class LakeContract(MergeContract, Scd2Contract):
    in_every_run = (IN_EVERY_RUN - {"test_a_late_event_splits_the_version_it_falls_into[staged]"}) | {
        "test_a_part_whose_answer_never_came_is_not_applied",
        "test_the_ledger_tells_what_each_batch_did",
        "test_an_empty_source_does_not_empty_a_table_unasked",
        "test_staging_that_a_crash_left_is_swept_and_other_pipelines_keep_theirs",
        "test_a_dry_run_counts_and_changes_nothing",
    }
