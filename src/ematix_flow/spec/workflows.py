"""A workflow and what starts it, as frozen values with a JSON round trip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import Catchup


@dataclass(frozen=True)
class Trigger:
    """``all`` or ``any`` of names and nested triggers."""

    kind: Literal["all", "any"]
    members: tuple[str | Trigger, ...]

    def __str__(self) -> str:
        """``orders and (items or stock)``"""
        parts = [f"({m})" if isinstance(m, Trigger) and len(m.members) > 1 else str(m) for m in self.members]
        return (" and " if self.kind == "all" else " or ").join(parts)

    def names(self) -> tuple[str, ...]:
        """All names in the trigger, at any depth."""
        return tuple(n for m in self.members for n in (m.names() if isinstance(m, Trigger) else (m,)))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "members": [m.to_json() if isinstance(m, Trigger) else m for m in self.members],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Trigger:
        members = (cls.from_json(m) if isinstance(m, dict) else m for m in value["members"])
        return cls(value["kind"], tuple(members))


@dataclass(frozen=True)
class WorkflowSpec:
    """Pipelines that run together, and what starts them."""

    name: str
    jobs: tuple[str, ...]
    triggered_by: Trigger | None = None
    schedule: str | None = None
    timezone: str | None = None
    catchup: Catchup = "last"
    where: SourceLocation | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "jobs": list(self.jobs),
            "triggered_by": self.triggered_by.to_json() if self.triggered_by else None,
            "schedule": self.schedule,
            "timezone": self.timezone,
            "catchup": self.catchup,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WorkflowSpec:
        return cls(
            **{
                **value,
                "jobs": tuple(value["jobs"]),
                "triggered_by": Trigger.from_json(value["triggered_by"]) if value["triggered_by"] else None,
            }
        )
