"""The data of benchmarks, pinned by hash.

A figure holds for its data only. `captures.sha256` lists the captures (about half of nDPI's
tests/cfgs/default/pcap at 3b1286ab). `rules.sha256` lists the rules (Emerging Threats open, 2017).
`sha256sum` prints such a list. To measure other data, commit its list with its figures.
"""

import hashlib
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def differences(folder, pins, suffixes):
    """Returns the names of files that are missing, changed or not in the list."""
    want = {}
    for line in pins.read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        want[name.lstrip("*")] = digest
    found = {p.name: p for p in folder.iterdir() if p.suffix in suffixes}
    out = [f"{name} is missing" for name in want if name not in found]
    out += [f"{name} is not in {pins.name}" for name in found if name not in want]
    for name in want.keys() & found.keys():
        if hashlib.sha256(found[name].read_bytes()).hexdigest() != want[name]:
            out.append(f"{name} has other bytes")
    return sorted(out)


def folder(variable, suffixes):
    """Returns the folder that an environment variable names, after a check of every file in it."""
    name = os.environ.get(variable)
    if not name:
        sys.exit(f"set {variable} to a folder of {' and '.join(suffixes)} files")
    pins = HERE / f"{variable.lower()}.sha256"
    wrong = differences(pathlib.Path(name), pins, suffixes)
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        sys.exit(f"{variable}={name} is not the data of {pins.name}: {', '.join(wrong[:5])}{more}")
    return pathlib.Path(name)


def captures():
    """Returns the folder of captures."""
    return folder("CAPTURES", (".pcap", ".pcapng"))


def rules():
    """Returns the folder of rules."""
    return folder("RULES", (".rules",))
