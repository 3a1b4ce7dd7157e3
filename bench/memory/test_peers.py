"""A benchmark of far memory leaves nothing behind, however it ends, and counts correctly.

It leaves no process, swap, loop device, mount, cgroup or folder."""

import inspect
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import peers as bed  # noqa: E402

# The setup of a benchmark without its work: swap on a loop device, and a cgroup with a process
# above the limit.
RUN = """
import sys, time
sys.path.insert(0, sys.argv[1])
import peers as bed
folder = bed.scratch()
bed.swap_on("loop", folder, 64 << 20)
bed.without_readahead(folder)
grow = "m = bytearray(b'x') * (24 << 20); print(flush=True); import time; time.sleep(1000)"
rest = "import time; time.sleep(1000)"
group = bed.memory_group
peer = bed.start(
    [sys.executable, "-c", grow], group(folder, "peer", 12 << 20), stdout=bed.subprocess.PIPE
)
other = bed.start([sys.executable, "-c", rest], group(folder, "other", 0))
peer.stdout.readline()
print(folder.name, flush=True)
time.sleep(1000)
"""
READAHEAD = bed.READAHEAD.read_text()
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def left(name):
    """Lists the kernel's objects that belong to a folder."""
    found = [
        line
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        if name in line
    ]
    found += [
        line
        for line in subprocess.run(
            ["losetup", "-a"], capture_output=True, text=True
        ).stdout.splitlines()
        if name in line
    ]
    for base in (
        pathlib.Path("/tmp"),
        pathlib.Path("/sys/fs/cgroup/memory"),
        pathlib.Path("/sys/fs/cgroup"),
    ):
        found += map(str, base.glob(f"{name}*"))
    return found


@unittest.skipUnless(os.geteuid() == 0, "swap and cgroups: root")
@unittest.skipUnless(os.path.exists("/dev/loop-control"), "loop devices")
class Cut(unittest.TestCase):
    def begin(self, *before):
        # Under nohup, a hang-up and the parent's death are ignored. This test must not inherit
        # that.
        heard = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731
        p = subprocess.Popen(
            [sys.executable, "-c", *before, RUN, HERE],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=heard,
        )
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        name = p.stdout.readline().strip()
        self.assertTrue(name)
        self.assertGreaterEqual(
            len(left(name)), 5, "it has a mount, a loop device, two groups, a folder"
        )
        self.assertEqual(bed.READAHEAD.read_text(), "0\n")
        return p, name

    def tearDown(self):
        self.assertEqual(bed.READAHEAD.read_text(), READAHEAD, "swap reads ahead as before")

    def gone(self, name):
        deadline = time.time() + 20
        while (found := left(name)) and time.time() < deadline:
            time.sleep(0.02)
        self.assertEqual(found, [])

    def test_a_signal(self):
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(s.name):
                p, name = self.begin()
                p.send_signal(s)
                self.assertEqual(p.wait(20), 128 + s)
                self.assertEqual(left(name), [])

    def test_the_death_of_the_parent(self):
        p, name = self.begin(PARENT)
        p.kill()
        self.gone(name)

    def test_a_later_run_removes_what_a_killed_one_has_left(self):
        p, name = self.begin()
        p.kill()
        p.wait()
        self.assertNotEqual(left(name), [])
        other, another = self.begin()
        self.assertEqual(left(name), [])
        other.terminate()
        other.wait(20)
        self.assertEqual(left(another), [])


class Counters(unittest.TestCase):
    def test_without_counters_nothing_is_counted(self):
        peer = bed.Peer.__new__(bed.Peer)
        peer.name, peer.far, peer.process = "plain", False, None
        self.assertEqual(peer.rounds(), 0)
        peer.name, peer.far, peer.process = "far", True, types.SimpleNamespace(pid=os.getpid())
        before, bed.MEM = bed.MEM, shutil.which("false")
        self.addCleanup(setattr, bed, "MEM", before)
        with self.assertRaisesRegex(SystemExit, "^far: its counters are missing"):
            peer.rounds()


class Rows(unittest.TestCase):
    def test_all_local_is_more_than_the_values(self):
        self.assertEqual(bed.local_bytes(500, 25), 125 + bed.SLACK_BYTES)
        self.assertGreaterEqual(bed.local_bytes(504 * bed.MIB, 100), 640 * bed.MIB)

    def test_a_row_of_all_that_fetches_is_refused(self):
        far = lambda *rounds: {"tcp": [{"rounds": n} for n in rounds]}  # noqa: E731
        bed.all_local(far(0, 0, 0), ["tcp"])
        with self.assertRaisesRegex(SystemExit, "not all local"):
            bed.all_local(far(0, 0.01, 0), ["tcp"])

    def test_a_peer_that_dies_under_swap_ends_the_batch_or_only_itself(self):
        def peer(name, rates):
            left = iter(rates)

            def measure(*_):
                if (rate := next(left)) is None:
                    raise bed.KilledUnderSwap(f"{name}: its Redis was killed")
                return {"rate": rate, "p50_us": 1, "p99_us": 1, "rounds": 0}

            return types.SimpleNamespace(name=name, measure=measure)

        run = lambda **kw: bed.interleave(  # noqa: E731
            [peer("far", [9, 4, 6]), peer("swap", [9, 2, None])], "get", 1, 100, 2, 1, 1,
            undisturbed=lambda f: f(), **kw,
        )
        with self.assertRaises(bed.KilledUnderSwap):
            run()
        samples = run(deaths=True)
        self.assertEqual([m["rate"] for m in samples["far"]], [4, 6])
        self.assertNotIn("swap", samples)
        self.assertEqual(bed.written(bed.ratio(samples, "far", "swap")), "its Redis was killed")
        self.assertEqual(bed.written(bed.ratio(samples, "far", "far")), "1.00 ×")

    def test_five_rounds(self):
        self.assertGreaterEqual(inspect.signature(bed.curve).parameters["rounds"].default, 5)
        runs = list(HERE.glob("*/run"))
        self.assertGreater(len(runs), 4)
        for run in runs:
            for n in re.findall(r"(?:rounds=|^ROUNDS\b[^=]*= *)(\d+)", run.read_text(), re.M):
                self.assertGreaterEqual(int(n), 5, run)


if __name__ == "__main__":
    unittest.main()
