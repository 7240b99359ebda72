"""``@probe.load``: turns a function into a load probe."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_probe.declaration import refuse_deferred_body, refuse_replaced_probe
from ematix_probe.duration import Duration, format_duration, parse_duration
from ematix_probe.errors import DeclarationError
from ematix_probe.load.assertions import LoadAssertion, StatusIn
from ematix_probe.load.hosts import AllowedHost, read_allowed
from ematix_probe.load.http_target import HttpTarget
from ematix_probe.load.profile import LoadProfile, Model
from ematix_probe.load.sql_target import SqlTarget
from ematix_probe.load.tester import LoadTester
from ematix_probe.location import caller_location, calling_module_body
from ematix_probe.report import RunReport
from ematix_probe.unknown_options import refuse_unknown_options

if TYPE_CHECKING:
    from ematix_probe.load.progress import LoadProgress
    from ematix_probe.run_history import RunHistory

TIMEOUT = 10.0
MAX_IN_FLIGHT = 500
MOST_USERS = 100_000
MOST_REQUESTS = 1_000_000  # a second
MOST_PROCESSES = 256


@dataclass(frozen=True)
class LoadPlan:
    """What a load probe will send, how fast, and what must hold."""

    name: str
    target: HttpTarget | SqlTarget
    profile: LoadProfile
    assertions: tuple[LoadAssertion, ...]
    warmup: float = 0.0
    timeout: float = TIMEOUT
    max_in_flight: int = MAX_IN_FLIGHT
    think_time: tuple[float, float] | None = None
    processes: int = 1
    allow_hosts: tuple[AllowedHost, ...] = ()
    seed: int = 0
    where: str | None = dataclasses.field(default=None, compare=False)
    description: str | None = None

    def describe(self) -> dict[str, str]:
        """What it will do, in words, by topic."""
        profile = self.profile
        unit = "requests a second" if profile.model == "open" else "virtual users"
        if len(profile.stages) == 1 and profile.stages[0].start == profile.stages[0].end:
            level = f"{profile.stages[0].start:,g} {unit}"
        else:
            steps = ", ".join(
                f"{s.start:g} → {s.end:g} in {format_duration(s.seconds)}" for s in profile.stages
            )
            level = f"{steps} {unit}"
        facts = {
            "model": "open: arrivals by the clock" if profile.model == "open" else "closed: virtual users",
            "load": level,
            "duration": format_duration(profile.seconds),
        }
        if self.warmup:
            facts["warm-up"] = f"{format_duration(self.warmup)}, not measured"
        if profile.model == "open":
            facts["requests"] = f"{profile.arrivals:,}"
        if self.think_time is not None:
            low, high = self.think_time
            facts["think time"] = format_duration(low) + (
                f" to {format_duration(high)}" if high > low else ""
            )
        facts["timeout"] = format_duration(self.timeout)
        if self.processes > 1:
            facts["processes"] = str(self.processes)
        if self.target.feeder is not None:
            facts["feeder"] = self.target.feeder.label
        if isinstance(self.target, SqlTarget):
            facts["database"] = self.target.database_label
        if self.target.checks:
            facts["checks"] = ", ".join(each.name for each in self.target.checks)
        return facts


class LoadProbe:
    """A declared load probe. ``run()`` sends; nothing is sent before."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self.declared_in = calling_module_body()
        self.__name__ = plan.name
        self.__doc__ = plan.description

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def target(self) -> HttpTarget | SqlTarget:
        return self._plan.target

    @property
    def table(self) -> str:
        return self._plan.target.label

    @property
    def schema(self) -> None:
        return None

    def plan(self) -> LoadPlan:
        return self._plan

    def assertion_names(self) -> list[str]:
        return [assertion.label for assertion in self._plan.assertions]

    def run(
        self,
        *,
        history: RunHistory | str | os.PathLike[str] | None = None,
        allow_hosts: Iterable[str] = (),
        progress: Callable[[LoadProgress], object] | None = None,
    ) -> RunReport:
        """Send the load and judge it. HostNotAllowed before anything is sent to a host that nobody allowed.

        ``progress`` is called about once a second. Ctrl-C ends the load early: the report says so.
        """
        from ematix_probe.history.given import history_of
        from ematix_probe.load.running import run_load_probe

        return run_load_probe(
            self._plan, history=history_of(history), allow_hosts=allow_hosts, progress=progress
        )

    def refuse(self, allow_hosts: Iterable[str] = ()) -> None:
        """Raise what is declared wrongly or not allowed, as `run` would. Nothing is sent."""
        from ematix_probe.load.running import refuse_load

        refuse_load(self._plan, allow_hosts)

    def __repr__(self) -> str:
        return (
            f"<load probe {self.name}: {len(self._plan.assertions)} assertions on {self._plan.target.label}>"
        )


