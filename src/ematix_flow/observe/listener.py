"""What a run tells whoever watches it. The default listens to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.plan.definition import Plan


class Listener:
    """Override what you want to see. Called from the run's own thread, except `rows`."""

    def for_pipeline(self, name: str) -> Listener:
        """Who listens to this one, where several pipelines run side by side."""
        return self

    def planned(self, plan: Plan) -> None:
        """The plan is made and will be carried out now."""

    def stage_started(self, target: str, stage: str) -> None:
        """A stage begins."""

    def rows(self, target: str, count: int) -> None:
        """So many rows were staged so far. Called from a background thread."""

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        """A stage ended well."""

    def note(self, text: str) -> None:
        """Something worth saying: an interrupted run was settled, leftovers were removed."""
