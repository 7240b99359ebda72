"""Fetches failing rows as samples. The counts of failing rows are known, and say how far it must read.

Assertions that many rows fail share a query that ends as soon as it has enough of them. The others share one
that reads all rows, once. An assertion that looks at other rows has a query alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_probe.assertions import Assertion
from ematix_probe.compiling.conditions import Reference, Rows
from ematix_probe.compiling.repeated_keys import RepeatedKeys
from ematix_probe.compiling.samples import SampledAssertion, sample_query
from ematix_probe.errors import ProbeError
from ematix_probe.sources.base import ColumnInfo

Sample = dict[str, Any]
SAMPLES = 10
_MANY_FAILING = 200  # spread evenly, ten of so many rows stand in a twentieth of all rows
_ASSERTIONS_A_QUERY = 50
_ROWS_TAKEN = 1_000  # by a query, to sort them
_ROWS_TAKEN_IF_COSTLY = 10_000  # where each query of the rows costs as much as the first


@dataclass(frozen=True)
class FailingAssertion:
    """An assertion that ``failing`` rows fail. ``repeated_keys``: some that `unique` found."""

    assertion: Assertion
    failing: int
    repeated_keys: RepeatedKeys | None = None


@dataclass(frozen=True)
class _WantedSamples:
    """The samples of an assertion: ``failing`` rows can be found."""

    sampled: SampledAssertion
    failing: int

    @property
    def samples(self) -> int:
        return min(SAMPLES, self.failing)


@dataclass(frozen=True)
class Sampler:
    """Where samples come from. What ``fetch`` raises, except ProbeError, is for the caller."""

    columns: Mapping[str, ColumnInfo]
    dialect: str
    rows: Rows
    reference: Reference
    key: Sequence[str]
    fetch: Callable[[Any], Sequence[Sequence[Any]]]

    def samples(self, failing: Sequence[FailingAssertion]) -> list[list[Sample]]:
        """Up to ten failing rows for each assertion, in the order of the key.

        None for an assertion whose rows the source refuses to show, which changes no verdict.
        """
        shared: dict[int, _WantedSamples] = {}
        for index, each in enumerate(failing):
            keys = each.repeated_keys
            if keys is not None and keys.rows < min(SAMPLES, each.failing):
                keys = None  # some cannot be written as literals
            sampled = SampledAssertion(each.assertion, keys)
            count = each.failing if keys is None else keys.rows
            try:
                if sampled.shares_a_reading(self.dialect):
                    shared[index] = _WantedSamples(sampled, count)
            except ProbeError:
                continue
        found: dict[int, list[Sample]] = {}
        for group in self._groups(shared):
            found |= self._read(group)
        return [
            found[index] if index in found else self._read_alone(each.assertion)
            for index, each in enumerate(failing)
        ]

    def _groups(self, shared: Mapping[int, _WantedSamples]) -> list[dict[int, _WantedSamples]]:
        many = {
            index for index, each in shared.items() if each.failing >= _MANY_FAILING and not self._is_costly
        }
        groups = []
        for chosen in (sorted(many), sorted(shared.keys() - many)):
            parts = [
                chosen[start : start + _ASSERTIONS_A_QUERY]
                for start in range(0, len(chosen), _ASSERTIONS_A_QUERY)
            ]
            groups += [{index: shared[index] for index in part} for part in parts]
        return groups

    def _read(self, group: Mapping[int, _WantedSamples]) -> dict[int, list[Sample]]:
        """The samples of the assertions of which there are enough. The others are left out."""
        found: dict[int, list[Sample]] = {}
        rest = dict(group)
        while rest:
            try:
                samples = self._fetch(
                    [each.sampled for each in rest.values()], self._rows_to_take(list(rest.values()))
                )
            except ProbeError:
                break
            # a query that takes all that it may has enough for one at least
            enough = {
                index: own
                for (index, each), own in zip(rest.items(), samples, strict=True)
                if len(own) >= each.samples
            }
            if not enough:
                break
            found |= enough
            rest = {index: each for index, each in rest.items() if index not in enough}
        return found

    def _rows_to_take(self, wanted: Sequence[_WantedSamples]) -> int:
        """How many rows to take: all that fail, or twice what holds enough of the rarest, spread evenly."""
        every = sum(each.failing for each in wanted)
        rarest = min(each.failing for each in wanted)
        least = sum(each.samples for each in wanted)
        if self._is_costly:
            return max(least, min(every, _ROWS_TAKEN_IF_COSTLY))
        if rarest < _MANY_FAILING:
            return every
        return max(least, min(every, 2 * SAMPLES * every // rarest, _ROWS_TAKEN))

    def _read_alone(self, assertion: Assertion) -> list[Sample]:
        try:
            (samples,) = self._fetch([SampledAssertion(assertion)], None)
        except ProbeError:
            return []
        return samples

    def _fetch(self, sampled: Sequence[SampledAssertion], most: int | None) -> list[list[Sample]]:
        compiled = sample_query(
            sampled, self.columns, self.dialect, self.rows, self.reference, self.key, most=most, limit=SAMPLES
        )
        return compiled.read(self.fetch(compiled.query))

    @property
    def _is_costly(self) -> bool:
        return bool(self.rows.meta.get("evaluate_once") or self.rows.meta.get("costly"))