@refuse_unknown_options("@probe.load")
def load(
    *,
    target: HttpTarget | SqlTarget,
    duration: Duration | None = None,
    rate: float | None = None,
    users: int | None = None,
    stages: Sequence[tuple[Duration, float]] | None = None,
    model: Model = "open",
    warmup: Duration = 0,
    think_time: Duration | tuple[Duration, Duration] | None = None,
    timeout: Duration = TIMEOUT,
    max_in_flight: int | None = None,
    processes: int = 1,
    allow_hosts: Iterable[str] = (),
    seed: int = 0,
    name: str | None = None,
) -> Callable[[Callable[[LoadTester], object]], LoadProbe]:
    """Declare a load probe. The function gets a `LoadTester` and adds assertions.

    ``rate=`` requests a second arrive by the clock, whether or not earlier ones are answered, or ``users=``
    each wait for an answer before the next request. ``stages=[("10s", 100), ("1m", 100)]`` ramps from 0 over
    these levels: of a rate, or of users with ``model="closed"``.
    """
    where = caller_location()
    if not isinstance(target, (HttpTarget, SqlTarget)):
        raise DeclarationError(
            f"a load probe takes target=http(…) or target=sql(…), not {target!r}",
            where=where,
            next_step='write  target=http("GET", "http://127.0.0.1:8000/")',
        )
    profile = _profile(duration, rate, users, stages, model, where)
    warmup_seconds = _seconds("warmup", warmup, where)
    if warmup_seconds >= profile.seconds:
        raise DeclarationError(
            f"warmup={warmup!r} leaves nothing to measure of {format_duration(profile.seconds)}",
            where=where,
            next_step="make duration= longer than warmup=",
        )
    timeout_seconds = _seconds("timeout", timeout, where)
    if timeout_seconds <= 0:
        raise DeclarationError(
            f"timeout={timeout!r} is no time", where=where, next_step='write  timeout="10s"'
        )
    if max_in_flight is not None and profile.model == "closed":
        raise DeclarationError(
            "max_in_flight= belongs to rate=: users have one request in flight each",
            where=where,
            next_step="leave out max_in_flight=",
        )
    _whole("max_in_flight", max_in_flight, 1, 100_000, where)
    _whole("processes", processes, 1, MOST_PROCESSES, where)
    _whole("seed", seed, 0, 2**63, where)
    if think_time is not None and profile.model == "open":
        raise DeclarationError(
            "think_time= belongs to users=: arrivals do not wait for answers",
            where=where,
            next_step="leave out think_time=, or write users= in place of rate=",
        )
    if target.feeder is not None and target.feeder.iterator is not None and processes > 1:
        raise DeclarationError(
            "a feeder from an iterator serves one process", where=where, next_step="use a list or a file"
        )
    if isinstance(target, SqlTarget) and processes > 1 and not target.serves_several_processes:
        raise DeclarationError(
            "DuckDB lets one process open a file for writing, and processes= is more than 1",
            where=where,
            next_step="add  ?access_mode=read_only  to the URL, or leave out processes=",
        )
    if isinstance(target, HttpTarget) and target.keep_cookies and profile.model == "open":
        raise DeclarationError(
            "keep_cookies=True belongs to users=: arrivals have no user",
            where=where,
            next_step="leave out keep_cookies=, or write users= in place of rate=",
        )
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise DeclarationError(f"name= takes a text, not {name!r}", where=where)
    allowed = read_allowed(allow_hosts, where)
    thinking = None if think_time is None else _think_time(think_time, where)

    def declare(function: Callable[[LoadTester], object]) -> LoadProbe:
        refuse_deferred_body(function, where)
        refuse_replaced_probe(function, where)
        tester = LoadTester()
        function(tester)
        _check_assertions(tester.assertions, target, name or function.__name__, where)
        return LoadProbe(
            LoadPlan(
                name or function.__name__,
                dataclasses.replace(target, where=target.where or where),
                profile,
                tester.assertions,
                warmup_seconds,
                timeout_seconds,
                MAX_IN_FLIGHT if max_in_flight is None else max_in_flight,
                thinking,
                processes,
                allowed,
                seed,
                where,
                (function.__doc__ or "").strip() or None,
            )
        )

    return declare


