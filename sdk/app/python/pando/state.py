"""This instance's branch of the service's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from . import wire
from .errors import Invalid, NotFound


@dataclass(frozen=True)
class Merge:
    """The result of a pull or a push."""

    commit: str
    taken: int  # paths that changed on one side only
    merged: int  # paths that changed on both sides
    conflicts: list[str] = field(default_factory=list)  # opaque paths that kept both versions


@dataclass(frozen=True)
class Entry:
    """One path of a listing."""

    path: str
    type: str
    bytes: int  # 0 for a log


class State:
    """The branch. This instance sees a write at once. The write survives the instance after commit,
    and its peers see it after push and their pull. The spec sets how each path merges."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def get(self, path: str) -> bytes:
        """Returns the value of a path; NotFound if there is none."""
        if not path or path.endswith("/"):
            raise Invalid(
                f"state path {path!r}: want the path of a value; entries() lists the paths"
            )
        return wire.call(self._socket, "GET", _at(path))

    def counter(self, path: str) -> int:
        """Returns the value of a counter, 0 for a missing one."""
        try:
            return int(self.get(path))
        except NotFound:
            return 0

    def entries(self, prefix: str = "") -> list[Entry]:
        """Returns the paths below a folder in order, or all paths."""
        folder = prefix if prefix == "" or prefix.endswith("/") else prefix + "/"
        return [
            Entry(e["path"], e["type"], e["bytes"])
            for e in wire.call_json(self._socket, "GET", _at(folder)) or []
        ]

    def put(self, path: str, value: bytes | str) -> None:
        """Replaces the value of a path."""
        wire.call(self._socket, "PUT", _at(path), _bytes(value))

    def add(self, path: str, n: int) -> None:
        """Adds n, which may be negative, to a path of type counter."""
        self._patch(path, str(n))

    def append(self, path: str, *lines: str) -> None:
        """Adds lines to a path of type append-log. Its cost grows with the lines, not the log."""
        self._patch(path, "".join(line + "\n" for line in lines))

    def include(self, path: str, *members: str) -> None:
        """Adds members to a path of type set."""
        self._patch(path, "\n".join("+" + m for m in members))

    def exclude(self, path: str, *members: str) -> None:
        """Removes members from a path of type set."""
        self._patch(path, "\n".join("-" + m for m in members))

    def delete(self, path: str) -> None:
        """Removes a path."""
        wire.call(self._socket, "DELETE", _at(path))

    def commit(
        self,
        message: str = "",
        put: Mapping[str, str] | None = None,
        patch: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
    ) -> str:
        """Makes all writes so far survive this instance; they are durable on return. Returns the
        commit's name. put, patch (deltas such as "1" for a counter and "line" for a log) and delete
        are part of the commit, all or none of them."""
        change = {
            "message": message,
            "put": dict(put or {}),
            "patch": dict(patch or {}),
            "delete": list(delete),
        }
        return str(wire.call_json(self._socket, "POST", "/state/commit", change)["commit"])

    def pull(self) -> Merge:
        """Merges the states that others have pushed."""
        return _merge(wire.call_json(self._socket, "POST", "/state/pull"))

    def push(self) -> Merge:
        """Commits, then merges this branch into main. The result is durable on return."""
        return _merge(wire.call_json(self._socket, "POST", "/state/push"))

    def _patch(self, path: str, delta: str) -> None:
        wire.call(self._socket, "PATCH", _at(path), delta.encode())


def _at(path: str) -> str:
    return "/state/" + quote(path)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _merge(v: dict[str, Any]) -> Merge:
    return Merge(v["commit"], v["taken"], v["merged"], list(v.get("conflicts") or []))
