"""This instance as its host knows it."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import wire
from .errors import Away, PandoError
from .state import State

DRAINED = "drained"  # the last flow has ended: push the state, then die
HALTED = "halted"  # someone else took this instance out of rotation: finish, push, die
PEERS = "peers"  # who takes flows has changed
BUDGET = "budget"  # min, max or an operator's pin has changed
PUSHED = "state"  # main has moved: pull to see it

_RECONNECT_SECONDS = 0.1  # how long events waits before it tries again while the agent is away
_SILENCE_SECONDS = 45.0  # a stream that says nothing for so long, not even that it is alive, is dead


@dataclass(frozen=True)
class Instance:
    """One copy of the service."""

    id: str
    host: str
    revision: int
    phase: str
    born: str  # RFC 3339; texts of times sort as times


@dataclass(frozen=True)
class Scale:
    """The budget of the service."""

    min: int
    max: int


@dataclass(frozen=True)
class Intent:
    """Something that was asked, and what became of it."""

    id: str
    state: str  # granted, coalesced, placed, …, in rotation
    reason: str
    instance: str  # the one that is started, or that leaves


@dataclass(frozen=True)
class View:
    """What an instance sees of itself and of its service."""

    instance: Instance
    vip: str
    scale: Scale
    peers: list[Instance]  # every instance that takes flows, itself included
    metrics: dict[str, float]
    flows: int  # open, of this instance
    pending: Intent | None


@dataclass(frozen=True)
class Event:
    """Something that happened to this instance."""

    id: int
    kind: str
    at: str
    data: Any = field(default=None)


def open() -> Self:  # noqa: A001: pando.open() is what it is
    """Finds the socket that Pando gave to this program. The error says how to run it under Pando."""
    socket = os.environ.get("PANDO_SOCKET", "")
    if not socket:
        raise PandoError("PANDO_SOCKET is not set: this program was not started by Pando; start it with `pando deploy SPEC.yaml`")
    return Self(socket, os.environ.get("PANDO_INSTANCE", ""), os.environ.get("PANDO_ROLE") == "first")


class Self:
    """This instance. Its methods may be called from many threads."""

    def __init__(self, socket: str, instance: str = "", first: bool = False) -> None:
        self.socket = socket
        self.instance = instance  # its name, such as website-7k3q
        self.first = first  # it was the service's first instance
        self.state = State(socket)

    def ready(self) -> None:
        """Says that this instance can take traffic. Saying it again changes nothing."""
        wire.call(self.socket, "POST", "/ready")

    def replicate(self, reason: str = "", wait: bool = False, **inputs: float) -> Intent:
        """Asks for one more instance; with wait it returns once that takes flows. inputs are what was measured, thresholds
        too: Pando keeps them, and `pando why` shows them. Refused: the text names the budget. Pending: an earlier request
        of this instance has not been answered yet."""
        return _intent(self._ask("/replicate", reason, inputs, wait))

    def halt(self, reason: str = "", **inputs: float) -> None:
        """Takes this instance out of rotation: when it returns, no new flow comes. Refused below the service's min. Flows
        that are open go on; the event DRAINED says that the last one has ended."""
        self._ask("/halt", reason, inputs)

    def die(self, reason: str = "", **inputs: float) -> None:
        """Gives the sandbox up. Refused before halt, with flows open, and until the state is pushed. After it returns, this
        program is ended."""
        self._ask("/die", reason, inputs)

    def _ask(self, path: str, reason: str, inputs: dict[str, float], wait: bool = False) -> Any:
        ask: dict[str, Any] = {"reason": reason, "inputs": inputs}
        if wait:
            ask["wait"] = True
        return wire.call_json(self.socket, "POST", path, ask)

    def me(self) -> View:
        """Describes this instance and its service."""
        v = wire.call_json(self.socket, "GET", "")
        pending = v.get("pending")
        return View(
            instance=_instance(v["instance"]), vip=v["vip"], scale=Scale(v["scale"].get("min", 0), v["scale"].get("max", 0)),
            peers=[_instance(p) for p in v.get("peers") or []], metrics=v.get("metrics") or {}, flows=v.get("flows", 0),
            pending=_intent(pending) if pending else None,
        )

    def put_metrics(self, **metrics: float) -> None:
        """Replaces what this instance says of itself, for operators to see."""
        wire.call_json(self.socket, "PUT", "/metrics", metrics)

    def events(self, stop: threading.Event | None = None) -> Iterator[Event]:
        """Yields what happens to this instance from now on, until the caller stops or stop is set (which is looked at
        between events and at least every 45 s). While the agent is being restarted it waits, and then goes on after the
        last event that it has yielded."""
        stop = stop or threading.Event()
        last = ""
        while not stop.is_set():
            try:
                for event in self._stream(last):
                    last = str(event.id)
                    yield event
                    if stop.is_set():
                        return
            except Away:
                pass
            stop.wait(_RECONNECT_SECONDS)

    def _stream(self, last: str) -> Iterator[Event]:
        """Yields the events of one connection."""
        headers = {"Last-Event-ID": last} if last else {}
        connection, answer = wire.send(self.socket, "GET", "/events", headers=headers, timeout=_SILENCE_SECONDS)
        try:
            for line in answer:
                if line.startswith(b"data: "):
                    e = json.loads(line[len(b"data: "):])
                    yield Event(id=e["id"], kind=e["kind"], at=e["at"], data=e.get("data"))
        except (OSError, http.client.HTTPException):
            return  # cut off, or silent for too long
        finally:
            connection.close()


def _instance(v: dict[str, Any]) -> Instance:
    return Instance(v["id"], v.get("host", ""), v.get("revision", 0), v.get("phase", ""), v.get("born", ""))


def _intent(v: dict[str, Any]) -> Intent:
    return Intent(v.get("id", ""), v.get("state", ""), v.get("reason", ""), v.get("instance", ""))
