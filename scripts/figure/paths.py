"""Ways to read the columns of another node, over each provider: the experiments of the GRU papers."""
import subprocess
import sys

from .common import ROOT, recorded, write

NAME, TITLE = "27-access-paths", "Scans of another node's columns"
# A simulated copy is an event a cache line, so its columns are short; the bench sees to that.
PROVIDERS = ("shm", "tcp", "sim")


def paths(args, *flags):
    results, lines = [], []
    for provider in PROVIDERS:
        done, rows = recorded(["cargo", "bench", "-q", "-p", "farhold-scan", "--features", "libfabric", "--bench", "paths", "--",
                               "--provider", provider, *flags], capture_output=True)
        if done.returncode:
            sys.exit(done.stderr)
        results += [row | {"provider": provider} for row in rows or []]
        lines += ["", f"Over {provider}", "", *done.stdout.strip().splitlines()]
    write(NAME, TITLE, {"results": results, "lines": lines}, ["```text", *lines, "```"])
    subprocess.run([ROOT / "scripts/plot", "paths"], check=True)
