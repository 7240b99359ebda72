"""Loads the messages of dead letters into the targets of their stream, as it would load them now.

The same loader loads them as separate batches, each with its own key. Before a commit the caller records
which messages are in it, so that the ledgers of the targets tell what a replay that died had loaded. A target
that has a message does not get it again, also if another target refuses it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ematix_flow.backends.messages.base import MESSAGE_DDL, message_schema
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.gates import SKIP_VARIABLE, are_checks_skipped
from ematix_flow.engine.planning.quarantine_plans import rules_of_replay
from ematix_flow.engine.streams.batch_loader import BatchLoader
from ematix_flow.engine.streams.batch_report import BatchReport, MessagePlace, RejectedMessage
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.message_names import ORIGIN
from ematix_flow.engine.streams.sinks import BatchName, StreamSink
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.engine.streams.stream_runner import StreamRunner
from ematix_flow.engine.streams.target_group import target_groups
from ematix_flow.errors import ExpectationFailed, SourceFailed, Unsupported, UsageError
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec

_NAMES = [field.split()[0] for field in MESSAGE_DDL.split(", ")]


class LoadRecord(Protocol):
    """Records what happens to the messages of a replay, each named by its index."""

    def before_commit(self, indexes: Sequence[int], batch: str, *, alone: bool) -> None:
        """Record that exactly these messages are in the batch with this key, which is committed next.

        With ``alone``, raise if another replay may be loading messages of the stream.
        """
        ...

    def settle(self, indexes: Sequence[int], batch: str, targets: Sequence[str]) -> None:
        """These targets have the messages of the batch, and no other target has or will have them."""
        ...


@dataclass
class _Portion:
    """The messages that are loaded together. ``lacking`` has the labels of the targets that lack each one."""

    messages: Sequence[Mapping[str, Any]]
    lacking: list[set[str]]
    record: LoadRecord
    reasons: dict[int, str] = field(default_factory=dict)  # of each message that failed, by index
    alone: bool = False  # whether no other replay may run

    def shares(
        self, indexes: Iterable[int], targets: tuple[StreamTargetSpec, ...]
    ) -> list[tuple[tuple[StreamTargetSpec, ...], list[int]]]:
        """The messages by those of the targets that lack them."""
        found: dict[tuple[str, ...], list[int]] = {}
        for n in indexes:
            labels = tuple(target.label for target in targets if target.label in self.lacking[n])
            if labels:
                found.setdefault(labels, []).append(n)
        return [
            (tuple(target for target in targets if target.label in labels), some)
            for labels, some in found.items()
        ]

    def settle(self, indexes: Sequence[int], batch: BatchName, targets: Sequence[str]) -> None:
        self.record.settle(indexes, batch.key, targets)
        for n in indexes:
            self.lacking[n].difference_update(targets)


class LetterLoader:
    """Loads messages into all targets of a stream, also while the stream itself runs."""

    def __init__(self, spec: StreamSpec, connections: Connections, folder: StreamFolder) -> None:
        self.rejected: list[RejectedMessage] = []
        rules = spec.expectations
        if rules.to_dead_letters and are_checks_skipped():
            raise UsageError(
                f"{SKIP_VARIABLE} is set, so that a replay would load messages whose rows fail unchecked",
                state="nothing was changed",
                next_step=f"unset {SKIP_VARIABLE}",
            )
        rules = replace(rules, rules=_rules_by_letter(rules))
        self.spec = replace(spec, on_error="dlq", expectations=rules)
        self.stream = StreamRunner(self.spec, connections, folder, letters=self)
        if any(source.kind_of_rows != "messages" for source in self.stream.sources):
            raise Unsupported(
                f"stream {spec.name!r} follows files or tables, which have no messages to replay"
            )

    def add(self, letters: Sequence[RejectedMessage], batch: str) -> None:
        """Collect the messages that fail again."""
        self.rejected += letters

    def failing_in(self, batch: str, target: str) -> Mapping[MessagePlace, str]:
        """None: a replay repeats no batch."""
        return {}

    def load(self, messages: Sequence[Mapping[str, Any]], record: LoadRecord) -> dict[int, str]:
        """Load the messages into those targets that lack them.

        Returns the reason for each one that failed, by index; all others are in every target.
        """
        portion = self._portion(messages, record)
        declared = {target.label for target in self.spec.targets}
        for n, lacking in enumerate(portion.lacking):
            for label in lacking - declared:
                portion.reasons[n] = f"stream {self.spec.name!r} no longer has the target {label}"
        shares = [
            share
            for targets in target_groups(self.spec)
            for share in portion.shares(range(len(messages)), targets)
        ]
        try:
            loaders = self.stream.replay_loaders(self._frame(messages), [targets for targets, _ in shares])
            portion.alone = any(sink.keeps_newest_replay_only for each in loaders for sink in each.sinks)
            for loader, (targets, wanted) in zip(loaders, shares, strict=True):
                self._load_share(portion, loader, targets, wanted)
        finally:
            self.stream.lookups.stop()
        return portion.reasons

    def find_loaded(self, messages: Sequence[Mapping[str, Any]], record: LoadRecord) -> set[int]:
        """Ask the targets which of these messages they have from a replay that died.

        ``loading`` of each message has the keys of the batches that it was in. Returns the indexes of those
        that no target lacks.
        """
        portion = self._portion(messages, record)
        batches: dict[str, list[int]] = {}
        for n, message in enumerate(messages):
            for key in str(message["loading"]).split():
                batches.setdefault(key, []).append(n)
        try:
            loaders = self.stream.replay_loaders(self._frame(messages), target_groups(self.spec))
            sinks = [sink for loader in loaders for sink in loader.sinks]
            for key, indexes in batches.items():
                _, replay, number = key.split(":")
                # every target is asked: earlier versions numbered the groups, whose order may have changed
                batch = self._batch(replay, int(number))
                portion.settle(indexes, batch, _labels_with(sinks, batch))
        finally:
            self.stream.lookups.stop()
        return {n for n, lacking in enumerate(portion.lacking) if not lacking}

    def _portion(self, messages: Sequence[Mapping[str, Any]], record: LoadRecord) -> _Portion:
        lacking = []
        for message in messages:
            one = message.get("target")
            wanted = {target.label for target in self.spec.targets} if one is None else {one}
            lacking.append(wanted.difference(message.get("loaded_in") or ()))
        return _Portion(messages, lacking, record)

    def _batch(self, replay: str, number: int = 0) -> BatchName:
        return BatchName(self.spec.name, replay, number, None, kind="dlq")

    def _load_share(
        self,
        portion: _Portion,
        loader: BatchLoader,
        targets: tuple[StreamTargetSpec, ...],
        wanted: Sequence[int],
    ) -> None:
        """Load the messages with these indexes into the targets of the loader, as one batch.

        If a rule that stops loads fails, the halves are loaded separately: it is unknown whose rows fail.
        """
        batch = self._batch(str(uuid.uuid4()))
        self.rejected = []
        loaded: list[int] = []  # what the last try of a commit has

        def report() -> None:
            nonlocal loaded
            if loaded and len(loader.sinks) > 1:  # the first of them may have the try before
                portion.settle(loaded, batch, _labels_with(loader.sinks, batch))
            failed = self._failed_indexes(portion.messages, wanted)
            loaded = [n for n in wanted if n not in failed]
            portion.record.before_commit(loaded, batch.key, alone=portion.alone)

        loader.before_commit = report
        frame = self._frame([portion.messages[n] for n in wanted])
        try:
            loader.load(batch, IncomingBatch(frame, len(wanted)), BatchReport(0))
        except ExpectationFailed as error:
            portion.settle(loaded, batch, _labels_with(loader.sinks, batch))
            if len(wanted) == 1:
                portion.reasons.setdefault(wanted[0], error.what)
                return
            half = len(wanted) // 2
            for part in (wanted[:half], wanted[half:]):
                self._load_rest(portion, loader, targets, part)
            return
        portion.settle(loaded, batch, [sink.label for sink in loader.sinks])
        for index, reason in self._failed_indexes(portion.messages, wanted).items():
            portion.reasons.setdefault(index, reason)

    def _load_rest(
        self,
        portion: _Portion,
        loader: BatchLoader,
        targets: tuple[StreamTargetSpec, ...],
        wanted: Sequence[int],
    ) -> None:
        """Load the messages into those of the targets that still lack them. ``loader`` loads all of these."""
        for lacking, indexes in portion.shares(wanted, targets):
            own = loader
            if lacking != targets:
                (own,) = self.stream.replay_loaders(self._frame(portion.messages), [lacking])
            self._load_share(portion, own, lacking, indexes)

    def _failed_indexes(self, messages: Sequence[Mapping[str, Any]], wanted: Sequence[int]) -> dict[int, str]:
        """The reason for each message that was rejected, by index."""
        reasons: dict[int, str] = {}
        for letter in self.rejected:
            for index in wanted:
                if index not in reasons and all(
                    _same_value(messages[index], letter.message, key) for key in _NAMES[:5]
                ):
                    reasons[index] = letter.reason
                    break
        if len(reasons) < len(self.rejected):
            raise SourceFailed(
                "a message that could not be replayed was not found among those that were tried"
            )
        return reasons

    def _frame(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        import pyarrow as pa

        listed = [{name: message.get(name) for name in _NAMES} for message in messages]
        rows = pa.Table.from_pylist(listed, message_schema())
        origins = pa.array([self._source_number(message.get("topic")) for message in messages], pa.int32())
        return (
            self.stream.connections.spark().newSession().createDataFrame(rows.append_column(ORIGIN, origins))
        )

    def _source_number(self, topic: str | None) -> int:
        """The number of the source that names the message's topic."""
        for number, source in enumerate(self.spec.sources):
            if topic in [name.strip() for name in source.query.split(",")]:
                return number
        return 0


def _rules_by_letter(spec: ExpectationsSpec) -> tuple[Expectation, ...]:
    """The rules of a replay. One that fails a load sets the letter aside, where the gate can name it."""
    rules = rules_of_replay(spec.rules)
    if not spec.to_dead_letters:
        return rules
    return tuple(replace(rule, action="quarantine") if rule.action == "fail" else rule for rule in rules)


def _labels_with(sinks: Sequence[StreamSink], batch: BatchName) -> list[str]:
    """The labels of the sinks whose targets have this replay."""
    return [sink.label for sink in sinks if sink.has_replay(batch)]


def _same_value(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    left, right = one.get(key), other.get(key)
    if isinstance(right, bytearray | memoryview):
        right = bytes(right)
    return bool(left == right)
