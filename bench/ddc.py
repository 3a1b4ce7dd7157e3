"""What the benchmarks of far memory share: a Redis per peer in a cgroup of one size, swap devices, interleaved rounds.

Nothing is left behind: processes, cgroups, swap and mounts end with the run, whatever happens.
"""

import atexit
import csv
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEM = ROOT / "bin" / "pando-mem"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "farmem" / "target"))
LOAD = TARGET / "release" / "examples" / "load"
MIB = 1 << 20
# The cgroup also holds the program's files and socket buffers, which the budget does not count.
SLACK_BYTES = 2 * MIB

cleanups = []


@atexit.register
def clean():
    while cleanups:
        try:
            cleanups.pop()()
        except Exception as e:  # one that fails must not keep the others from running
            print("clean up:", e, file=sys.stderr)


def sh(*words, **kw):
    return subprocess.run([str(w) for w in words], check=True, **kw)


def build():
    sh(ROOT / "deploy" / "build-mem", stdout=subprocess.DEVNULL)
    sh("cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", ROOT / "farmem" / "Cargo.toml", "--target-dir", TARGET,
       "-p", "pando-farmem-launch", "--example", "load", "--example", "touch")


def scratch():
    d = pathlib.Path(tempfile.mkdtemp(prefix="pando-ddc-"))
    cleanups.append(lambda: shutil.rmtree(d, ignore_errors=True))
    return d


def swap_on(kind, folder, size_bytes):
    """Swap on zram, or on a loop device over tmpfs. Returns whether the kernel has it."""
    if kind == "zram":
        disk = pathlib.Path("/sys/block/zram0")
        if not disk.exists() or int((disk / "disksize").read_text()) != 0:
            return False
        (disk / "disksize").write_text(str(size_bytes))
        cleanups.append(lambda: (disk / "reset").write_text("1"))
        device = "/dev/zram0"
    else:
        mount = folder / "swap"
        mount.mkdir()
        sh("mount", "-t", "tmpfs", "-o", f"size={size_bytes + 16 * MIB}", "tmpfs", mount)
        cleanups.append(lambda: sh("umount", mount))
        sh("truncate", "-s", size_bytes, mount / "file")
        device = sh("losetup", "--find", "--show", mount / "file", capture_output=True, text=True).stdout.strip()
        cleanups.append(lambda: sh("losetup", "-d", device))
    sh("mkswap", device, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sh("swapon", device)
    cleanups.append(lambda: sh("swapoff", device))
    return True


def memory_group(name, limit_bytes):
    """A memory cgroup (v1 or v2); returns the file that takes pids."""
    base = pathlib.Path("/sys/fs/cgroup/memory")
    v1 = base.is_dir()
    group = (base if v1 else pathlib.Path("/sys/fs/cgroup")) / f"pando-ddc-{os.getpid()}-{name}"
    group.mkdir()
    cleanups.append(group.rmdir)
    (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit_bytes))
    return group / "cgroup.procs"


def start(words, group=None, log=subprocess.DEVNULL):
    def join():
        if group:
            group.write_text(str(os.getpid()))
    p = subprocess.Popen([str(w) for w in words], preexec_fn=join, stdout=log, stderr=subprocess.STDOUT)

    def end():
        p.kill()
        p.wait()
        # A cgroup is busy for a moment after its last process.
        time.sleep(0.05)
    cleanups.append(end)
    return p


