"""Lets kept connections go when the service grows, so that new instances get their share."""

from __future__ import annotations

import math
import random
import threading
import time
import weakref
from typing import Callable

from .self import PEERS, Self

_MOST, _TO = 1.2, 1.1  # the load over the mean from which connections leave, and that after it
_OVER_SECONDS = 1.0  # over which connections leave


def load_after(load: float, before: int, now: int) -> float:
    """Returns the load of an instance over the mean after a change of the number of instances.

    New instances lower the mean. The connections of those that left went to all others alike.
    """
    if before == 0:
        return 1.0
    r = now / before
    return load * r if r > 1 else (load - 1) * r + 1


def share_to_leave(load: float) -> float:
    """Returns the share of the connections that leave. They come back to all instances alike."""
    return 0.0 if load <= _MOST else (load - _TO) / (load - 1)


class Spread:
    """The kept connections of one server. A server asks leaves() before each answer.

    Clients that keep their connections stay on the instances to which they connected once, so a new
    instance would get no work. A server sends "Connection: close" with the answer where leaves()
    returns True. The client connects again, and Pando chooses the instance.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._due: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()
        self._instances = 0
        self._load = 1.0

    def follow(self, me: Self) -> None:
        """Follows the number of instances, in a thread of its own."""
        threading.Thread(target=self._follow, args=(me,), daemon=True).start()

    def _follow(self, me: Self) -> None:
        for event in me.events():
            if event.kind == PEERS and isinstance(event.data, dict):
                self.saw(int(event.data.get("in_rotation", 0)))

    def saw(self, instances: int) -> None:
        """Takes the number of instances that take flows."""
        with self._lock:
            if instances < 1:
                return
            self._load = load_after(self._load, self._instances, instances)
            self._instances = instances
            share = share_to_leave(self._load)
            if share == 0:
                return
            self._load = _TO
            now = self._clock()
            # A draw for each connection would leave too many on some instances. Those that were chosen
            # before are on their way.
            stay = [c for c, due in self._due.items() if due == float("inf")]
            for connection in random.sample(stay, math.ceil(share * len(stay))):
                self._due[connection] = now + random.random() * _OVER_SECONDS

    def leaves(self, connection: object) -> bool:
        """Returns True if a connection, such as its socket, is to end with the answer."""
        with self._lock:
            due = self._due.setdefault(connection, float("inf"))
            return self._clock() >= due
