"""The page: answers requests, and keeps a line for each until the line is written to the state."""

from __future__ import annotations

import datetime
import http.server
import select
import socket
import socketserver
import threading

import pando


class Site:
    """The site of one instance."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.leaving = False
        self.spread = pando.Spread()  # clients that keep their connections reach new instances
        self.served = 0
        self._lock = threading.Lock()
        self._lines: list[str] = []  # answered, not yet written
        self._idle: set[socket.socket] = set()  # connections that wait for a request
        self._server = Server(("0.0.0.0", 8080), Page)
        self._server.site = self

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def count(self, method: str, path: str) -> None:
        """Counts a request and keeps its line."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat()
        with self._lock:
            self.served += 1
            self._lines.append(f"{self.instance}-{self.served} {at} {method} {path}")

    def take(self) -> list[str]:
        """Returns the lines of the requests since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
            return lines

    def idle(self, connection: socket.socket) -> bool:
        """Records that a connection waits for its next request; returns False if it has to end."""
        with self._lock:
            if not self.leaving:
                self._idle.add(connection)
            return not self.leaving

    def busy(self, connection: socket.socket) -> None:
        with self._lock:
            self._idle.discard(connection)

    def let_go(self) -> None:
        """Asks every client to leave. Busy connections end with the next answer, idle ones now."""
        with self._lock:
            self.leaving = True
            for connection in self._idle:
                connection.shutdown(socket.SHUT_RD)  # its thread reads an end and closes it
            self._idle.clear()


# How long a leaving site waits for the first request of a connection.
FIRST_REQUEST_SECONDS = 1


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024
    site: Site


class Page(http.server.BaseHTTPRequestHandler):
    """Answers with the name of the instance. The line is kept before the answer is sent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    answered = 0

    def handle_one_request(self) -> None:
        if not self.server.site.idle(self.connection) and not self.owed():
            self.close_connection = True
            return
        super().handle_one_request()
        self.answered += 1

    def owed(self) -> bool:
        """Returns True if a leaving site owes this connection an answer.

        Its request has arrived, or it waited in the queue and its first request is on the way.
        """
        if self.answered == 0:
            self.connection.settimeout(FIRST_REQUEST_SECONDS)
            return True
        return bool(select.select([self.connection], [], [], 0)[0])

    def parse_request(self) -> bool:
        self.server.site.busy(self.connection)
        return super().parse_request()

    def do_GET(self) -> None:
        site = self.server.site
        site.count(self.command, self.path)
        body = f"Hello from {site.instance}\n".encode()
        self.send_response_only(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if site.leaving or site.spread.leaves(self.connection):
            # The client's next connection goes to another instance.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        self.server.site.busy(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass
