"""Measurements in which the hypervisor left the processors to this machine. On a shared one it takes half of them for seconds at a
time. function/twins/src/steal.rs and bench/function/kernel have the same rule."""

import pathlib
import sys
import time

SHARE_MAX = 0.04  # of the processors' time, what others may have had during a measurement
PAUSE, PATIENCE = 2, 300  # seconds until the next try, and of trying


def ticks():
    """Ticks of all processors so far, and those that the hypervisor gave to others (proc_stat(5): steal)."""
    spent = [int(n) for n in pathlib.Path("/proc/stat").read_text().split()[1:9]]
    return sum(spent), spent[7]


def undisturbed(measure):
    """What a measurement gives. One during which too much was stolen is forgotten and done again, with all that it compares:
    it is the same rule for every peer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        before = ticks()
        result = measure()
        every, stolen = (b - a for a, b in zip(before, ticks()))
        if stolen <= SHARE_MAX * every:
            return result
        print(f"measured again: {stolen / every:.0%} of the processors' time was stolen", file=sys.stderr, flush=True)
        if time.monotonic() > deadline:
            sys.exit(f"the hypervisor takes more than {SHARE_MAX:.0%} of the processors each time (steal in top): measure when it does not")
        time.sleep(PAUSE)
