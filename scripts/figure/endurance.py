"""20-endurance: more seeds of every scenario, more statements beside PostgreSQL. Both add up; each run is kept as soon as it has ended."""
import datetime
import os
import re
import subprocess
import sys
import time

from .common import ROOT, built, earlier, provenance, write

SEEDS_FROM, QUERIES_FROM = 10_000_000, 10_000


def endure(runs, title_of_run, run):
    """Adds a run and writes all of them down."""
    runs.append({"what": title_of_run, "commit": provenance()["commit"], "date": datetime.date.today().isoformat()} | run)
    sums = {}
    for each in runs:
        count, bad, first, commits = sums.get(each["what"], (0, 0, each["first"], []))
        commits = commits if each["commit"] in commits else [*commits, each["commit"]]
        sums[each["what"]] = (count + each["count"], bad + each["bad"], first, commits)
    last = {each["what"]: each["next"] - 1 for each in runs}
    lines = ["What has run, in all runs of `scripts/figures seeds` and `scripts/figures queries`. Every run takes seeds that no other has taken;",
             "results.json has them one by one.", "",
             "| what | run | not in order, or different | seeds | commits |", "|---|---|---|---|---|"]
    lines += [f"| {what} | {count:,} | {bad} | {first} to {last[what]} | {len(commits)}, the last {commits[-1][:12]} |"
              for what, (count, bad, first, commits) in sorted(sums.items())]
    write("20-endurance", "Seeds and statements", {"runs": runs}, lines)


def fresh(runs, what, least):
    """The first seed that no run has taken."""
    return max((each["next"] for each in runs if each["what"] == what), default=least)


def seeds(args):
    """Every scenario of the simulator, as many seeds of each."""
    program, runs = built("farhold-sim", profile="whole") / "farhold-sim", earlier("20-endurance", "runs", [])
    flags = subprocess.run([str(program), "scenarios"], capture_output=True, text=True, check=True).stdout.split()
    for flag in ["", *flags] if args.scenario is None else args.scenario.split(","):
        what = f"seeds of {flag or '(no scenario)'}"
        first = fresh(runs, what, SEEDS_FROM)
        command = [str(program), "--seed", str(first), "--seeds", str(args.count), "--quiet", *([flag] if flag else [])]
        started = time.monotonic()
        # Memory of one seed serves the next: a tenth quicker.
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MIMALLOC_PURGE_DELAY": "-1"})
        bad = re.findall(r"^seed (\d+)", done.stdout, re.M)
        sys.stderr.write(done.stdout + done.stderr)
        if done.returncode and not bad:
            sys.exit(f"{' '.join(command)}: exit {done.returncode}")
        endure(runs, what, {"first": first, "next": first + args.count, "count": args.count, "bad": len(bad), "bad_seeds": bad,
                            "seconds": round(time.monotonic() - started)})


def queries(args):
    """Statements beside PostgreSQL; by the binary $FARHOLD if it is set: one of the release profile is twice as quick."""
    runs = earlier("20-endurance", "runs", [])
    if "FARHOLD" not in os.environ:
        subprocess.run([ROOT / "scripts/cargo-all", "build", "--bin", "farhold", "--quiet"], check=True)
    first = fresh(runs, "statements beside PostgreSQL", QUERIES_FROM)
    command = [str(ROOT / ".tools/python/bin/python"), str(ROOT / "scripts/fuzz-postgres"), "--queries", str(args.count), "--seed", str(first),
               "--processes", str(os.cpu_count())]
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    sys.stderr.write(done.stdout)
    end = re.search(r"^(\d+) statements from seed \d+ in .*?: (\d+) differ", done.stdout, re.M)
    if not end:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}")
    endure(runs, "statements beside PostgreSQL", {
        "first": first, "next": first + 1, "count": int(end[1]), "bad": int(end[2]), "seconds": round(time.monotonic() - started)})
