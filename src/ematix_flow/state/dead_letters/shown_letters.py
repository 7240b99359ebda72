"""Dead letters as `flow dlq` and the web page show them: of several stores, with the payload."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from typing import Any

from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterStore, LetterStage, LetterStatus


def list_oldest(
    stores: Sequence[DeadLetterStore],
    pipeline: str | None,
    stage: LetterStage | None,
    status: LetterStatus | None,
    limit: int,
    offset: int,
) -> list[DeadLetter]:
    """The letters of all stores, oldest first."""
    if len(stores) == 1:
        return stores[0].list(pipeline, stage=stage, status=status, limit=limit, offset=offset)
    listed = [store.list(pipeline, stage=stage, status=status, limit=offset + limit) for store in stores]
    return list(merge(*listed, key=lambda letter: letter.failed_at))[offset : offset + limit]


def letter_with_payload(letter: DeadLetter, most: int) -> dict[str, Any]:
    """The letter with its key and the first ``most`` bytes of its payload, as text or else as hex digits."""
    shown = {"payload": _payload_json(letter.payload[:most]), "key": _payload_json(letter.key)}
    return {**letter.to_json(), **shown, "payload_shown": min(most, len(letter.payload))}


def _payload_json(payload: bytes | None) -> dict[str, Any] | None:
    if payload is None:
        return None
    try:
        return {"text": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"hex": payload.hex()}
