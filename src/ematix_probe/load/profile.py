"""How the load changes over time: a rate of arrivals or a number of users, constant or in ramps. Pure.

The times of all arrivals follow from the profile alone, so that no error adds up: arrival ``n`` of a constant
rate is at ``n / rate``, however late the earlier ones were started.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Model = Literal["open", "closed"]


@dataclass(frozen=True)
class Stage:
    """A stretch of ``seconds`` in which the level goes linearly from ``start`` to ``end``."""

    seconds: float
    start: float
    end: float

    def level(self, seconds: float) -> float:
        return self.start + (self.end - self.start) * seconds / self.seconds

    @property
    def area(self) -> float:
        """Of a rate: the arrivals in this stage."""
        return (self.start + self.end) / 2 * self.seconds

    def area_until(self, seconds: float) -> float:
        return self.start * seconds + (self.end - self.start) * seconds * seconds / (2 * self.seconds)

    def time_of_area(self, area: float) -> float:
        """The time at which `area_until` is ``area``."""
        slope = (self.end - self.start) / self.seconds
        # the stable form of the quadratic formula: it is right for a slope of nearly zero too
        root = math.sqrt(max(self.start * self.start + 2 * slope * area, 0.0))
        below = self.start + root
        return min(2 * area / below, self.seconds) if below else 0.0


@dataclass(frozen=True)
class LoadProfile:
    """The stages of a load. ``model="open"``: levels are arrivals a second; ``"closed"``: virtual users."""

    model: Model
    stages: tuple[Stage, ...]

    @classmethod
    def constant(cls, model: Model, level: float, seconds: float) -> LoadProfile:
        return cls(model, (Stage(seconds, level, level),))

    @classmethod
    def ramps(cls, model: Model, steps: tuple[tuple[float, float], ...]) -> LoadProfile:
        """``steps`` are pairs of seconds and the level at their end; the first begins at 0.

        A step of 0 seconds jumps to its level.
        """
        stages, level = [], 0.0
        for seconds, end in steps:
            if seconds > 0:
                stages.append(Stage(seconds, level, end))
            level = end
        return cls(model, tuple(stages))

    @cached_property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def peak(self) -> float:
        return max(max(stage.start, stage.end) for stage in self.stages)

    def level(self, seconds: float) -> float:
        """The rate or the number of users at a time; 0 from the end on."""
        for stage in self.stages:
            if seconds < stage.seconds:
                return stage.level(max(seconds, 0.0))
            seconds -= stage.seconds
        return 0.0

    @cached_property
    def arrivals(self) -> int:
        """How many arrivals there are: the first is at the beginning, none at the end."""
        return math.ceil(self._area_until(self.seconds) - 1e-9)

    def arrivals_until(self, seconds: float) -> int:
        """How many arrivals are due at a time, that of this very time included."""
        if seconds < 0:
            return 0
        if seconds >= self.seconds:
            return self.arrivals
        return min(math.floor(self._area_until(seconds) + 1e-9) + 1, self.arrivals)

    def arrivals_before(self, seconds: float) -> int:
        """How many arrivals are due before a time, that of this very time not included."""
        if seconds >= self.seconds:
            return self.arrivals
        return min(math.ceil(self._area_until(max(seconds, 0.0)) - 1e-9), self.arrivals)

    def arrival_time(self, n: int) -> float:
        """The intended start of arrival ``n``, counted from 0, in seconds from the beginning."""
        area, begun = float(n), 0.0
        for stage in self.stages:
            if area < stage.area:
                return begun + stage.time_of_area(area)
            area -= stage.area
            begun += stage.seconds
        return self.seconds

    def next_activity(self, user: int, seconds: float) -> float | None:
        """The first time from ``seconds`` on at which this user is active; None when there is none left."""
        begun, needed = 0.0, user + 0.5
        for stage in self.stages:
            inside = max(seconds - begun, 0.0)
            if inside < stage.seconds:
                if stage.level(inside) >= needed:
                    return begun + inside
                if stage.end > needed:
                    return begun + (needed - stage.start) / (stage.end - stage.start) * stage.seconds
            begun += stage.seconds
        return None

    def _area_until(self, seconds: float) -> float:
        area = 0.0
        for stage in self.stages:
            if seconds <= stage.seconds:
                return area + stage.area_until(max(seconds, 0.0))
            area += stage.area
            seconds -= stage.seconds
        return area

    def most_processes(self) -> int:
        """How many processes can have something to do: one for each arrival or user."""
        return max(1, self.arrivals if self.model == "open" else math.floor(self.peak + 0.5))

    def to_json(self) -> dict[str, object]:
        return {"model": self.model, "stages": [dataclasses.asdict(stage) for stage in self.stages]}
