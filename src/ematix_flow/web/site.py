"""What one server shows: the declarations of a module, and the stores next to its run log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ematix_flow.backends.state_stores.dead_letters import open_declared_dead_letters
from ematix_flow.graph.registry import Registry
from ematix_flow.state.dead_letters.base import DeadLetterStore
from ematix_flow.web.command_process import CommandProcesses
from ematix_flow.web.declaring_files import DeclaringFiles
from ematix_flow.web.overview import Overview
from ematix_flow.web.store_access import StoreAccess

READ_ONLY = "this server only shows: it was started with --read-only"


@dataclass(frozen=True)
class Site:
    """The project behind one server."""

    registry: Registry
    stores: StoreAccess
    overview: Overview
    module: str
    version: str
    read_only: bool = False
    with_scheduler: bool = False
    wake_carrier: Callable[[], None] = lambda: None  # after a request: something waits
    commands: CommandProcesses = field(default_factory=CommandProcesses)
    files: DeclaringFiles = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", DeclaringFiles(self.registry))

    def close(self) -> None:
        """End the processes that answer requests, and close the stores."""
        self.commands.close()
        self.stores.close()

    @contextmanager
    def dead_letters(self, stream: str | None = None) -> Iterator[list[DeadLetterStore]]:
        """Open the stores of the dead letters: of one stream, or of all."""
        specs = [
            declared.spec
            for name, declared in self.registry.streams.items()
            if stream is None or name == stream
        ]
        with ExitStack() as opened:
            yield open_declared_dead_letters(specs, env=os.environ, opened=opened)