def _check_assertions(
    assertions: Sequence[LoadAssertion], target: HttpTarget | SqlTarget, name: str, where: str | None
) -> None:
    if not assertions:
        raise DeclarationError(
            f"the probe {name!r} has no assertion",
            where=where,
            next_step='add one in its body, as in  t.p99_under("200ms")',
        )
    if isinstance(target, SqlTarget) and any(isinstance(each, StatusIn) for each in assertions):
        raise DeclarationError(
            "status_in() is about HTTP, and this probe runs SQL",
            where=where,
            next_step="write  t.error_rate_below(0.01)",
        )


def _profile(
    duration: Duration | None,
    rate: float | None,
    users: int | None,
    stages: Sequence[tuple[Duration, float]] | None,
    model: Model,
    where: str | None,
) -> LoadProfile:
    if model not in ("open", "closed"):
        raise DeclarationError(f'model= is "open" or "closed", not {model!r}', where=where)
    if stages is not None:
        if duration is not None or rate is not None or users is not None:
            raise DeclarationError(
                "stages= takes the place of duration=, rate= and users=",
                where=where,
                next_step='leave these out; for stages of users write  model="closed"',
            )
        return _staged(stages, model, where)
    if (rate is None) == (users is None):
        raise DeclarationError(
            "a load probe takes rate= or users=, exactly one of them, or stages=",
            where=where,
            next_step='write  rate=100, duration="30s"  or  users=10, duration="30s"',
        )
    if duration is None:
        raise DeclarationError(
            "a load probe takes duration=, or stages=", where=where, next_step='write  duration="30s"'
        )
    seconds = _seconds("duration", duration, where)
    if seconds <= 0:
        raise DeclarationError(
            f"duration={duration!r} is no time", where=where, next_step='write  duration="30s"'
        )
    if users is not None:
        _whole("users", users, 1, MOST_USERS, where)
        return LoadProfile.constant("closed", users, seconds)
    _level("rate", rate, where)
    if rate == 0:
        raise DeclarationError("rate=0 sends nothing", where=where, next_step="write  rate=100")
    return LoadProfile.constant("open", float(rate or 0), seconds)


def _staged(stages: Any, model: Model, where: str | None) -> LoadProfile:
    if isinstance(stages, str) or not isinstance(stages, Sequence) or not stages:
        raise DeclarationError(f"stages= takes pairs of a duration and a level, not {stages!r}", where=where)
    steps = []
    for stage in stages:
        if not isinstance(stage, (tuple, list)) or len(stage) != 2:
            raise DeclarationError(
                f"stages= takes pairs of a duration and a level, not {stage!r}", where=where
            )
        if model == "closed":
            _whole("a number of users in stages", stage[1], 0, MOST_USERS, where)
        else:
            _level("a rate in stages", stage[1], where)
        steps.append((_seconds("a duration in stages", stage[0], where), float(stage[1])))
    if not any(seconds > 0 for seconds, _ in steps) or not any(level > 0 for _, level in steps):
        raise DeclarationError(f"stages={stages!r} send nothing", where=where)
    profile = LoadProfile.ramps(model, tuple(steps))
    if profile.peak <= 0:
        raise DeclarationError(f"stages={stages!r} send nothing", where=where)
    return profile


def _seconds(option: str, value: Any, where: str | None) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise DeclarationError(f"{option}=: {error}", where=where) from None


def _think_time(value: Any, where: str | None) -> tuple[float, float]:
    low, high = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)
    seconds = _seconds("think_time", low, where), _seconds("think_time", high, where)
    if seconds[0] > seconds[1]:
        raise DeclarationError(f"think_time={value!r}: the shorter time comes first", where=where)
    return seconds


def _whole(option: str, value: Any, least: int, most: int, where: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise DeclarationError(
            f"{option}= is a whole number from {least} to {most:,}, not {value!r}", where=where
        )


def _level(option: str, value: Any, where: str | None) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0 <= value <= MOST_REQUESTS:
        raise DeclarationError(
            f"{option}= is a number of requests a second from 0 to {MOST_REQUESTS:,}, not {value!r}",
            where=where,
        )
