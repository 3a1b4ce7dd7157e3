"""Tests the SDK against the real Pando. A service's first instance calls the whole SDK and dies
with its findings as the reason. Its replicas only serve. Unittest discovery skips this file: it
runs where PANDO_SOCKET is set; see test/sdk."""

import socketserver
import threading
import time
from collections.abc import Callable

import pando


class Hello(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"hello\n")


class Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


found: dict[bool, list[str]] = {True: [], False: []}


def holds(what: str, ok: bool) -> None:
    found[ok].append(what)
    print(("holds: " if ok else "BROKEN: ") + what, flush=True)


def refused(what: str, kind: type[pando.PandoError], ask: Callable[[], object], text: str) -> None:
    try:
        ask()
    except kind as e:
        holds(f"{what}: {e}", text in str(e))
    else:
        holds(what + " was not refused", False)


def state(me: pando.Self) -> None:
    s = me.state
    s.add("hits", 2)
    s.add("hits", -1)
    s.append("log", "one", "two")
    s.include("tags", "a", "b")
    s.exclude("tags", "a")
    s.put("notes/with space?.txt", b"\x00text")
    s.put("gone", "x")
    holds(
        "writes are seen at once",
        (s.counter("hits"), s.get("log"), s.get("tags")) == (1, b"one\ntwo\n", b"b\n"),
    )
    holds("a path is quoted", s.get("notes/with space?.txt") == b"\x00text")
    s.delete("gone")
    refused("a deleted path", pando.NotFound, lambda: s.get("gone"), "gone")
    refused("a word for a counter", pando.Invalid, lambda: s.put("hits", "many"), "integer")
    refused("a path that climbs", pando.Invalid, lambda: s.put("a/../b", "x"), "..")
    holds(
        "the paths are listed",
        [(e.path, e.type) for e in s.entries()]
        == [
            ("hits", "counter"),
            ("log", "append-log"),
            ("notes/with space?.txt", "last-writer-wins"),
            ("tags", "set"),
        ],
    )
    holds("a commit has a name", len(s.commit("all of it")) == 40)
    refused(
        "a change of which one part is wrong",
        pando.Invalid,
        lambda: s.commit(put={"new": "x"}, patch={"hits": "many"}),
        "integer",
    )
    refused("the other part of it", pando.NotFound, lambda: s.get("new"), "new")
    s.commit(
        "in one step", put={"new": "x"}, patch={"hits": "4", "log": "three\n"}, delete=["tags"]
    )
    holds(
        "a change is made as a whole",
        (s.get("new"), s.counter("hits"), s.get("log")) == (b"x", 5, b"one\ntwo\nthree\n"),
    )
    holds("a push returns its commit", len(s.push().commit) == 40)
    holds("a pull without news takes nothing", s.pull().taken == 0)


def life(me: pando.Self, events: list[pando.Event], news: threading.Condition) -> None:
    def await_event(kind: str) -> bool:
        with news:
            return news.wait_for(lambda: any(e.kind == kind for e in events), timeout=30)

    me.put_metrics(rate=12.5)
    view = me.me()
    holds(
        "it sees itself",
        view.instance.id == me.instance
        and view.metrics == {"rate": 12.5}
        and view.scale == pando.Scale(1, 2),
    )
    refused("a death before halt", pando.Refused, lambda: me.die("too early"), "halt it first")
    refused("a halt below min", pando.Refused, lambda: me.halt("too early"), "min")
    intent = me.replicate("the contract wants a copy", wait=True, rate=700, high=600)
    holds(
        "a copy is in rotation when replicate returns",
        intent.instance in [p.id for p in me.me().peers],
    )
    holds("peers are reported", await_event(pando.PEERS))
    refused("a copy beyond max", pando.Refused, lambda: me.replicate("one too many"), "max")
    me.state.add("hits", 1)
    me.halt("the contract is done")
    holds("the last flow is reported", await_event(pando.DRAINED))
    refused("a death with state of its own", pando.Refused, lambda: me.die("unmerged"), "push")
    me.state.push()
    me.die(f"{len(found[True])} hold, {len(found[False])} broken {found[False]}")


def main() -> None:
    me = pando.open()
    server = Listener(("0.0.0.0", 8080), Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    me.ready()
    if me.first:
        events: list[pando.Event] = []
        news = threading.Condition()

        def listen() -> None:
            for e in me.events():
                with news:
                    events.append(e)
                    news.notify_all()

        threading.Thread(target=listen, daemon=True).start()
        state(me)
        while len(me.me().peers) < 1:
            time.sleep(0.01)  # until this instance is in rotation
        life(me, events, news)
    threading.Event().wait()


main()
