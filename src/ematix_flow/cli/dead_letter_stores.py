"""Which stores ``flow dlq`` looks in, and the letters that its options select there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ematix_flow.cli.project import configured_module, load_project
from ematix_flow.errors import FlowError, UsageError, did_you_mean
from ematix_flow.spec.location import NamedLocation
from ematix_flow.state.dead_letters.base import (
    DeadLetter,
    DeadLetterStore,
    LetterSelection,
    LetterStage,
    LetterStatus,
    NoSuchLetter,
)
from ematix_probe.redaction import mask


@dataclass(frozen=True)
class LetterPlace:
    """The options of a command that say where its letters are."""

    pipeline: str | None
    module: str | None
    store: str | None
    table: str | None

    def command(self, text: str, *, pipeline: bool = False) -> str:
        """A ``flow dlq`` command with the same options, so that it looks in the same stores."""
        given = {"--pipeline": self.pipeline if pipeline else None, "--module": self.module}
        given |= {"--store": self.store, "--table": self.table}
        options = [f" {name} {shlex.quote(mask(value))}" for name, value in given.items() if value]
        return f"flow dlq {text}{''.join(options)}"

    @contextmanager
    def open(self) -> Iterator[list[DeadLetterStore]]:
        """Open the store of ``--store`` and ``--table``, else the one that the stream declares.

        Without ``--pipeline``, or if the stream is not declared, they are all stores of the module's streams
        and the default one. Raises UsageError if the stream is neither declared nor has letters there.
        """
        from ematix_flow.backends.state_stores.dead_letters import (
            open_dead_letters,
            open_declared_dead_letters,
            open_stream_dead_letters,
        )

        is_given = bool(self.store or self.table)
        needs_module = self.module or self.pipeline or not is_given
        known = needs_module and configured_module(self.module)
        streams = load_project(self.module).streams if known else {}
        declared = streams.get(self.pipeline or "")
        with ExitStack() as opened:
            if is_given:
                try:
                    store = open_dead_letters(self.store, env=os.environ, table=self.table)
                except FlowError as error:
                    place = NamedLocation.of("--store" if self.store else "--table")
                    raise error.with_location(place) from error.__cause__
                stores = [opened.enter_context(store)]
            elif declared is not None:
                store = open_stream_dead_letters(declared.spec, env=os.environ)
                stores = [opened.enter_context(store)]
            else:
                specs = [stream.spec for stream in streams.values()]
                stores = open_declared_dead_letters(specs, env=os.environ, opened=opened)
            if known and self.pipeline is not None and declared is None:
                stores = self._stores_with_letters(stores, self.pipeline, streams)
            yield stores

    def _stores_with_letters(
        self, stores: Sequence[DeadLetterStore], pipeline: str, streams: Iterable[str]
    ) -> list[DeadLetterStore]:
        """The stores that have letters of a stream that is not declared."""
        found = [store for store in stores if store.counts(pipeline)]
        if found:
            return found
        names = {*streams, *pipelines_with_letters(stores)}
        raise UsageError(
            f"no streaming pipeline is named {pipeline!r}, and no dead letter has this name."
            f"{did_you_mean(pipeline, names)}",
            next_step=f"{self.command('list')}  shows the dead letters of all streams",
        )

    def find(self, stores: Sequence[DeadLetterStore], id: str) -> tuple[DeadLetterStore, DeadLetter]:
        """The letter with this id or unique prefix, and its store.

        Raises UsageError if none or several match.
        """
        found = []
        for store in stores:
            try:
                found.append((store, store.get(self.pipeline, id)))
            except NoSuchLetter:
                continue
        if not found:
            raise UsageError(
                f"there is no dead letter {id!r} in {locations(stores)}", next_step=self.command("list")
            )
        if len(found) > 1:
            raise UsageError(
                f"dead letters {id!r} are in several stores: {locations([store for store, _ in found])}",
                next_step="give more of the id, or --pipeline NAME, or --store URL",
            )
        return found[0]

    def select(
        self,
        stores: Sequence[DeadLetterStore],
        ids: Sequence[str] | None,
        everything: bool,
        first: int | None,
        stage: LetterStage | None,
        reason: str | None,
        status: LetterStatus | None,
    ) -> tuple[DeadLetterStore, str, LetterSelection]:
        """The store, the pipeline, and the selection among its letters there."""
        ways = sum([bool(ids), everything, first is not None])
        if ways != 1:
            problem = "no dead letters are chosen" if not ways else "dead letters are chosen in several ways"
            raise UsageError(problem, next_step="give their ids, or --first N, or --all")
        found = [self.find(stores, id) for id in ids or ()]
        letters = [letter for _, letter in found]
        if len({letter.pipeline for letter in letters}) > 1:
            raise UsageError(
                "these letters belong to several streams", next_step="choose letters of one stream"
            )
        name = letters[0].pipeline if letters else self.pipeline
        if name is None:
            raise UsageError(
                "no stream is given", next_step=f"give --pipeline NAME;  {self.command('list')}  shows them"
            )
        holding = [store for store in stores if not found or any(store is each for each, _ in found)]
        if len(holding) > 1:
            raise UsageError(
                f"these letters of {name!r} are in several stores: {locations(holding)}",
                next_step="choose letters of one store:  --store URL --table NAME",
            )
        chosen = tuple(letter.id for letter in letters) or None
        return holding[0], name, LetterSelection(everything, first, chosen, stage, reason, status)


def no_letters_text(stores: Sequence[DeadLetterStore], pipeline: str | None) -> str:
    """A message that the stores have no letter of a stream, with a suggestion."""
    if pipeline is None:
        return f"no dead letters in {locations(stores)}"
    others = did_you_mean(pipeline, pipelines_with_letters(stores))
    return f"there are no dead letters of {pipeline!r} in {locations(stores)}.{others}"


def pipelines_with_letters(stores: Sequence[DeadLetterStore]) -> set[str]:
    return {count.pipeline for store in stores for count in store.counts()}


def locations(stores: Sequence[DeadLetterStore]) -> str:
    return ", ".join(store.location for store in stores)
