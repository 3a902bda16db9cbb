"""What the figures share: runs in turns, medians and ratios, tables, the files of a result, and programs with what they print."""
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FARHOLD = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/farhold"
# As `make release` builds the binary.
SHIPPED_FLAGS = "-C target-cpu=x86-64-v3" if platform.machine() == "x86_64" else ""
# Of programs that measure copies of rows, over shm as over libfabric.
COPIES_FEATURES = ["--features", "farhold-fabric/libfabric,farhold-txn/libfabric"]


def in_turns(runs, shapes):
    """A B A B ...: each shape and its name, in every run."""
    return [shape for _ in range(runs) for shape in shapes.items()]


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


def spreads(runs):
    return {name: spread(values) for name, values in runs.items() if values}


def ratios(over, under):
    return spread([a / b for a, b in zip(over, under)])


def cost(with_it, without):
    """The share of a rate that something takes."""
    return spread([1 - ratio for ratio in ratios(with_it, without)["runs"]])


def write(name, title, results, lines, profile="release"):
    folder = ROOT / "figures" / name
    folder.mkdir(parents=True, exist_ok=True)
    results = provenance() | {"profile": profile} | results
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    m = results["machine"]
    head = (
        f"# {title}\n\n`{results['command']}` at {results['commit']}, {results['date']}: {m['processor']}, {m['cores']} cores,"
        f" {m['memory_gib']} GiB, Linux {m['kernel']}, RTM {'yes' if m['rtm'] else 'no'}, {profile} build.\n\n"
    )
    text = head + "\n".join(lines)
    (folder / "results.md").write_text(text + "\n")
    print(text)


def earlier(name, key, without):
    """What the recorded results of a figure have, or `without`, where none are recorded."""
    path = ROOT / "figures" / name / "results.json"
    return json.loads(path.read_text())[key] if path.exists() else without


def farhold(*args):
    done = subprocess.run([str(FARHOLD), *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr}{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name, values):
    return f"| {name} | {values['median']:,.2f} | {values['min']:,.2f} – {values['max']:,.2f} |"


def table(title, figures):
    """A table of spreads by their names."""
    return [f"| {title} | median | min – max |", "|---|---|---|", *(row(name, values) for name, values in figures.items())]


def built(package, *target, profile="release"):
    """The build of a small program of ours; `shipped` as `make release` builds what is given away."""
    flags = {"RUSTFLAGS": SHIPPED_FLAGS} if profile == "shipped" and SHIPPED_FLAGS else {}
    command = ["cargo", "build", "--profile", profile, "--quiet", "-p", package, *target]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | flags)
    return FARHOLD.parent.parent / profile


def output(program, *args, about="", may_abort=False):
    """What a program prints; where it fails, its errors are the last words, with what they are about."""
    done = subprocess.run([program, *map(str, args)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and not may_abort:
        sys.exit(about + done.stderr)
    return done.stdout


def recorded(command, **how):
    """How a command ends that takes `--json FILE`, and what it leaves in that file, if anything."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        return subprocess.run([*command, "--json", out.name], cwd=ROOT, text=True, **how), json.loads(out.read() or "null")
