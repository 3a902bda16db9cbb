"""21-changes: two commits in turns: what became slower."""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile

from .common import FARHOLD, ROOT, ratios, recorded, row, spread, write
from .tpcc import tpcc_of_one_node


def programs(commit):
    """What measures a commit, built from a checkout of its own, once. Its files are new, so cargo takes nothing of another commit's crates for theirs."""
    target = FARHOLD.parent.parent / "changes"
    folder = target / "programs" / commit
    builds = {
        "tpcc": ["build", "-p", "farhold-bench", "--features", "allocator", "--example", "tpcc"],
        "txn": ["bench", "-p", "farhold-txn", "--bench", "txn", "--no-run"],
        "joins": ["bench", "-p", "farhold-join", "--bench", "joins", "--no-run"],
        "tpch": ["bench", "-p", "farhold", "-p", "farhold-bench", "--features", "farhold-bench/tpch", "--bench", "tpch", "--no-run"],
    }
    if not folder.exists():
        with tempfile.TemporaryDirectory() as parent:
            tree = pathlib.Path(parent) / "farhold"
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
            made_here = pathlib.Path(parent) / "programs"  # all of them or none
            made_here.mkdir()
            try:
                for name, (action, *arguments) in builds.items():
                    command = ["cargo", action, "--profile", "release", "--message-format", "json", "--quiet", *arguments]
                    told = subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"CARGO_TARGET_DIR": str(target)})
                    made = [json.loads(line) for line in told.stdout.splitlines()]
                    built = next(it["executable"] for it in made if it.get("executable") and it["target"]["name"] == name)
                    shutil.copy(built, made_here / name)
                shutil.copytree(made_here, folder)
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    return {name: folder / name for name in builds}


def times(tools, args, folder):
    """How long each thing takes: of rates, the time of one. By its group and its name."""
    taken = {}
    for name, (warehouses, workers) in {"one worker": (1, 1), "two workers": (2, 2), "one worker, 24 warehouses": (24, 1)}.items():
        taken["TPC-C", name] = 1 / tpcc_of_one_node(tools["tpcc"], warehouses, workers, args.seconds)[0]
    said = subprocess.run([tools["txn"], "--bench"], check=True, stdout=subprocess.PIPE, text=True).stdout
    taken |= {("transactions", name): float(ns) for name, ns in re.findall(r"^(\S.*?) +(\d+) ns$", said, re.M)}
    _, said = recorded([tools["joins"], "--bench", "--raw", "--rounds", "1"], check=True, stdout=subprocess.DEVNULL)
    taken |= {("joins", row["row"]): 1 / row["mtuples_s"] for row in said if row["table"] == "raw"}
    flags = ["--scale", "1", "--memory", args.memory, "--runs", "1", "--engines", "farhold", "--folder", folder]
    _, said = recorded([tools["tpch"], "--bench", *flags], stdout=subprocess.DEVNULL)
    return taken | {("TPC-H", f"Q{query['query']}"): statistics.median(query["engines"][0]["ms"]) for query in said["queries"]}


def changes(args):
    name_of = lambda commit: subprocess.run(["git", "rev-parse", "--short=12", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    before, after = name_of(args.before), name_of(args.after)
    tools, rounds = {commit: programs(commit) for commit in (before, after)}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.runs):
            order = [before, after] if number % 2 == 0 else [after, before]
            rounds.append({commit: times(tools[commit], args, folder) for commit in order})
    compared = {}
    for what in rounds[0][before]:
        pairs = [(of[after].get(what), of[before][what]) for of in rounds]
        if all(of_after for of_after, _ in pairs):
            compared[what] = ratios(*zip(*pairs))
    lines = [f"Time at {after} over time at {before}, round by round; {args.runs} rounds in turns, of rates the time of one. Below 1 is quicker.", "",
             "| | | median | min – max |", "|---|---|---|---|"]
    for group in dict.fromkeys(group for group, _ in compared):
        middle = [statistics.geometric_mean(of["runs"][number] for (g, _), of in compared.items() if g == group) for number in range(args.runs)]
        lines.append(f"| **{group}** " + row("geometric mean", spread(middle)))
        lines += [f"| {group} " + row(name, of) for (g, name), of in compared.items() if g == group]
    write("21-changes", "Before and after", {
        "before": before, "after": after, "ratios": [{"group": g, "name": n} | of for (g, n), of in compared.items()]}, lines)
