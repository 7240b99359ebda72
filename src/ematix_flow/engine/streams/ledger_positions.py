"""How far the ledgers of a stream's targets say that it has come."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.engine.streams.checkpoint import lowest_position, split_positions
from ematix_flow.engine.streams.open_stream import OpenStream
from ematix_flow.spec.streams import StreamTargetSpec


class LedgerPositions:
    """The positions of one stream in the ledgers of these targets."""

    def __init__(self, stream: OpenStream, targets: Sequence[StreamTargetSpec]) -> None:
        self._stream, self._targets = stream, targets

    def of_targets(self) -> list[str | None]:
        """The last position of each target that keeps a ledger."""
        return [self.last_position(target) for target in self._targets if self._keeps_ledger(target)]

    def lowest(self) -> tuple[str | None, ...]:
        """The position of each source in the ledgers of all targets; all None if one ledger is empty."""
        sources, found = len(self._stream.spec.sources), self.of_targets()
        positions = [position for position in found if position is not None]
        if not positions or len(positions) < len(found):
            return (None,) * sources
        return split_positions(lowest_position(positions), sources)

    def newest_batch_key(self, target: StreamTargetSpec) -> str | None:
        """The key of this stream's newest batch in a target."""
        found = self._last_batch(target)
        return found[0] if found is not None else None

    def last_position(self, target: StreamTargetSpec) -> str | None:
        found = self._last_batch(target)
        return found[1] if found is not None else None

    def _keeps_ledger(self, target: StreamTargetSpec) -> bool:
        sends = self._stream.connections.backend(target.connection).message_target()
        return sends is None or (sends.transactions and self._stream.spec.delivery == "exactly_once")

    def _last_batch(self, target: StreamTargetSpec) -> tuple[str, str | None] | None:
        connections, name = self._stream.connections, self._stream.spec.name
        sends = connections.backend(target.connection).message_target()
        if sends is not None:
            return sends.last_token(name, target.label) if self._keeps_ledger(target) else None
        for entry in connections.target(target.connection).ledger(name, target.label, limit=100):
            if entry.batch_key.startswith("stream:") and entry.source_to:
                return entry.batch_key, entry.source_to
        return None
