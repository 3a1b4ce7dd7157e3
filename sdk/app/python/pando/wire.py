"""HTTP over a unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from .errors import Away, problem


class Connection(http.client.HTTPConnection):
    """One connection to a unix socket. Connecting takes microseconds, so each call opens its own
    and threads share none."""

    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("self", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def send(
    socket_path: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float | None = None,
) -> tuple[Connection, http.client.HTTPResponse]:
    """Returns the successful answer to a request. The caller reads it and closes the connection."""
    connection = Connection(socket_path, timeout)
    try:
        connection.request(method, "/v1/self" + path, body, headers or {})
        answer = connection.getresponse()
        if answer.status < 400:
            return connection, answer
        raw = answer.read()
    except (OSError, http.client.HTTPException) as e:
        connection.close()
        raise Away(
            f"{method} {path}: the agent does not answer at {socket_path} ({e}); try again: it is"
            " being restarted"
        ) from e
    except BaseException:
        connection.close()
        raise
    connection.close()
    try:
        parsed = json.loads(raw)
    except ValueError:
        parsed = None
    raise problem(f"{method} {path}", answer.status, parsed)


def call(socket_path: str, method: str, path: str, body: bytes | None = None) -> bytes:
    """Sends a request and returns the body of the answer."""
    connection, answer = send(socket_path, method, path, body)
    try:
        return answer.read()
    except (OSError, http.client.HTTPException) as e:
        raise Away(
            f"{method} {path}: the answer was cut off ({e}); try again: the agent is being"
            " restarted"
        ) from e
    finally:
        connection.close()


def call_json(socket_path: str, method: str, path: str, value: Any = None) -> Any:
    """Sends a value, if given, and returns the value of the answer, if any."""
    raw = call(socket_path, method, path, None if value is None else json.dumps(value).encode())
    return json.loads(raw) if raw else None
