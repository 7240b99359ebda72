"""The properties of the subscription that a receiver pulls from."""

from __future__ import annotations

from dataclasses import dataclass

ASSUMED_DEADLINE = 10  # seconds; the service's default


@dataclass(frozen=True)
class Subscription:
    """``topic`` is a short name, empty when this account may not read it."""

    path: str
    topic: str = ""
    ack_deadline: int = ASSUMED_DEADLINE  # seconds
    exactly_once: bool = False
    dead_letters: bool = False  # counts deliveries of a message, and finally moves it to a dead-letter topic
