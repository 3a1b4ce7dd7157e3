"""Shared by the benchmarks of far memory: a Redis per peer in a cgroup of one size, swap, rounds.

A run leaves nothing behind. Its objects are named after its folder /tmp/pando-memory-*, so `sweep`
finds all of them by name. `sweep` runs at the end, on SIGTERM, SIGINT and SIGHUP, and when the
parent dies. After a SIGKILL, the next run calls it.
"""

import atexit
import csv
import ctypes
import errno
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from steal import undisturbed  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MEM = ROOT / "bin" / "pando-mem"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
EXAMPLES = TARGET / "pager" / "examples"
LOAD = EXAMPLES / "load"
MIB = 1 << 20
# The cgroup also holds the program's files and socket buffers, which the budget does not include.
SLACK_BYTES = 2 * MIB
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
GROUPS = pathlib.Path("/sys/fs/cgroup/memory")  # version 1
if not GROUPS.is_dir():
    GROUPS = pathlib.Path("/sys/fs/cgroup")
ZRAM = pathlib.Path("/sys/block/zram0")
# Swap reads 2^this pages at a fault, for every user of swap on this machine.
READAHEAD = pathlib.Path("/proc/sys/vm/page-cluster")
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
prctl = ctypes.CDLL(None).prctl

scratches = {}  # folder: its lock, held as long as this run lives


def sh(*words, **kw):
    return subprocess.run([str(w) for w in words], check=True, **kw)


def said(*words):
    return sh(*words, capture_output=True, text=True).stdout.strip()


def build():
    if not shutil.which("cargo"):
        raise SystemExit("no cargo: far memory is written in Rust (https://rustup.rs, Rust 1.95 or "
            "newer)")
    sh(ROOT / "deploy" / "build-mem", stdout=subprocess.DEVNULL)
    sh("cargo", "build", "--quiet", "--profile", "pager", "--locked", "-p", "pando-memory-launch",
       *[w for e in ("load", "pagein", "touch", "wire") for w in ("--example", e)], cwd=ROOT)


def scratch():
    """Makes a folder, which owns everything that is made with it."""
    d = pathlib.Path(tempfile.mkdtemp(prefix="pando-memory-"))
    scratches[d] = open(d / "lock", "w")
    fcntl.flock(scratches[d], fcntl.LOCK_EX)
    print(os.getpid(), file=scratches[d], flush=True)
    return d


