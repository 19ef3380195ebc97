"""The Locust side: a user that plays its share of a schedule. Locust owns users, start, stop and statistics.

Sockets are not gevent's: the player runs in a native thread and tells the user's greenlet what came of it.
Importing this module imports Locust without monkey-patching: threads and sockets stay native in the whole process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from gevent.event import AsyncResult
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from kvbench.load.mailbox import Mailbox
from kvbench.load.player import Answered, Player
from kvbench.load.precedence import go_first

__all__ = ["Environment", "Share", "play_with_locust", "schedule_user"]


@dataclass(frozen=True, slots=True)
class _Ended:
    complete: bool
    error: BaseException | None


class Share:
    """What one user plays: the whole schedule here, a worker's part of it elsewhere."""

    def __init__(self, on_event: Callable[[dict[str, object]], None]) -> None:
        self.ended: AsyncResult = AsyncResult()
        """True when the share was played to its end; or the error that ended it."""
        self._on_event = on_event
        self._mail: Mailbox[Answered | dict[str, object] | _Ended] = Mailbox()
        self._player: Player | None = None
        self._thread: threading.Thread | None = None

    def report(self, event: dict[str, object]) -> None:
        """For the player: an event for whoever watches. Wakes the user's greenlet, about once a second."""
        self._mail.put(event)

    def answered(self, answer: Answered) -> None:
        """For the player: a finished request. Waits for the next event, so that sending is not disturbed."""
        self._mail.put(answer, wake=False)

    def assign(self, player: Player) -> None:
        self._player = player

    def play(self, environment: Environment) -> None:
        """Run the player in its thread and pass on what it tells, until it has ended."""
        self._thread = threading.Thread(target=self._play, name="player")
        self._thread.start()
        try:
            while not isinstance(message := self._mail.get(), _Ended):
                if isinstance(message, Answered):
                    _tell_locust(environment, message)
                else:
                    self._on_event(message)
            if message.error:
                self.ended.set_exception(message.error)
            else:
                self.ended.set(message.complete)
        finally:
            self.stop()
            self._thread.join()

    def stop(self) -> None:
        """End the share early; `ended` is set soon after."""
        if self._player:
            self._player.stop()

    def _play(self) -> None:
        if self._player is None:
            raise RuntimeError("a share is played before it has a player")
        error: BaseException | None = None
        complete = False
        go_first()
        try:
            complete = self._player.play()
        except BaseException as caught:  # noqa: BLE001  (raised again where the share is waited for)
            error = caught
        self._mail.put(_Ended(complete, error))


def _tell_locust(environment: Environment, answer: Answered) -> None:
    environment.events.request.fire(  # type: ignore[no-untyped-call]  # Locust types only some of its parts
        request_type="POST",
        name=answer.class_,
        response_time=answer.e2e_s * 1e3,
        response_length=answer.bytes_,
        exception=RuntimeError(str(answer.failure)) if answer.failure else None,
        context={},
    )


def schedule_user(play: Callable[[Environment], None]) -> type[User]:
    """The user class of every process of a round: each user plays one share and is done."""

    class ScheduleUser(User):
        @task
        def play_share(self) -> None:
            play(self.environment)
            raise StopUser

    return ScheduleUser


def play_with_locust(share: Share) -> bool:
    """Play `share` as one Locust user of a local runner; True when it was played to its end."""
    environment = Environment(user_classes=[schedule_user(share.play)])
    runner = environment.create_local_runner()
    runner.start(1, spawn_rate=1)
    try:
        complete: bool = share.ended.get()
        return complete
    finally:
        runner.quit()
