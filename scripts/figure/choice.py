"""30-choice: how well the model chooses access paths, on measured scans of this machine and on a synthetic machine."""
import pathlib
import sys
import tempfile

from .common import recorded, write

# In the simulation a scan takes no time.
PROVIDERS = ("shm", "tcp")


def choice(args, *flags):
    results, lines = [], []

    def bench(name, about, *more):
        features = ["--features", "libfabric"] if name == "paths" else []
        done, rows = recorded(["cargo", "bench", "-q", "-p", "farhold-scan", *features, "--bench", name, "--", *more, *flags], capture_output=True)
        if done.returncode:
            sys.exit(done.stderr)
        results.extend(row | {"about": about} for row in rows or [])
        lines.extend(["", about, "", *done.stdout.strip().splitlines()])

    with tempfile.TemporaryDirectory() as folder:
        files = {provider: pathlib.Path(folder) / provider for provider in PROVIDERS}
        both = pathlib.Path(folder) / "both"
        for provider, file in files.items():
            bench("paths", f"Scans over {provider}", "choice", "--provider", provider, "--observations", file)
            bench("model", f"Choices over {provider}", "--observations", file)
        both.write_text("".join(file.read_text() for file in files.values()))
        bench("model", "One model of both", "--observations", both)
    bench("model", "The synthetic machine")
    write("30-choice", "Choices of access paths", {"results": results, "lines": lines}, ["```text", *lines, "```"])
