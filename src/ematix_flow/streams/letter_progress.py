"""Records how far the replay of leased letters is: the batches that they are in, the targets that have them.

It is recorded before each commit, so that a later replay can ask the targets what arrived.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from ematix_flow.errors import PipelineLocked, TargetFailed
from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterStore, LetterLease
from ematix_flow.state.times import utc_now


@dataclass
class _Progress:
    """Of one letter: the keys of the batches that may be in targets, and the targets that have it."""

    loading: list[str]
    loaded_in: list[str] = field(default_factory=list)

    def stored(self) -> tuple[str | None, str | None]:
        """The values of ``loading`` and ``loaded_in`` of the letter."""
        return " ".join(self.loading) or None, json.dumps(self.loaded_in) if self.loaded_in else None


class LetterProgress:
    """The progress of all letters of a lease. Letters are named by their index in it."""

    def __init__(self, pipeline: str, store: DeadLetterStore, lease: LetterLease) -> None:
        self._pipeline, self._store, self._lease = pipeline, store, lease
        self._letters = [
            _Progress((letter.loading or "").split(), list(letter.targets_with_it))
            for letter in lease.letters
        ]
        self._stored = [each.stored() for each in self._letters]
        self._places = {letter.id: n for n, letter in enumerate(lease.letters)}

    def loaded_in(self, letter: DeadLetter) -> str | None:
        """The targets that have the letter, as the store keeps them."""
        return self._letters[self._places[letter.id]].stored()[1]

    def settle(self, indexes: Sequence[int], batch: str, targets: Sequence[str]) -> None:
        """These targets have the letters of the batch, and no other target has or will have them.

        It is stored with the next commit, or with the outcome of the letters.
        """
        for n in indexes:
            letter = self._letters[n]
            letter.loading = [key for key in letter.loading if key != batch]
            letter.loaded_in += [label for label in targets if label not in letter.loaded_in]

    def before_commit(self, indexes: Sequence[int], batch: str, *, alone: bool) -> None:
        """Store that exactly these letters are in the batch, and what is known of all others.

        With ``alone``, raises PipelineLocked if another replay may be loading letters of the stream.
        """
        everything = range(len(self._letters))
        self.settle(everything, batch, ())
        for n in indexes:
            self._letters[n].loading.append(batch)
        if not self._store_changes(everything):
            raise TargetFailed(
                f"another replay has taken some of these letters from {self._store.location}",
                state="the letters of this batch were not loaded",
                next_step="replay them again when the other replay has ended",
            )
        # asked only now: of two replays that store at the same time, each finds the other
        until = self._store.loading_of_others(self._pipeline, self._lease) if alone else None
        if until is not None:
            self.settle(everything, batch, ())
            self._store_changes(everything)
            when = f" after {until:%H:%M:%S} UTC" if until > utc_now() else ""
            raise PipelineLocked(
                f"another replay of dead letters of {self._pipeline!r} is loading letters, or ended before "
                "it recorded which arrived; a target of the stream remembers only its newest replay",
                state="the letters of this batch were not loaded",
                next_step=f"run the replay again{when}: it first finds out what the other one has loaded",
            )

    def release(self, letters: Sequence[DeadLetter]) -> None:
        """Release those of these letters that the lease still holds. No batch of theirs is open any more."""
        indexes = [self._places[letter.id] for letter in letters]
        for n in indexes:
            self._letters[n].loading.clear()
        self._store_changes(indexes)
        self._store.release(self._lease, [letter.id for letter in letters])

    def _store_changes(self, indexes: Sequence[int]) -> bool:
        """Store what has changed of these letters. Returns whether the lease still held all of them."""
        changed: dict[tuple[str | None, str | None], list[int]] = {}
        for n in indexes:
            if self._letters[n].stored() != self._stored[n]:
                changed.setdefault(self._letters[n].stored(), []).append(n)
        held = True
        for (loading, loaded_in), some in changed.items():
            ids = [self._lease.letters[n].id for n in some]
            held &= self._store.mark_loading(self._lease, ids, loading, loaded_in) == len(some)
            for n in some:
                self._stored[n] = loading, loaded_in
        return held
