"""Tests the SDK against a server on a real unix socket that answers like an agent."""

import http.server
import json
import os
import socketserver
import tempfile
import threading
import unittest
from collections.abc import Callable
from typing import Any

import pando

Route = Callable[["Agent"], None]


class Agent(http.server.BaseHTTPRequestHandler):
    """Answers from the routes of its server."""

    protocol_version = "HTTP/1.1"
    body = b""

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        route = self.server.routes.get(self.command + " " + self.path)  # type: ignore[attr-defined]
        if route is None:
            self.answer(404, {"code": "not_found", "detail": "no such path " + self.path})
        else:
            route(self)
        self.close_connection = True

    def answer(self, status: int, value: Any = None) -> None:
        raw = (
            value
            if isinstance(value, bytes)
            else b"" if value is None else json.dumps(value).encode()
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if raw:
            self.wfile.write(raw)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


def answers(status: int, value: Any = None) -> Route:
    """Returns a route with a constant answer."""
    return lambda agent: agent.answer(status, value)


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    routes: dict[str, Route]


class Case(unittest.TestCase):
    def agent(self, routes: dict[str, Route]) -> pando.Self:
        """Serves routes on its own socket until the test ends."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "pando.sock")
        server = Server(path, Agent)
        server.routes = routes
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return pando.Self(path, "website-1", True)

    def environment(self, name: str, value: str) -> None:
        before = os.environ.get(name)
        os.environ[name] = value
        self.addCleanup(
            lambda: os.environ.pop(name) if before is None else os.environ.update({name: before})
        )


class TestSelf(Case):
    def test_outside_of_pando_the_error_says_what_to_do(self) -> None:
        self.environment("PANDO_SOCKET", "")
        with self.assertRaisesRegex(pando.PandoError, "pando deploy"):
            pando.open()

    def test_the_environment_says_who_it_is(self) -> None:
        self.environment("PANDO_SOCKET", "/run/pando.sock")
        self.environment("PANDO_INSTANCE", "website-7")
        self.environment("PANDO_ROLE", "first")
        me = pando.open()
        self.assertEqual((me.socket, me.instance, me.first), ("/run/pando.sock", "website-7", True))

    def test_an_agent_that_is_away_is_not_a_refusal(self) -> None:
        with self.assertRaisesRegex(pando.Away, "try again"):
            pando.Self("/nowhere/pando.sock").ready()

    def test_an_agent_that_hangs_up_is_away(self) -> None:
        me = self.agent({"POST /v1/self/ready": lambda a: None})
        with self.assertRaises(pando.Away):
            me.ready()

    def test_a_refusal_is_an_error_with_its_reason(self) -> None:
        asked = []

        def refuse(a: Agent) -> None:
            asked.append(json.loads(a.body))
            a.answer(
                409,
                {
                    "code": "refused",
                    "detail": "replicate refused: 8 of max 8 instances",
                    "intent": {"id": "i1"},
                },
            )

        me = self.agent({"POST /v1/self/replicate": refuse})
        with self.assertRaises(pando.Refused) as caught:
            me.replicate("busy", wait=True, rate=700)
        self.assertEqual(str(caught.exception), "replicate refused: 8 of max 8 instances")
        self.assertEqual(caught.exception.intent, {"id": "i1"})
        self.assertEqual(asked, [{"reason": "busy", "inputs": {"rate": 700}, "wait": True}])

    def test_every_answer_that_is_no_problem_document_is_still_an_error(self) -> None:
        for answer in (b"", b"not json", b"[]", b"null", b'{"detail": 7}', b"\xff\xfe"):
            me = self.agent({"POST /v1/self/halt": answers(500, answer)})
            with self.assertRaisesRegex(
                pando.PandoError, "POST /halt: the agent answered with 500"
            ):
                me.halt()

    def test_the_kinds_of_errors(self) -> None:
        kinds = {
            "refused": pando.Refused,
            "conflict": pando.Pending,
            "not_found": pando.NotFound,
            "invalid": pando.Invalid,
            "too_large": pando.Invalid,
            "lost": pando.Lost,
            "unavailable": pando.Away,
            "unreachable": pando.Away,
            "busy": pando.Away,
            "store_full": pando.PandoError,
        }
        for code, kind in kinds.items():
            me = self.agent(
                {"POST /v1/self/die": answers(409, {"code": code, "detail": "because"})}
            )
            with self.assertRaises(pando.PandoError) as caught:
                me.die()
            self.assertIs(type(caught.exception), kind, code)

    def test_what_is_granted_and_what_is_seen(self) -> None:
        one = {
            "id": "website-1",
            "host": "h1",
            "revision": 2,
            "phase": "in rotation",
            "born": "2026-11-20T10:00:00Z",
        }
        view = {
            "instance": one,
            "vip": "10.127.0.2",
            "scale": {"min": 1, "max": 8},
            "peers": [one, {**one, "id": "website-2"}],
            "flows": 3,
        }
        me = self.agent(
            {
                "POST /v1/self/ready": answers(204),
                "POST /v1/self/halt": answers(200, {"intent": {"id": "i2"}}),
                "POST /v1/self/replicate": answers(
                    202,
                    {"id": "i1", "state": "placed", "reason": "granted", "instance": "website-2"},
                ),
                "GET /v1/self": answers(200, view),
                "PUT /v1/self/metrics": lambda a: a.answer(
                    204 if json.loads(a.body) == {"rate": 12.5} else 400, None
                ),
            }
        )
        me.ready()
        me.halt("calm")
        me.put_metrics(rate=12.5)
        self.assertEqual(me.replicate().instance, "website-2")
        seen = me.me()
        self.assertEqual(
            (seen.vip, seen.scale, seen.flows, seen.pending),
            ("10.127.0.2", pando.Scale(1, 8), 3, None),
        )
        self.assertEqual([p.id for p in seen.peers], ["website-1", "website-2"])


class TestEvents(Case):
    def test_they_go_on_where_they_were_cut_off(self) -> None:
        after: list[str | None] = []

        def one(a: Agent) -> None:
            after.append(a.headers.get("Last-Event-ID"))
            n = len(after)
            event = json.dumps(
                {"id": n, "kind": "peers", "at": "2026-11-20T10:00:00Z", "data": {"in_rotation": n}}
            )
            a.answer(
                200, f": alive\n\nid: {n}\nevent: peers\ndata: {event}\n\n".encode()
            )  # then the connection ends

        me = self.agent({"GET /v1/self/events": one})
        stop = threading.Event()
        seen = []
        for e in me.events(stop):
            seen.append((e.id, e.kind, e.data))
            if len(seen) == 3:
                stop.set()
        self.assertEqual(seen, [(n, pando.PEERS, {"in_rotation": n}) for n in (1, 2, 3)])
        self.assertEqual(after, [None, "1", "2"])

    def test_a_refusal_ends_them(self) -> None:
        me = self.agent(
            {
                "GET /v1/self/events": answers(
                    403, {"code": "forbidden", "detail": "not your socket"}
                )
            }
        )
        with self.assertRaisesRegex(pando.PandoError, "not your socket"):
            next(me.events())


class TestState(Case):
    def test_it_speaks_the_types_of_its_paths(self) -> None:
        got: dict[str, bytes] = {}

        def take(a: Agent) -> None:
            got[a.command + " " + a.path.removeprefix("/v1/self/state/")] = a.body
            a.answer(204)

        me = self.agent({
            **{"PATCH /v1/self/state/" + p: take for p in ("hits", "log", "users", "gone")},
            "PUT /v1/self/state/a/b%20%3Fc": take, "DELETE /v1/self/state/old": take,
            "GET /v1/self/state/hits": answers(200, b"42\n"),
            "GET /v1/self/state/raw": answers(200, b"\x00\xff"),
            "GET /v1/self/state/": answers(200, [{"path": "hits", "type": "counter", "bytes": 2}]),
            "GET /v1/self/state/deep/": answers(200, []),
        })
        s = me.state
        s.add("hits", -3)
        s.append("log", "a", "b")
        s.include("users", "x", "y")
        s.exclude("gone", "z")
        s.put("a/b ?c", "text")
        s.delete("old")
        self.assertEqual(
            got,
            {
                "PATCH hits": b"-3",
                "PATCH log": b"a\nb\n",
                "PATCH users": b"+x\n+y",
                "PATCH gone": b"-z",
                "PUT a/b%20%3Fc": b"text",
                "DELETE old": b"",
            },
        )
        self.assertEqual(
            (s.counter("hits"), s.counter("nothing"), s.get("raw")), (42, 0, b"\x00\xff")
        )
        self.assertEqual(
            (s.entries(), s.entries("deep")), ([pando.Entry("hits", "counter", 2)], [])
        )
        with self.assertRaises(pando.NotFound):
            s.get("nothing")
        with self.assertRaises(pando.Invalid):
            s.get("deep/")

    def test_commit_pull_and_push(self) -> None:
        merge = {"commit": "ab" * 20, "taken": 1, "merged": 2, "conflicts": ["x"]}
        me = self.agent(
            {
                "POST /v1/self/state/commit": lambda a: a.answer(
                    200, {"commit": json.loads(a.body)["message"] * 2}
                ),
                "POST /v1/self/state/pull": answers(
                    200, {"commit": "cd" * 20, "taken": 0, "merged": 0}
                ),
                "POST /v1/self/state/push": answers(200, merge),
            }
        )
        self.assertEqual(me.state.commit("ab"), "abab")
        self.assertEqual(me.state.pull(), pando.Merge("cd" * 20, 0, 0))
        self.assertEqual(me.state.push(), pando.Merge("ab" * 20, 1, 2, ["x"]))


class SpreadTest(unittest.TestCase):
    def test_connections_leave_when_the_service_grows(self) -> None:
        now = [0.0]
        spread = pando.Spread(lambda: now[0])
        connections = [threading.Event() for _ in range(200)]

        def left() -> int:
            return sum(spread.leaves(c) for c in connections)

        spread.saw(2)
        self.assertEqual(left(), 0)
        spread.saw(16)
        now[0] = 2.0
        self.assertGreater(left(), 180)
        spread.saw(4)
        late = threading.Event()
        self.assertFalse(spread.leaves(late))
        del connections[:]
        self.assertEqual(len(spread._due), 1)

    def test_an_exact_share_leaves(self) -> None:
        spread = pando.Spread(lambda: 9.0)
        connections = [threading.Event() for _ in range(100)]
        for c in connections:
            spread.leaves(c)
        for instances, want in ((1, 0), (2, 90), (4, 100)):
            spread.saw(instances)
            leaving = sum(spread._due[c] != float("inf") for c in connections)
            self.assertEqual(leaving, want)

    def test_small_steps_add_up(self) -> None:
        spread = pando.Spread(lambda: 9.0)
        connections = [threading.Event() for _ in range(200)]
        for c in connections:
            spread.leaves(c)
        for n in range(100, 300):
            spread.saw(n)
        staying = sum(spread._due[c] == float("inf") for c in connections)
        self.assertLess(staying, 100)


if __name__ == "__main__":
    unittest.main()