class Peer:
    """One Redis: plain, under swap, or on far memory."""

    def __init__(self, name, folder, local_bytes, run=None, limit=True, hosts_bytes=0, delay_us=0):
        self.name, self.socket = name, folder / f"{name}.sock"
        group = memory_group(name, local_bytes) if limit else None
        redis = ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--dir", folder, "--maxclients", "100"]
        if run:
            at = folder / f"{name}.host"
            listen = f"unix:{at}" if "shm" in name else "127.0.0.1:0"
            host = subprocess.Popen([MEM, "serve", "--size", str(hosts_bytes), "--listen", listen, "--delay-us", str(delay_us)],
                                    stdout=subprocess.PIPE, text=True)
            cleanups.append(lambda: (host.kill(), host.wait()))
            address = host.stdout.readline().split()[-1]
            redis = [MEM, "run", "--local", str(local_bytes - SLACK_BYTES), "--from", address, *run, "--", *redis]
        self.process = start(redis, group)
        deadline = time.time() + 20
        while not self.socket.exists():
            if time.time() > deadline or self.process.poll() is not None:
                raise SystemExit(f"{name}: redis does not come up")
            time.sleep(0.02)

    def fill(self, what, count, percent):
        sh(LOAD, f"fill-{what}", self.socket, count, percent, 0, 0, 0)

    def measure(self, what, count, percent, seconds, clients, seed):
        before = self.rounds()
        out = sh(LOAD, what, self.socket, count, percent, seconds, clients, seed, capture_output=True, text=True).stdout
        m = json.loads(out)
        if m["wrong"]:
            raise SystemExit(f"{self.name}: {m['wrong']} wrong answers")
        m["rounds"] = (self.rounds() - before) / max(1, m["requests"])
        return m

    def rounds(self):
        out = subprocess.run([str(MEM), "top", "--once", "-o", "json", "--pid", str(self.process.pid)], capture_output=True, text=True).stdout
        return json.loads(out)["rounds"] if out else 0


def curve(what, count, whole_bytes, far_bytes, shares, peers, percent=100, rounds=3, seconds=0.5, clients=1):
    """Requests per second of each peer, all-local included, by share of the values that is local; samples with the share as x.

    peers: by name, the arguments of `pando-mem run` and the added round trip in microseconds; a kind of swap has None.
    """
    rows, shown = [], []
    for share in shares:
        folder, local = scratch(), int(whole_bytes * share / 100) + SLACK_BYTES
        for kind in peers:
            if peers[kind] is None and not swap_on(kind, folder, 1 << 30):
                raise SystemExit(f"no {kind} here, or it is in use")
        all_peers = [Peer("local", folder, 0, limit=False)]
        for name, given in peers.items():
            all_peers.append(Peer(name, folder, local) if given is None else Peer(name, folder, local, given[0], hosts_bytes=far_bytes, delay_us=given[1]))
        for p in all_peers:
            p.fill(what, count, percent)
        print(f"{share} % local, {clients} client(s)", flush=True)
        samples = interleave(all_peers, what, count, percent, rounds, seconds, clients)
        clean()
        rows += [(i, f"{what} {name}", m["rate"], share) for name, s in samples.items() for i, m in enumerate(s)]
        shown.append((share, {name: 100 * ratio(samples, name, "local") for name in peers}))
    return rows, shown


def shares(shown, name):
    """The points of one curve, for a cell."""
    return ", ".join(f"{share} % local: {by_name[name]:.0f} %" for share, by_name in shown)


def interleave(peers, what, count, percent, rounds, seconds, clients):
    """Samples by peer name; the order turns with every round."""
    samples = {p.name: [] for p in peers}
    for r in range(rounds + 1):
        for k in range(len(peers)):
            p = peers[(k + r) % len(peers)]
            m = p.measure(what, count, percent, seconds, clients, r + 1)
            if r > 0:  # the first round warms
                samples[p.name].append(m)
    for name, s in samples.items():
        print(f"  {name:16} {median(s, 'rate'):9.0f} req/s   p50 {median(s, 'p50_us'):8.0f} us   p99 {median(s, 'p99_us'):8.0f} us   rounds {median(s, 'rounds'):.2f}", flush=True)
    return samples


def median(samples, key):
    return statistics.median(s[key] for s in samples)


def ratio(samples, a, b, key="rate"):
    """Median over the rounds of the ratio of two peers in the same round."""
    return statistics.median(x[key] / y[key] for x, y in zip(samples[a], samples[b]))


def write_csv(folder, rows):
    with open(folder / "results.csv", "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["round", "series", "value", "x"][: len(rows[0])])
        w.writerows(rows)


def publish(name, title, unit, rows, log=False, xlabel=None):
    sh(ROOT / "bench" / "publish", name, "--title", title, "--unit", unit, *(["--log"] if log else []),
       *(["--x", xlabel] if xlabel else []), *[w for r in rows for w in ("--row", r)])


def verdict(value, goal, above=True):
    return "held" if (value >= goal if above else value <= goal) else "missed"
