"""Draws the dependency graph of pipelines as a text tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def draw_graph(upstreams: Mapping[str, Sequence[str]], notes: Mapping[str, str] | None = None) -> list[str]:
    """One line per pipeline, below its first upstream; its other upstreams are named in the line."""
    notes = notes or {}
    children: dict[str, list[str]] = {name: [] for name in upstreams}
    roots = []
    for name, above in upstreams.items():
        known = [upstream for upstream in above if upstream in upstreams]
        if known:
            children[known[0]].append(name)
        else:
            roots.append(name)
    drawn: list[tuple[str, str]] = []

    def draw(name: str, lead: str, below: str) -> None:
        others = [upstream for upstream in upstreams[name][1:] if upstream in upstreams]
        also = f"also after {', '.join(others)}" if others else ""
        note = ", ".join(part for part in (notes.get(name, ""), also) if part)
        drawn.append((lead + name, note))
        for number, child in enumerate(children[name], start=1):
            last = number == len(children[name])
            draw(child, below + ("└─▶ " if last else "├─▶ "), below + ("    " if last else "│   "))

    for root in roots:
        draw(root, "", "")
    width = max((len(text) for text, _ in drawn), default=0)
    return [f"{text:<{width}}  {note}".rstrip() for text, note in drawn]
