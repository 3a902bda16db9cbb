"""The crates' own benches: 02-fabric, 03-objects, 03-ordered-index, 04-transactions, 10-counters-and-latches, 13-libfabric."""
import json
import os
import subprocess
import sys
import tempfile

from .common import ROOT, write

# Benches of crates that also measure libfabric.
LIBFABRIC = {"libfabric": ["--features", "libfabric"], "kv": ["--features", "libfabric"]}


# libfabric reads its environment once a process: a run for each.
ENVIRONMENTS = {"libfabric": ["", "FI_OFI_RXM_ENABLE_PASSTHRU=0"]}


CRATE_BENCHES = {
    "dispatch": ("02", "fabric", "farhold-fabric", "dispatch", "Memory instructions over shm"),
    "libfabric": ("13", "libfabric", "farhold-fabric", "libfabric", "Far memory over libfabric"),
    "objects": ("03", "objects", "farhold-store", "objects", "Objects"),
    "kv": ("09", "kv", "farhold-bench", "kv", "A key-value store of far rows"),
    "sync": ("10", "counters-and-latches", "farhold-bench", "sync", "Counters and latches by whoever executes"),
    "ordered": ("03", "ordered-index", "farhold-btree", "ordered", "The ordered index and its rivals"),
    "transactions": ("04", "transactions", "farhold-txn", "txn", "Transactions of a few rows"),
}


def crate_bench(number, name, package, bench, title, *, plot=None, flags=()):
    results, lines = [], []
    for environment in ENVIRONMENTS.get(bench, [""]):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            features = LIBFABRIC.get(bench, [])
            done = subprocess.run(["cargo", "bench", "-q", "-p", package, *features, "--bench", bench, "--", "--json", out.name, *flags],
                                  cwd=ROOT, capture_output=True, text=True, env=os.environ | dict([environment.split("=")] if environment else []))
            if done.returncode:
                sys.exit(done.stderr)
            rows = json.loads(out.read() or "null")  # not every bench writes one: its lines are the record
        if environment:
            lines += ["", f"With {environment}", ""]
        results += [row | ({"environment": environment} if environment else {}) for row in rows or []]
        lines += done.stdout.strip().splitlines()
    write(f"{number}-{name}", title, {"results": results or None, "lines": lines}, "```text\n" + "\n".join(lines) + "\n```")
    if plot:
        subprocess.run([ROOT / "scripts/plot", plot], check=True)
