"""The site that `flow web` and `flow mcp` serve: the project, its stores, and who carries its actions out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ematix_flow.cli.project import load_project, require_module
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.cli.terminal import say
from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    from ematix_flow.web.access import Tokens
    from ematix_flow.web.carrier_thread import CarrierThread
    from ematix_flow.web.server import Binding, HttpServer
    from ematix_flow.web.site import Site

AnyServer = TypeVar("AnyServer", bound="HttpServer")


@contextmanager
def needs_extra(command: str, extra: str) -> Iterator[None]:
    """Within the block, turn the import of a missing package into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ematix_flow"):
            raise
        raise ConfigError(
            f"{command} needs the Python package {error.name!r}, which is not installed",
            next_step=f'pip install "ematix-flow-spark[{extra}]"',
        ) from error


def open_site(
    module: str | None,
    run_log: str | None,
    engine: str | None,
    *,
    read_only: bool,
    with_scheduler: bool = False,
) -> tuple[Site, CarrierThread]:
    """The site of a project, and the thread that can carry out its actions, not started."""
    from ematix_flow._version import __version__
    from ematix_flow.cli.json_log import log_environment
    from ematix_flow.schedule.actions.carrier import ActionCarrier
    from ematix_flow.state.runlog.base import run_retention
    from ematix_flow.web.carrier_thread import CarrierThread
    from ematix_flow.web.overview import Overview
    from ematix_flow.web.site import Site
    from ematix_flow.web.store_access import StoreAccess

    keep_for = run_retention()
    registry, name, url = load_project(module), require_module(module), slots_url(run_log)
    stores = StoreAccess(url, read_only=read_only)
    carrier = CarrierThread(
        lambda: ActionCarrier(
            stores.actions(),
            stores.run_log(),
            stores.slots(),
            registry,
            name,
            url,
            engine,
            environment=log_environment(),
            keep_for=keep_for,
        ),
        pause=5.0 if stores.is_object_store else 1.0,
    )
    site = Site(
        registry,
        stores,
        Overview(registry, stores),
        name,
        __version__,
        read_only=read_only,
        with_scheduler=with_scheduler,
        wake_carrier=carrier.wake,
    )
    return site, carrier


def find_listener(
    *,
    host: str,
    port: int,
    token: str | None,
    token_file: Path | None,
    reader_token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    behind_proxy: str | None,
    allow_host: list[str] | None,
) -> tuple[Binding, Tokens]:
    """Where a command listens by its options, and the tokens that open it. Raises UsageError if unsafe."""
    from ematix_flow.web.access import find_tokens
    from ematix_flow.web.server import Binding

    tokens = find_tokens(os.environ, token, token_file, reader_token_file)
    binding = Binding(host, port, tls_cert, tls_key, behind_proxy, tuple(allow_host or ()))
    binding.check(tokens)
    return binding, tokens


@contextmanager
def serving(
    make_server: Callable[[], AnyServer], site: Site, carrier: CarrierThread
) -> Iterator[tuple[AnyServer, threading.Event]]:
    """A server, and the event that asks it to stop. Within the block actions are carried out."""
    from ematix_flow.cli.signals import stop_requests

    with ExitStack() as running:
        stop = running.enter_context(stop_requests(say, "stopping; press again to stop at once"))
        server = make_server()
        running.callback(server.close)
        running.enter_context(carrying_out(site, carrier))
        yield server, stop
    say("stopped")


@contextmanager
def carrying_out(site: Site, carrier: CarrierThread) -> Iterator[None]:
    """Within the block, carry out the actions that are requested, unless the site is read only."""
    if site.read_only:
        yield
        return
    carrier.start()
    try:
        yield
    finally:
        if not carrier.stop():
            say("what was started goes on:  flow actions list  shows it")
