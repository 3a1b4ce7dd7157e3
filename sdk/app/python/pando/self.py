"""The client of this instance."""

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
HALTED = "halted"  # halted, but not by its own halt: finish, push, die
PEERS = "peers"  # the set of instances that take flows has changed
BUDGET = "budget"  # min, max or an operator's pin has changed
PUSHED = "state"  # main has changed: pull to see it

_RECONNECT_SECONDS = 0.1  # pause before events tries again while the agent is away
_SILENCE_SECONDS = 45.0  # a stream without any line, not even a keep-alive, for this time is dead


@dataclass(frozen=True)
class Instance:
    """One copy of the service."""

    id: str
    host: str
    revision: int
    phase: str
    born: str  # RFC 3339; sorts as text


@dataclass(frozen=True)
class Scale:
    """The budget of the service."""

    min: int
    max: int


@dataclass(frozen=True)
class Intent:
    """A request and its outcome."""

    id: str
    state: str  # granted, coalesced, placed, …, in rotation
    reason: str
    instance: str  # the instance that starts or leaves


@dataclass(frozen=True)
class View:
    """The state of an instance and of its service."""

    instance: Instance
    vip: str
    scale: Scale
    peers: list[Instance]  # instances that take flows: the 32 youngest, and this one
    in_rotation: int  # all instances that take flows
    metrics: dict[str, float]
    flows: int  # open flows of this instance
    pending: Intent | None


@dataclass(frozen=True)
class Event:
    """A change that concerns this instance."""

    id: int
    kind: str
    at: str
    data: Any = field(default=None)


def open() -> Self:  # noqa: A001: pando.open() is what it is
    """Returns the client of the socket in PANDO_SOCKET. Its error explains how to start one."""
    socket = os.environ.get("PANDO_SOCKET", "")
    if not socket:
        raise PandoError(
            "PANDO_SOCKET is not set: this program was not started by Pando; start it with `pando"
            " deploy SPEC.yaml`"
        )
    return Self(
        socket, os.environ.get("PANDO_INSTANCE", ""), os.environ.get("PANDO_ROLE") == "first"
    )


class Self:
    """The client of this instance. Its methods may be called from many threads."""

    def __init__(self, socket: str, instance: str = "", first: bool = False) -> None:
        self.socket = socket
        self.instance = instance  # its name, for example website-7k3q
        self.first = first  # whether it was the service's first instance
        self.state = State(socket)

    def ready(self) -> None:
        """Reports that this instance can take traffic. Repeated calls change nothing."""
        wire.call(self.socket, "POST", "/ready")

    def replicate(self, reason: str = "", wait: bool = False, **inputs: float) -> Intent:
        """Asks for one more instance. With wait it returns once that instance takes flows.

        inputs are measured values and thresholds; Pando stores them, and `pando why` shows them.
        Refused: the text names the budget. Pending: an earlier request is still open."""
        return _intent(self._ask("/replicate", reason, inputs, wait))

    def halt(self, reason: str = "", **inputs: float) -> None:
        """Takes this instance out of rotation. Once it returns, the instance gets no new flows.

        It raises Refused below the service's min. Open flows continue; the event DRAINED reports
        the end of the last one."""
        self._ask("/halt", reason, inputs)

    def die(self, reason: str = "", **inputs: float) -> None:
        """Gives up the sandbox. It raises Refused before halt, with flows open, and until the state
        is pushed. Once it returns, Pando ends this program."""
        self._ask("/die", reason, inputs)

    def _ask(self, path: str, reason: str, inputs: dict[str, float], wait: bool = False) -> Any:
        ask: dict[str, Any] = {"reason": reason, "inputs": inputs}
        if wait:
            ask["wait"] = True
        return wire.call_json(self.socket, "POST", path, ask)

    def me(self) -> View:
        """Returns the view of this instance and its service."""
        v = wire.call_json(self.socket, "GET", "")
        pending = v.get("pending")
        return View(
            instance=_instance(v["instance"]),
            vip=v["vip"],
            scale=Scale(v["scale"].get("min", 0), v["scale"].get("max", 0)),
            peers=[_instance(p) for p in v.get("peers") or []],
            in_rotation=v.get("in_rotation", 0),
            metrics=v.get("metrics") or {},
            flows=v.get("flows", 0),
            pending=_intent(pending) if pending else None,
        )

    def put_metrics(self, **metrics: float) -> None:
        """Replaces the metrics that this instance shows to operators."""
        wire.call_json(self.socket, "PUT", "/metrics", metrics)

    def events(self, stop: threading.Event | None = None) -> Iterator[Event]:
        """Yields the present state, as the newest event of each kind that tells one, and then each
        new event, until the caller stops or stop is set. DRAINED comes again until the instance dies.

        It checks stop between events and at least every 45 s. While the agent restarts, it waits
        and then continues after the last event."""
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
        connection, answer = wire.send(
            self.socket, "GET", "/events", headers=headers, timeout=_SILENCE_SECONDS
        )
        try:
            for line in answer:
                if line.startswith(b"data: "):
                    e = json.loads(line[len(b"data: "):])
                    yield Event(id=e["id"], kind=e["kind"], at=e["at"], data=e.get("data"))
        except (OSError, http.client.HTTPException):
            return  # the connection ended, or was silent for too long
        finally:
            connection.close()


def _instance(v: dict[str, Any]) -> Instance:
    return Instance(
        v["id"], v.get("host", ""), v.get("revision", 0), v.get("phase", ""), v.get("born", "")
    )


def _intent(v: dict[str, Any]) -> Intent:
    return Intent(v.get("id", ""), v.get("state", ""), v.get("reason", ""), v.get("instance", ""))
