#!/usr/bin/python3
"""Answers GET /N with the sum of the divisors of N, the instance, and the seconds of its start."""

import http.server
import socket
import socketserver
import time

BEGAN = time.monotonic()

import sums  # noqa: E402  the slow import

STARTED = time.monotonic() - BEGAN


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        number = self.path.lstrip("/")
        known = number.isdecimal() and int(number) < sums.LIMIT
        text = "unknown\n"
        if known:
            text = f"{sums.SUMS[int(number)]} {socket.gethostname()} {STARTED:.3f}\n"
        body = text.encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


Server(("0.0.0.0", 8080), Page).serve_forever()
