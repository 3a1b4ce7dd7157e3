"""A wire in its own network namespace: a generator, a group of units and a receiver.

It also starts a Redis for the peer that keeps its states there. The bed removes everything at its
end."""

import collections
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
UNIT = ROOT / "target/release/pando-unit"
GROUP = "real"
STAMP_BYTES = 24
Played = collections.namedtuple("Played", "sent came group")


def sh(*words, **kw):
    return subprocess.run(
        [str(w) for w in words], check=True, stdout=subprocess.PIPE, text=True, **kw
    ).stdout


def cut(source, target, begin, end):
    """Copies the packets of a capture between two times, in seconds from its begin.

    The capture is little-endian with nanoseconds. Returns the bits per second that
    `pando fn replay --stamp` will send of the copy."""
    data, at, first, bits, out = source.read_bytes(), 24, None, 0, bytearray()
    out += data[:24]
    while at < len(data):
        s, ns, length, _ = struct.unpack_from("<IIII", data, at)
        now = s + ns * 1e-9
        first = now if first is None else first
        if begin <= now - first < end:
            out += data[at : at + 16 + length]
            bits += 8 * (length + STAMP_BYTES)
        at += 16 + length
    target.write_bytes(out)
    return bits / (end - begin)


class Bed:
    def __enter__(self):
        if os.geteuid() != 0:
            sys.exit("needs root: for network namespaces and for steering in the kernel")
        if not shutil.which("redis-server"):
            sys.exit("redis-server is missing: apt install redis-server")
        # Without it, nothing would be removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pando-real-"))
        self.space = f"pando-real-{os.getpid()}"
        self.redis, self.socket = None, self.folder / "redis.sock"
        os.chmod(self.folder, 0o755)
        sh("ip", "netns", "add", self.space)
        try:
            self.wire()
            sh("go", "build", "-o", self.folder / "pando", "./cmd/pando", cwd=ROOT)
            (self.folder / "pando-unit").symlink_to(UNIT)
            # From here on, all children run before other work of the machine, and in turn among
            # themselves.
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            self.redis = subprocess.Popen(
                [
                    "redis-server",
                    "--port",
                    "0",
                    "--unixsocket",
                    self.socket,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--dir",
                    self.folder,
                ],
                stdout=subprocess.DEVNULL,
            )
            self.await_(self.socket.exists, "redis-server makes its socket")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(
            self.words(
                "fn",
                "rm",
                GROUP,
                "--run-dir",
                self.folder / "run",
                "--data-dir",
                self.folder / "data",
            ),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        if self.redis:
            self.redis.terminate()
            self.redis.wait()
        subprocess.run(["ip", "netns", "del", self.space])
        shutil.rmtree(self.folder)

    def words(self, *words, program="pando"):
        return [
            "ip",
            "netns",
            "exec",
            self.space,
            str(self.folder / program),
            *(str(w) for w in words),
        ]

    def wire(self):
        inside = ["ip", "-n", self.space]
        sh(*inside, "link", "set", "lo", "up")
        sh(
            "ip",
            "netns",
            "exec",
            self.space,
            "sysctl",
            "-qw",
            "net.ipv6.conf.default.disable_ipv6=1",
        )
        for end in ("inner", "outer"):
            # The generator's stamp and steering's header make packets longer.
            sh(
                *inside,
                "link",
                "add",
                end,
                "mtu",
                "9000",
                "type",
                "veth",
                "peer",
                "name",
                f"{end}1",
                "mtu",
                "9000",
            )
            for device in (end, f"{end}1"):
                sh(*inside, "link", "set", device, "up")

    def await_(self, what, words, seconds=30):
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {seconds} s until {words}")
            time.sleep(0.02)

    def capture(self, flows, seed):
        """Returns the steady part of a generated capture, without ramp and tail, and its rate."""
        whole, path = self.folder / "whole.pcap", self.folder / f"{flows}-{seed}.pcap"
        sh(
            UNIT,
            "generate",
            whole,
            "--flows",
            flows,
            "--seconds",
            "6",
            "--burst",
            "1",
            "--seed",
            seed,
        )
        rate = cut(whole, path, 2, 6)
        whole.unlink()
        return path, rate

    def play(self, capture, function, options):
        """Runs one capture; returns the reports of the generator, the receiver and the group."""
        places = ["--run-dir", self.folder / "run", "--data-dir", self.folder / "data"]
        module = ROOT / f"function/functions/{function}/{function}.wasm"
        sh("redis-cli", "-s", self.socket, "flushall")
        sh(
            *self.words(
                "fn",
                "run",
                module,
                "--iface",
                "inner1",
                "--out",
                "outer1",
                "--name",
                GROUP,
                "--units",
                4,
                "--detach",
                *options,
                *places,
            )
        )
        receiver = subprocess.Popen(
            self.words(
                "receive",
                "--iface",
                "outer",
                "--interval-ms",
                "250",
                "-o",
                "json",
                program="pando-unit",
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            receiver.stdout.readline()  # the receiver is ready
            sent = json.loads(
                sh(
                    *self.words(
                        "replay",
                        capture,
                        "--iface",
                        "inner",
                        "--stamp",
                        "-o",
                        "json",
                        program="pando-unit",
                    )
                ).splitlines()[-1]
            )
            quiet = 0
            while quiet < 2:  # lets waiting packets come out
                quiet = quiet + 1 if json.loads(receiver.stdout.readline())["packets"] == 0 else 0
            listed = json.loads(sh(*self.words("fn", "ls", "-o", "json", *places)))
        finally:
            receiver.send_signal(signal.SIGINT)
            came = [json.loads(line) for line in receiver.communicate()[0].splitlines()][-1]
            sh(*self.words("fn", "rm", GROUP, *places))
            shutil.rmtree(self.folder / "data", ignore_errors=True)
        group = next(u for u in listed if u["name"] == GROUP)
        return Played(sent, came, group)
