"""Shared by SNF's benchmarks: running pando-simulate and publishing figures.

The simulator's time is virtual. The machine's load has no effect: the same captures and seeds give
the same figures. Captures come from $CAPTURES, the folder that captures.sha256 pins. The figures
use the half of the captures that was not used for tuning."""

import csv
import functools
import json
import pathlib
import subprocess

import pins

BENCH = pathlib.Path(__file__).resolve().parent.parent
SIMULATOR = BENCH.parent / "target/release/pando-simulate"


@functools.cache
def build():
    """Builds the simulator once per run."""
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "-p", "pando-simulate"],
        cwd=BENCH.parent,
        check=True,
    )


def simulate(workload, variants, seeds=5, **options):
    """Returns the manifest and the row of each variant, from one run of the simulator."""
    pins.captures()
    build()
    settings = {
        "half": "report",
        "window": 350,
        "warm": 150,
        **options,
        "workload": workload,
        "seeds": seeds,
    }
    command = (
        [str(SIMULATOR), "-o", "json"]
        + [f"--{k}={v}" for k, v in settings.items()]
        + list(variants)
    )
    out = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return out["manifest"], {r["variant"]: r for r in out["rows"]}


def manifest(m):
    """Returns the parameters that a figure has to name."""
    return (
        f"simulator: {m['captures']} captures ({m['half']} half) × {m['copies']} copies at"
        f" {m['speed']:g}× speed"
        + (f" paced at {m['pace_bps'] // 1_000_000} Mbit/s" if m["pace_bps"] else "")
        + f", {m['load_mbps'] / 1000:.1f} Gbit/s, units of {m['unit_mbps'] / 1000:g} Gbit/s, seeds"
        f" 1–{m['seeds']}, {m['window_ns'] // 1_000_000} ms of which the first {m['warm_ms']} are"
        " not counted"
    )


def write(name, samples):
    """Writes results.csv from rows of (round, series, value) or (round, series, value, x)."""
    with open(BENCH / name / "results.csv", "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        curve = len(samples[0]) == 4
        out.writerow(["round", "series", "value"] + (["x"] if curve else []))
        out.writerows(samples)


def publish(name, title, unit, rows, *extra):
    """Draws the plot and writes the rows: (measure, goal, paper, measured, verdict)."""
    args = [a for row in rows for a in ("--row", " | ".join(row))]
    subprocess.run(
        [BENCH / "publish", name, "--title", title, "--unit", unit, *extra, *args], check=True
    )
    for row in rows:
        print(" | ".join(row))


def us(value):
    """Formats microseconds for people."""
    for size, unit in ((1e6, "s"), (1e3, "ms"), (1, "µs")):
        if value >= size:
            break
    return f"{value / size:.3g} {unit}"


def times(ratio):
    """Formats a ratio for people, with three digits."""
    return f"{float(f'{ratio:.3g}'):,g} ×"


def four(f):
    """Formats the percentiles and the provisioning of one row."""
    return (
        " / ".join(us(f[k]) for k in ("p50_us", "p75_us", "p90_us", "p99_us"))
        + f" @{f['provisioning']:.2f}"
    )


def verdict(held):
    return "held" if held else "missed"
