"""The closed model of a load on a database: virtual users, each with one statement at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import PAUSE_AFTER_REFUSAL
from ematix_probe.load.sql_pool import NoFreeConnection
from ematix_probe.load.sql_sending import CANNOT_CONNECT, SqlSending


class SqlUsers(SqlSending):
    """A thread for each user."""

    def connections(self) -> int:
        users = len(self._users())
        return min(self.target.pool or users, users)

    def _users(self) -> range:
        return range(self.share.share, int(self.share.profile.peak + 0.5), self.share.shares)

    def threads(self) -> list[Callable[[], None]]:
        self.numbers = itertools.count(self.share.share, self.share.shares)
        return [lambda user=user: self._live(user) for user in self._users()]  # type: ignore[misc]

    def _live(self, user: int) -> None:
        profile = self.share.profile
        if not self.wait_until(0):
            return
        while (now := self.now()) < self.end:
            active = profile.next_activity(user, now / SECOND)
            if active is None or not self.wait_until(min(round(active * SECOND), self.end)):
                return
            intended = self.now()
            if intended >= self.end:
                return
            with self.lock:
                number = next(self.numbers)
            wait = (self.end - intended) / SECOND + self.share.timeout
            try:
                connection = self.pool.take(wait)
            except NoFreeConnection:
                self.count_not_started(intended)
                return
            if self.stopping.is_set():  # while it waited
                self.pool.give_back(connection)
                return
            answer = self.attempt(intended, self.values(number), connection)
            pause = self.share.thinking_seconds(number)
            if answer.error == CANNOT_CONNECT:
                pause = max(pause, PAUSE_AFTER_REFUSAL)
            if pause > 0 and not self.wait_until(min(self.now() + round(pause * SECOND), self.end)):
                return
