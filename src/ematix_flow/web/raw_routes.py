"""Routes whose parameters take any text, also one with a slash.

A route is matched part by part against the path as it was sent, so that `%2F` belongs to a name and `/`
ends it.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.routing import Match, Route
from starlette.types import Scope


class RawRoute(Route):
    """A route such as ``/pipelines/{name}/plan``, where ``{name}`` is one part of the sent path, decoded."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = scope.get("raw_path")
        if scope["type"] != "http" or not sent:
            return super().matches(scope)
        parts = [unquote(part) for part in sent.decode("ascii", "replace").split("/")]
        wanted = self.path.split("/")
        if len(parts) != len(wanted):
            return Match.NONE, {}
        values: dict[str, str] = {}
        for pattern, part in zip(wanted, parts, strict=True):
            if pattern.startswith("{"):
                if not part:
                    return Match.NONE, {}
                values[pattern[1:-1]] = part
            elif pattern != part:
                return Match.NONE, {}
        found = {"endpoint": self.endpoint, "path_params": {**scope.get("path_params", {}), **values}}
        is_served = not self.methods or scope["method"] in self.methods
        return (Match.FULL if is_served else Match.PARTIAL), found
