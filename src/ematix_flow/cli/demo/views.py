"""The views of the demo: they show each plan in a short form before it runs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ematix_flow.cli.terminal import style_text, terminal_width
from ematix_flow.cli.run_views import LineView, LiveView, RunView

if TYPE_CHECKING:
    from ematix_flow.plan.definition import Plan


class _ShortPlanView(RunView):
    def planned(self, plan: Plan) -> None:
        head, *rest = short_plan(plan)
        self.write_line(style_text(head, "bold", self.stream))
        width = terminal_width(self.stream)
        for line in rest:
            folded = line if width is None else textwrap.fill(line, width, subsequent_indent=" " * 9)
            self.write_line(style_text(folded, "dim", self.stream))


class DemoLineView(_ShortPlanView, LineView):
    pass


class DemoLiveView(_ShortPlanView, LiveView):
    pass


def short_plan(plan: Plan) -> list[str]:
    """The main lines of a plan, from its stages."""
    from ematix_flow.plan.explain import describe_range, describe_stage

    lines = []
    for target in plan.targets:
        lines.append(
            f"plan  {plan.pipeline.name}: {target.target.mode} from {plan.source_connection} "
            f"into {target.target.label}"
        )
        lines.append(f"      path: {target.path.value}, because {target.path.reason}")
        if target.range is not None:
            lines.append(f"      range: {describe_range(target.range)}")
        steps = [text for stage in target.stages for text in describe_stage(stage, target)]
        lines += [f"      {number}. {text}" for number, text in enumerate(steps, start=1)]
    return lines
