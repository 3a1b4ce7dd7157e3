"""Lets a Python program that runs under Pando scale itself: ask for one more instance, leave when
load falls, and keep state that is merged with its peers' state.

    import pando
    me = pando.open()
    me.ready()
    me.replicate("812 requests/s > 600", requests_per_second=812, high=600)

It is a thin client of the unix socket in PANDO_SOCKET and uses only the standard library. The
socket is the identity: there is no login, and an instance can ask only about itself. It never
decides anything.
"""

from .errors import Away, Invalid, Lost, NotFound, PandoError, Pending, Refused
from .self import (
    BUDGET,
    DRAINED,
    HALTED,
    PEERS,
    PUSHED,
    Event,
    Instance,
    Intent,
    Scale,
    Self,
    View,
    open,
)
from .spread import Spread
from .state import Entry, Merge, State

__all__ = [
    "Away", "Invalid", "Lost", "NotFound", "PandoError", "Pending", "Refused",
    "BUDGET", "DRAINED", "HALTED", "PEERS", "PUSHED",
    "Entry", "Event", "Instance", "Intent", "Merge", "Scale", "Self", "Spread", "State", "View",
    "open",
]
