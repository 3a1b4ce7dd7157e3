"""Lets a Python program that runs under Pando scale itself: ask for one more instance of itself, leave when it is not
needed, and keep state that is merged with that of its fellows.

    import pando
    me = pando.open()
    me.ready()
    me.replicate("812 requests/s > 600", requests_per_second=812, high=600)

It is a thin client of the unix socket in PANDO_SOCKET and uses nothing but the standard library. The socket is the
identity: there is nothing to log in with, and no other instance can be asked about. It never decides anything.
"""

from .errors import Away, Invalid, Lost, NotFound, PandoError, Pending, Refused
from .self import BUDGET, DRAINED, HALTED, PEERS, PUSHED, Event, Instance, Intent, Scale, Self, View, open
from .state import Entry, Merge, State

__all__ = [
    "Away", "Invalid", "Lost", "NotFound", "PandoError", "Pending", "Refused",
    "BUDGET", "DRAINED", "HALTED", "PEERS", "PUSHED",
    "Entry", "Event", "Instance", "Intent", "Merge", "Scale", "Self", "State", "View", "open",
]
