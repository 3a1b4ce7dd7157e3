"""Repeats measurements during which the hypervisor took processor time from this machine.

A shared hypervisor may take half of the processors for seconds. function/twins/src/steal.rs and
bench/function/kernel have the same rule."""

import pathlib
import sys
import time

SHARE_MAX = 0.04  # maximum stolen share of the processors' time during a measurement
PAUSE, PATIENCE = 2, 300  # seconds between two tries, and in total


def ticks():
    """Returns the ticks of all processors so far, and the stolen ones (proc_stat(5): steal)."""
    spent = [int(n) for n in pathlib.Path("/proc/stat").read_text().split()[1:9]]
    return sum(spent), spent[7]


def undisturbed(measure):
    """Returns the result of a measurement; repeats the measurement if too much time was stolen.

    A repeat covers all peers of a comparison, so the rule is the same for each."""
    deadline = time.monotonic() + PATIENCE
    while True:
        before = ticks()
        result = measure()
        every, stolen = (b - a for a, b in zip(before, ticks()))
        if stolen <= SHARE_MAX * every:
            return result
        print(
            f"measured again: {stolen / every:.0%} of the processors' time was stolen",
            file=sys.stderr,
            flush=True,
        )
        if time.monotonic() > deadline:
            sys.exit(
                f"the hypervisor takes more than {SHARE_MAX:.0%} of the processors each time (steal"
                " in top): measure when it does not"
            )
        time.sleep(PAUSE)
