"""What the figures share: the machine and the commit, medians and spreads, rows of tables, builds, and the results' files."""
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FARHOLD = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/farhold"


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "unknown")
    flags = next((l for l in open("/proc/cpuinfo") if l.startswith("flags")), "").split()
    memory = int(open("/proc/meminfo").readline().split()[1]) // 1024 // 1024
    return {
        "processor": model, "cores": os.cpu_count(), "memory_gib": memory, "rtm": "rtm" in flags,
        "kernel": platform.release(), "load_average_before": os.getloadavg()[0],
    }


def provenance():
    git = lambda *args: subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "command": "scripts/figures " + " ".join(a for a in sys.argv[1:2]),
        "commit": git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno", "--", ".", ":!figures") else ""),
        "date": datetime.date.today().isoformat(), "machine": machine(),
    }


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": values}


def ratios(over, under):
    return spread([a / b for a, b in zip(over, under)])


def write(name, title, results, table, profile="release"):
    folder = ROOT / "figures" / name
    folder.mkdir(parents=True, exist_ok=True)
    results = provenance() | {"profile": profile} | results
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    m = results["machine"]
    head = (
        f"# {title}\n\n`{results['command']}` at {results['commit']}, {results['date']}: {m['processor']}, {m['cores']} cores,"
        f" {m['memory_gib']} GiB, Linux {m['kernel']}, RTM {'yes' if m['rtm'] else 'no'}, {profile} build.\n\n"
    )
    (folder / "results.md").write_text(head + table + "\n")
    print(head + table)


def farhold(*args):
    done = subprocess.run([str(FARHOLD), *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr}{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name, values, unit=""):
    return f"| {name} | {values['median']:,.2f}{unit} | {values['min']:,.2f} – {values['max']:,.2f} |"


# As `make release` builds the binary.
SHIPPED_FLAGS = "-C target-cpu=x86-64-v3" if platform.machine() == "x86_64" else ""


def built(package, *target, profile="release"):
    """The build of a small program of ours; `shipped` as `make release` builds what is given away."""
    flags = {"RUSTFLAGS": "-C target-cpu=x86-64-v3"} if profile == "shipped" and platform.machine() == "x86_64" else {}
    command = ["cargo", "build", "--profile", profile, "--quiet", "-p", package, *target]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | flags)
    return FARHOLD.parent.parent / profile


def example(folder, name, *args, may_abort=False):
    done = subprocess.run([folder / "examples" / name, *map(str, args)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and not may_abort:
        sys.exit(done.stderr)
    return done.stdout
