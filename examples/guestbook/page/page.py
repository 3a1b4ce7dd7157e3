"""A page that counts its visitors in Redis."""

import os
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def visitors() -> int:
    """Add one to the counter in Redis and return it."""
    with socket.create_connection((os.environ["REDIS"], 6379), timeout=5) as redis:
        redis.sendall(b"INCR visitors\r\n")
        return int(redis.makefile("rb").readline()[1:])


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        try:
            status, text = 200, f"visitor {visitors()}\n"
        except OSError as error:
            status, text = 503, f"the database does not answer: {error}\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing for each request."""


ThreadingHTTPServer(("", 8000), Page).serve_forever()
