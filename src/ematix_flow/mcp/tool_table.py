"""The value of a tool, and how its arguments are read and checked.

`reading_tools` and `action_tools` have the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import UsageError, did_you_mean
from ematix_flow.web.answers import Answer
from ematix_flow.web.endpoints import Handler, Parameter


@dataclass(frozen=True)
class FlowTool:
    """One tool: what an assistant reads of it, and the function behind it."""

    name: str
    title: str
    description: str
    handler: Handler
    parameters: tuple[Parameter, ...] = ()
    required: tuple[str, ...] = ()
    is_action: bool = False
    is_destructive: bool = False

    def input_schema(self) -> dict[str, Any]:
        properties = {}
        for each in self.parameters:
            described = each.to_openapi(in_path=False)
            properties[each.name] = {**described["schema"], "description": each.description}
        return {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": False,
        }

    def read_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked arguments. Raises UsageError for unknown, missing or wrong ones."""
        known = {each.name: each for each in self.parameters}
        step = f"the parameters of {self.name}: {', '.join(known) or '(none)'}"
        found: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                shown = name[:100]
                raise UsageError(
                    f"{self.name} has no parameter {shown!r}.{did_you_mean(shown, known)}", next_step=step
                )
            if value is not None and value != "":
                try:
                    found[name] = known[name].parse(_to_text(name, value))
                except UsageError as error:
                    raise UsageError(error.what, next_step=step) from error
        missing = [name for name in self.required if name not in found]
        if missing:
            raise UsageError(f"{self.name} needs {' and '.join(missing)}", next_step=step)
        return found


def _to_text(name: str, value: Any) -> str:
    """The value as a query of `flow web` would have it, so that both are checked by the same rules."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise UsageError(f"{name} takes a text, a number or true or false, not a {type(value).__name__}")


def value_of(answer: Any) -> Any:
    """The value of a handler's answer, which may be rendered already."""
    return json.loads(answer.to_bytes()) if isinstance(answer, Answer) else answer
