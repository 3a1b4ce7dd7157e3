#!/usr/bin/python3
"""Serves one page and scales itself.

It measures its own load and asks Pando for a copy of itself when the load is too high. It leaves
when it is no longer needed.

Every request adds one line to the access log and 1 to a counter. Both are state of the service:
each instance writes to its own branch, and the branches are merged.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time

import pando
from scaler import Scaler
from page import Site

WINDOW_SECONDS = 0.1  # the load is measured over this window
PUSH_SECONDS = 2.0  # maximum age of this instance's state in main


class Book:
    """Writes each answered request once to the state of the service.

    Each commit contains new lines and the number of all lines so far. If Pando's answer is lost,
    that number shows whether the commit was made."""

    def __init__(self, site: Site, state: pando.State) -> None:
        self.site, self.state = site, state
        self.position = "position/" + site.instance
        self.lines: list[str] = []  # answered, and not known to be committed
        self.before = 0  # lines that came before those
        self.sure = True
        self.dirty = False  # a commit is not pushed yet
        self.pushed = 0.0

    def write(self) -> None:
        """Commits the lines of new requests, and pushes after PUSH_SECONDS."""
        self.lines += self.site.take()
        if not self.sure:
            self.forget(self.state.counter(self.position))
            self.sure = True
        if self.lines:
            self.commit(len(self.lines))
        if self.dirty and time.monotonic() - self.pushed > PUSH_SECONDS:
            self.push()

    def commit(self, n: int) -> None:
        self.sure = False
        log = "".join(line + "\n" for line in self.lines[:n])
        self.state.commit(
            patch={"access.log": log, "requests": str(n)}, put={self.position: str(self.before + n)}
        )
        self.forget(self.before + n)
        self.sure = self.dirty = True

    def forget(self, position: int) -> None:
        """Drops the lines that the state contains."""
        self.lines = self.lines[position - self.before:]
        self.before = position

    def push(self) -> None:
        self.state.push()
        self.dirty, self.pushed = False, time.monotonic()

    def close(self) -> None:
        """Writes all remaining lines."""
        self.write()
        self.state.delete(self.position)
        self.push()


def number(name: str, otherwise: float) -> float:
    """Reads a number from the environment."""
    text = os.environ.get(name, "")
    try:
        n = float(text) if text else otherwise
    except ValueError:
        n = 0
    if n <= 0:
        raise SystemExit(f"website: {name}={text!r}: want a number above 0")
    return n


def main() -> None:
    high, low = number("WEBSITE_HIGH", 150), number("WEBSITE_LOW", 50)
    if 2 * low > high:
        raise SystemExit(
            f"website: WEBSITE_LOW={low:g} must be at most half of WEBSITE_HIGH={high:g}, "
            "or one instance leaves and the next asks for it again"
        )
    me = pando.open()
    site = Site(me.instance)
    site.spread.follow(me)
    site.start()
    news: queue.SimpleQueue[str] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: news.put("told to stop"))
    threading.Thread(target=listen, args=(me, news), daemon=True).start()
    me.ready()
    try:
        live(me, site, Book(site, me.state), Scaler(me, site, high, low), news)
    except pando.PandoError as e:
        sys.exit(f"website: {e}")


def listen(me: pando.Self, news: queue.SimpleQueue[str]) -> None:
    """Passes the events of this instance to news."""
    for e in me.events():
        news.put(e.kind)


def live(
    me: pando.Self, site: Site, book: Book, scaler: Scaler, news: queue.SimpleQueue[str]
) -> None:
    """Checks the load and writes the lines of requests until this instance has to leave."""
    while True:
        try:
            kind = news.get(timeout=WINDOW_SECONDS)
        except queue.Empty:
            kind = "tick"
        if kind == "told to stop":  # the instance is out of rotation and no flow is open
            book.close()
            return
        if kind == pando.HALTED:  # an operator or a rollout took the instance out of rotation
            site.let_go()
        if kind == pando.DRAINED:
            book.close()
            me.die("drained, and its state is pushed")
            return
        try:
            book.write()
            if not site.leaving and scaler.look():
                site.let_go()
        except pando.PandoError as e:
            # The agent is away; the lines wait for the next tick.
            print("website:", e, file=sys.stderr, flush=True)


main()
