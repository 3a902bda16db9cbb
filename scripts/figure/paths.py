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
    write(NAME, TITLE, {"results": results, "lines": lines}, [*goals(results), "", "```text", *lines, "```"])
    subprocess.run([ROOT / "scripts/plot", "paths"], check=True)


def goals(results):
    """What is wanted, over each provider that takes time."""
    lines = ["| | over | reached | wanted |", "|---|---|---|---|"]
    for provider in ("shm", "tcp"):
        of = lambda table: [row for row in results if row["provider"] == provider and row["table"] == table]
        blocks, reads = of("overlap"), [row for row in of("relaxed") if int(row["row"]) >= 64 << 10]
        if blocks:
            best = min(blocks, key=lambda row: row["two_buffers"])
            wanted = "at most 1.10" if provider == "tcp" else ""
            lines.append(f"| two buffers over the longer of copying and scanning alone, at the best block ({int(best['row']) >> 10} KiB) | {provider} |"
                         f" {best['ratio']:.2f} | {wanted} |")
        swept = of("blocks")
        if swept:
            best = min(range(len(swept)), key=lambda at: swept[at]["two_buffers"])
            is_inside = "yes" if 0 < best < len(swept) - 1 else "no"
            lines.append(f"| the best block ({int(swept[best]['row']) >> 10} KiB) is inside the range | {provider} | {is_inside} | yes |")
        if reads:
            ratios = [row["immutable"] / row["agent"] for row in reads]
            wanted = "at least 1.3" if provider == "tcp" else ""
            lines.append(f"| rate of relaxed reads over the agent's, 64 KiB and more | {provider} | {min(ratios):.2f} – {max(ratios):.2f} | {wanted} |")
    return lines
