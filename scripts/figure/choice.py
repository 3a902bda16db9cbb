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
    write("30-choice", "Choices of access paths", {"results": results, "lines": lines}, [*goals(results), "", "```text", *lines, "```"])


def goals(results):
    """What is wanted of the choices on held-out configurations."""
    lines = ["| choices of the model | time over the best, in sum | in the worst tenth | the fastest is chosen | F1, path by path | least R² of a path |",
             "|---|---|---|---|---|---|"]
    for about in dict.fromkeys(row["about"] for row in results):
        rows = {row["row"]: row for row in results if row["about"] == about and row["table"] in ("measured", "fit", "choice")}
        if "model, all paths" not in rows:
            continue
        of = rows["model, all paths"]
        f1 = [f"{name.split(',')[1].split(' against')[0].strip()} {row['f1']:.2f}" for name, row in rows.items() if name.endswith("against the rest") and "f1" in row]
        f1 = f1 or [f"offload {row['f1']:.2f}" for name, row in rows.items() if name == "model, direct or offload" and "f1" in row]
        lines.append(f"| {about} | {of['sum']:.3f} | {of['decile']:.2f} | {of['accuracy']:.2f} | {', '.join(f1)} |"
                     f" {min(row['r2'] for row in rows.values() if 'r2' in row):.2f} |")
    return [*lines, "| wanted | at most 1.01 | at most 1.10 | | at least 0.91 | at least 0.95 |"]
