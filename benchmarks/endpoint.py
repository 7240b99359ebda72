"""Where rows come from or go to, as a value that a contestant's process gets."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Login:
    host: str
    port: int
    user: str
    password: str
    database: str


@dataclass(frozen=True)
class Endpoint:
    """A database or a folder: ``location`` is a URL for a server's database, a path for everything else.

    In a folder each table has its own folder, for any kind of files.
    """

    kind: str
    location: str

    def login(self) -> Login:
        """The parts of the URL of a server's database."""
        parts = urlsplit(self.location)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return Login(parts.hostname or "", parts.port or 0, user, password, unquote(parts.path.lstrip("/")))
