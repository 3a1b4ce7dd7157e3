#!/usr/bin/python3
"""Answers every request with the name of the instance. It does not use Pando's API."""

import http.server
import os
import socketserver


class Hello(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = (os.environ.get("PANDO_INSTANCE", "no instance") + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


Server(("0.0.0.0", 8080), Hello).serve_forever()