def clean():
    """Removes everything that this run has made. It blocks the signals that would interrupt it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    while scratches:
        folder, lock = scratches.popitem()
        sweep(folder)
        lock.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def sweep(folder):
    """Removes everything that was made with a folder, in the only order that works.

    Processes come first. swapoff brings every page back into the cgroup that it belongs to; in a
    full cgroup the kernel kills processes and gives up. Then come swap, device, file system and
    folder.
    """
    for step in (end_processes, end_swap, end_folder):
        try:
            step(folder)
        # A failed step must not stop the others.
        except (OSError, subprocess.CalledProcessError) as e:
            print(f"clean up {folder}: {e}", file=sys.stderr)


def end_processes(folder):
    groups = sorted(GROUPS.glob(f"{folder.name}-*"))
    deadline = time.time() + 60
    for procs in [g / "cgroup.procs" for g in groups]:
        while pids := procs.read_text().split():
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            while True:  # our children stay in the group until they are reaped
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        break
                except ChildProcessError:
                    break
            if time.time() > deadline:
                raise OSError(f"{procs}: processes {' '.join(pids)} do not end")
            time.sleep(0.01)
    for g in groups:
        while True:
            try:
                g.rmdir()
                break
            except OSError:  # the group may be busy just after its last process
                if time.time() > deadline:
                    raise
                time.sleep(0.01)


def swaps():
    return [line.split()[0] for line in pathlib.Path("/proc/swaps").read_text().splitlines()[1:]]


def end_swap(folder):
    if (folder / "readahead").exists():
        READAHEAD.write_text((folder / "readahead").read_text())
    if (folder / "zram").exists():
        if "/dev/zram0" in swaps():
            sh("swapoff", "/dev/zram0")
        (ZRAM / "reset").write_text("1")
    mount = folder / "swap"
    if not mount.is_mount():
        return
    for device in said("losetup", "-n", "-O", "NAME", "-j", mount / "file").split():
        if device in swaps():
            sh("swapoff", device)
        sh("losetup", "-d", device)
    sh("umount", mount)


def end_folder(folder):
    if (folder / "swap").is_mount():
        raise OSError("its swap is still there")
    shutil.rmtree(folder, ignore_errors=True)


def sweep_the_dead():
    """Removes the leftovers of killed runs, which no longer hold their locks."""
    for lock in pathlib.Path(tempfile.gettempdir()).glob("pando-memory-*/lock"):
        with open(lock) as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if not f.read():  # the run is just about to take its lock
                continue
            print(f"removing what a killed run has left: {lock.parent}", file=sys.stderr)
            sweep(lock.parent)


def begin():
    """Makes the run clean up at its end, for any reason except SIGKILL."""
    atexit.register(clean)
    for s in ENDING:
        if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN:  # nohup
            signal.signal(s, lambda number, _: sys.exit(128 + number))
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and os.getsid(0) != os.getpid():
        prctl(DIE_WITH_PARENT, signal.SIGTERM)
    sweep_the_dead()


begin()


def swap_on(kind, folder, size_bytes):
    """Starts swap on zram, or on a loop device over tmpfs; returns False if that is impossible."""
    if kind == "zram":
        if not ZRAM.exists() or int((ZRAM / "disksize").read_text()) != 0:
            return False
        (folder / "zram").touch()
        (ZRAM / "disksize").write_text(str(size_bytes))
        device = "/dev/zram0"
    else:
        mount = folder / "swap"
        mount.mkdir()
        # Two measures prevent a deadlock of the kernel, which would need memory to free memory. The
        # file system does not swap its own pages (an option since Linux 6.4). It gets all of them
        # before the first page is swapped out.
        size = f"size={size_bytes + 16 * MIB}"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"{size},noswap", "tmpfs", mount],
            capture_output=True).returncode:
            sh("mount", "-t", "tmpfs", "-o", size, "tmpfs", mount)
        sh("fallocate", "-l", size_bytes, mount / "file")
        device = said("losetup", "--find", "--show", mount / "file")
    sh("mkswap", device, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sh("swapon", device)
    return True


def without_readahead(folder):
    """Makes swap read only the faulting page, like far memory without a prefetcher.

    `sweep` of the folder undoes it."""
    note = folder / "readahead.new"
    note.write_text(READAHEAD.read_text())
    note.rename(folder / "readahead")
    READAHEAD.write_text("0")


def memory_group(folder, name, limit_bytes):
    """Makes a memory cgroup; returns the file that takes pids.

    A cgroup without a limit only marks the processes of the folder."""
    group = GROUPS / f"{folder.name}-{name}"
    group.mkdir()
    if limit_bytes:
        confine(group, limit_bytes)
    return group / "cgroup.procs"


def confine(group, limit_bytes):
    """Limits a memory cgroup.

    Pages beyond the limit go to swap; the kernel may need several requests."""
    v1 = GROUPS.name == "memory"
    names = ("memory.max", "memory.current")
    if v1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, now = (group / n for n in names)
    if not v1:
        # A lower memory.max would kill processes instead of waiting.
        (group / "memory.high").write_text(str(limit_bytes))
    deadline = time.time() + 60
    while True:
        try:
            if v1 or int(now.read_text()) <= limit_bytes:
                return limit.write_text(str(limit_bytes))
        except OSError as e:
            if e.errno != errno.EBUSY:
                raise
        if time.time() > deadline:
            raise SystemExit(f"{group.name}: {int(now.read_text()) >> 20} MiB do not fit into "
                f"{limit_bytes >> 20} MiB and swap")
        time.sleep(0.02)


def start(words, group=None, **kw):
    """Starts a process that dies with this one and gets no signals from the terminal."""
    def join():
        prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if group:
            group.write_text(str(os.getpid()))
    return subprocess.Popen([str(w) for w in words], preexec_fn=join, start_new_session=True,
        stdin=subprocess.DEVNULL, **kw)


def serve(size, listen="127.0.0.1:0", group=None, delay_us=0):
    """Starts a memory host; returns the process and its address."""
    p = start([MEM, "serve", "--size", size, "--listen", listen, "--delay-us", delay_us], group,
        stdout=subprocess.PIPE, text=True)
    return p, p.stdout.readline().split()[-1]


class KilledUnderSwap(SystemExit):
    """The kernel found no memory in the cgroup of a peer and killed it.

    That may happen when the device is slower than the program."""


def again(batch):
    """Repeats a batch after KilledUnderSwap, at most twice, and prints a message."""
    def attempts(*args, **kw):
        for left in (2, 1, 0):
            try:
                return batch(*args, **kw)
            except KilledUnderSwap as e:
                clean()
                if left == 0:
                    raise
                print(f"once more: {str(e).splitlines()[0]}", flush=True)
    return attempts


class Peer:
    """One Redis: plain, under swap, or on far memory."""

    def __init__(self, name, folder, local_bytes, run=None, limit=True, hosts_bytes=0, delay_us=0):
        self.name, self.socket, self.far = name, folder / f"{name}.sock", bool(run)
        redis = ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--dir",
            folder, "--maxclients", "100"]
        if run:
            listen = f"unix:{folder / name}.host" if "shm" in name else "127.0.0.1:0"
            _, address = serve(hosts_bytes, listen, memory_group(folder, f"{name}-host", 0),
                delay_us)
            redis = [MEM, "run", "--local", local_bytes - SLACK_BYTES, "--from", address, *run,
                "--", *redis]
        self.log = folder / f"{name}.log"
        # Under swap, the limit is set after the fill, because a program that grows faster than swap
        # is killed.
        self.limit = local_bytes if limit and not self.far else 0
        group = memory_group(folder, name, local_bytes if limit and self.far else 0)
        self.group = group.parent
        with open(self.log, "w") as log:
            self.process = start(redis, group, stdout=log, stderr=log)
        deadline = time.time() + 60
        while not self.listens():
            if time.time() > deadline or self.process.poll() is not None:
                raise self.ended()
            time.sleep(0.02)

    def listens(self):
        """Tests a connection, because Redis makes its socket a moment before it accepts."""
        with socket.socket(socket.AF_UNIX) as s:
            return s.connect_ex(str(self.socket)) == 0

    def ended(self):
        """Returns the exception for a Redis that does not answer."""
        code = self.process.poll()
        if code is None:
            why = "does not answer"
        elif code < 0:
            why = "was killed: dmesg shows whether swap was too slow for its cgroup"
        else:
            why = f"ended with {code}"
        kind = KilledUnderSwap if code == -signal.SIGKILL and not self.far else SystemExit
        return kind("\n".join([f"{self.name}: its Redis {why}",
            *self.log.read_text().splitlines()[-3:]]))

    def ask(self, *words):
        try:
            return said(LOAD, words[0], self.socket, *words[1:])
        except subprocess.CalledProcessError:
            raise self.ended() from None

    def fill(self, what, count, percent):
        self.ask(f"fill-{what}", count, percent, 0, 0, 0)
        if self.limit:
            confine(self.group, self.limit)

    def measure(self, what, count, percent, seconds, clients, seed):
        before = self.rounds()
        m = json.loads(self.ask(what, count, percent, seconds, clients, seed))
        if m["wrong"]:
            raise SystemExit(f"{self.name}: {m['wrong']} wrong answers")
        m["rounds"] = (self.rounds() - before) / max(1, m["requests"])
        return m

    def rounds(self):
        if not self.far:
            return 0
        top = subprocess.run([str(MEM), "top", "--once", "-o", "json", "--pid",
            str(self.process.pid)], capture_output=True, text=True)
        if top.returncode != 0 or not top.stdout:
            raise SystemExit(f"{self.name}: its counters are missing, so its rounds are unknown: "
                f"{top.stderr.strip()}")
        return json.loads(top.stdout)["rounds"]


# Size relative to the values: the allocator's rounding, the tables and the evictor's margin. At
# this size, no page leaves.
ALL_LOCAL = 1.5


def local_bytes(whole_bytes, share):
    """Returns the budget for a share of the values in per cent; 100 is room for the program."""
    return int(whole_bytes * (ALL_LOCAL if share == 100 else share / 100)) + SLACK_BYTES


def all_local(samples, names):
    """Fails if far peers fetched pages during the measurement of a row labelled 100 %."""
    for name in names:
        if any(m["rounds"] > 0 for m in samples[name]):
            raise SystemExit(f"{name}: the row of 100 % is not all local: "
                f"{median(samples[name], 'rounds'):.3f} rounds a request; raise ALL_LOCAL")


def curve(what, count, whole_bytes, far_bytes, shares, peers, percent=100, rounds=5, seconds=0.5,
    clients=1):
    """Measures requests per second of each peer and of all-local, by the local share of the values.

    peers: by name, the arguments of `pando-mem run` and the added round trip in microseconds; None
    for a kind of swap. The samples have the share as x.
    """
    rows, shown = [], []
    for share in shares:
        folder, local = scratch(), local_bytes(whole_bytes, share)
        for kind in peers:
            if peers[kind] is None and not swap_on(kind, folder, 1 << 30):
                raise SystemExit(f"no {kind} here, or it is in use")
        all_peers = [Peer("local", folder, 0, limit=False)]
        for name, given in peers.items():
            all_peers.append(Peer(name, folder, local) if given is None
                else Peer(name, folder, local, given[0], hosts_bytes=far_bytes, delay_us=given[1]))
        for p in all_peers:
            p.fill(what, count, percent)
        print(f"{share} % local, {clients} client(s)", flush=True)
        samples = interleave(all_peers, what, count, percent, rounds, seconds, clients,
            deaths=True)
        clean()
        if share == 100:
            all_local(samples, [name for name, given in peers.items() if given is not None])
        rows += [(i, f"{what} {name}", m["rate"], share)
            for name, s in samples.items() for i, m in enumerate(s)]
        shown.append((share, {name: 100 * ratio(samples, name, "local") for name in peers}))
    return rows, shown


def shares(shown, name):
    """Formats the points of one curve for a cell."""
    return ", ".join(f"{share} % local: {written(by_name[name], '{:.0f} %')}"
        for share, by_name in shown)


def written(value, form="{:.2f} ×"):
    """Formats a ratio for a cell."""
    return "its Redis was killed" if math.isnan(value) else form.format(value)


def interleave(peers, what, count, percent, rounds, seconds, clients, undisturbed=undisturbed,
    deaths=False):
    """Returns samples by peer name; the order of the peers rotates with every round.

    deaths: a Redis that dies under swap loses its samples, and the others go on. Otherwise its
    death is an exception.
    """
    samples = {p.name: [] for p in peers}
    for r in range(rounds + 1):
        for k in range(len(peers)):
            p = peers[(k + r) % len(peers)]
            if p.name not in samples:
                continue
            try:
                m = undisturbed(lambda: p.measure(what, count, percent, seconds, clients, r + 1))
            except KilledUnderSwap as e:
                if not deaths:
                    raise
                del samples[p.name]
                print(f"  {str(e).splitlines()[0]}", flush=True)
                continue
            if r > 0:  # the first round warms up
                samples[p.name].append(m)
    for name, s in samples.items():
        print(f"  {name:16} {median(s, 'rate'):9.0f} req/s   p50 {median(s, 'p50_us'):8.0f} us   "
            f"p99 {median(s, 'p99_us'):8.0f} us   rounds {median(s, 'rounds'):.2f}", flush=True)
    return samples


def median(samples, key):
    return statistics.median(s[key] for s in samples)


def ratio(samples, a, b, key="rate"):
    """Returns the median over the rounds of the ratio of two peers in the same round.

    It is not a number if one of them died under swap."""
    if a not in samples or b not in samples:
        return math.nan
    return statistics.median(x[key] / y[key] for x, y in zip(samples[a], samples[b]))


def write_csv(folder, rows):
    with open(folder / "results.csv", "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["round", "series", "value", "x"][: len(rows[0])])
        w.writerows(rows)


def publish(name, title, unit, rows, log=False, xlabel=None):
    sh(ROOT / "bench" / "publish", name, "--title", title, "--unit", unit,
        *(["--log"] if log else []),
       *(["--x", xlabel] if xlabel else []), *[w for r in rows for w in ("--row", r)])


def verdict(value, goal, above=True):
    return "held" if (value >= goal if above else value <= goal) else "missed"
