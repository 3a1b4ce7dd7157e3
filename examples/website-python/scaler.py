"""Decides when this instance asks for a copy of itself and when it leaves."""

from __future__ import annotations

import sys
import time

import pando
from page import Site

CALM_SECONDS = 2.0  # duration of low load before an instance leaves
# Time for a copy to relieve this instance before it asks for the next.
SETTLE_SECONDS = 0.25


class Scaler:
    def __init__(self, me: pando.Self, site: Site, high: float, low: float) -> None:
        self.me, self.site, self.high, self.low = me, site, high, low
        self.at = self.low_since = time.monotonic()
        self.served = 0
        self.asked = 0.0

    def look(self) -> bool:
        """Measures the load since the last call and asks for a copy if the load is too high.

        Returns True if this instance is out of rotation and has to leave."""
        now, served = time.monotonic(), self.site.served
        passed = now - self.at
        if passed < 0.05:
            return False  # this process was delayed: two ticks came at once
        rate = (served - self.served) / passed
        self.at, self.served = now, served
        if rate > self.high:
            self.low_since = now
            if now - self.asked > SETTLE_SECONDS:
                self.asked = now
                self.replicate(rate, passed)
        elif rate >= self.low:
            self.low_since = now
        elif now - self.low_since > CALM_SECONDS:
            self.low_since = now
            return self.youngest() and self.halt(rate)
        return False

    def replicate(self, rate: float, passed: float) -> None:
        try:
            self.me.replicate(
                f"{rate:.0f} requests/s > {self.high:g}",
                requests_per_second=rate,
                high=self.high,
                window_seconds=passed,
            )
        except (pando.Refused, pando.Pending):
            pass  # a refusal is an answer, not a failure
        except pando.Away as e:
            print("replicate:", e, file=sys.stderr, flush=True)

    def youngest(self) -> bool:
        """Returns whether this instance is the first to leave."""
        v = self.me.me()
        youngest = max(v.peers, key=lambda p: p.born)
        return v.in_rotation > v.scale.min and youngest.id == self.me.instance

    def halt(self, rate: float) -> bool:
        """Asks to get no new flows."""
        try:
            self.me.halt(
                f"{rate:.0f} requests/s < {self.low:g} for {CALM_SECONDS:g} s",
                requests_per_second=rate,
                low=self.low,
            )
        except (pando.Refused, pando.Pending):
            return False
        return True
