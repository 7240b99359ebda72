"""The site that `flow web` and `flow mcp` serve: the project, its stores, and who carries its actions out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ematix_flow.cli.project import load_project, require_module
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.cli.terminal import say
from ematix_flow.errors import ConfigError

if TYPE_CHECKING:
    from ematix_flow.web.carrier_thread import CarrierThread
    from ematix_flow.web.site import Site


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
