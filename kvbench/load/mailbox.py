"""Messages from native threads to gevent's greenlets."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import gevent
from gevent.event import Event

__all__ = ["Mailbox"]

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """Any thread puts; greenlets of the thread that made it get."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._arrived = Event()
        self._watcher = gevent.get_hub().loop.async_()
        self._watcher.start(self._arrived.set)

    def put(self, message: Message, *, wake: bool = True) -> None:
        """Safe from any thread. With `wake=False` the message waits for the next one that wakes."""
        self._messages.append(message)
        if wake:
            self._watcher.send()

    def get(self) -> Message:
        """The oldest message; waits for one."""
        while not self._messages:
            self._arrived.wait()
            self._arrived.clear()
        return self._messages.popleft()

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
