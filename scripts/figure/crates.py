"""The crates' own benches: the names of the figure, the package and the bench, and the title."""
import os
import subprocess
import sys

from .common import ROOT, recorded, write

CRATE_BENCHES = {
    "dispatch": ("02-fabric", "farhold-fabric", "dispatch", "Memory instructions over shm"),
    "libfabric": ("13-libfabric", "farhold-fabric", "libfabric", "Far memory over libfabric"),
    "objects": ("03-objects", "farhold-store", "objects", "Objects"),
    "kv": ("09-kv", "farhold-bench", "kv", "A key-value store of far rows"),
    "sync": ("10-counters-and-latches", "farhold-bench", "sync", "Counters and latches by whoever executes"),
    "ordered": ("03-ordered-index", "farhold-btree", "ordered", "The ordered index and its rivals"),
    "scans": ("24-scans", "farhold-scan", "kernels", "Comparisons on packed codes"),
    "transactions": ("04-transactions", "farhold-txn", "txn", "Transactions of a few rows"),
}
LIBFABRIC = ("libfabric", "kv")  # they also measure libfabric
PLOTTED = ("objects", "kv", "sync")
# libfabric reads its environment once a process: a run for each.
ENVIRONMENTS = {"libfabric": ["", "FI_OFI_RXM_ENABLE_PASSTHRU=0"]}


def crate_bench(figure, _, *flags):
    name, package, bench, title = CRATE_BENCHES[figure]
    features = ["--features", "libfabric"] if figure in LIBFABRIC else []
    results, lines = [], []
    for environment in ENVIRONMENTS.get(figure, [""]):
        done, rows = recorded(["cargo", "bench", "-q", "-p", package, *features, "--bench", bench, "--", *flags],
                              capture_output=True, env=os.environ | dict([environment.split("=")] if environment else []))
        if done.returncode:
            sys.exit(done.stderr)
        if environment:
            lines += ["", f"With {environment}", ""]
        # Not every bench writes rows: its lines are the record.
        results += [row | ({"environment": environment} if environment else {}) for row in rows or []]
        lines += done.stdout.strip().splitlines()
    write(name, title, {"results": results or None, "lines": lines}, ["```text", *lines, "```"])
    if figure in PLOTTED:
        subprocess.run([ROOT / "scripts/plot", figure], check=True)
