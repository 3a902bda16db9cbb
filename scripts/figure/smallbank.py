"""11-smallbank: SmallBank with and without copies of rows, in both orders of commits."""
import json
import subprocess
import sys

from .common import built, ratios, row, spread, write


def smallbank(args):
    program = built("farhold-bench", "--example", "smallbank") / "examples/smallbank"
    one = ["nodes", 3, "working-nodes", 1, "distributed", 1, "pin", 1]
    shapes = {
        "one worker": one,
        "one worker, 3 copies, optimistic order": [*one, "replicas", 3],
        "one worker, 3 copies, pessimistic order": [*one, "replicas", 3, "pessimistic", 1],
        "one worker, 10 % distributed": [*one[:4], "distributed", 10, "pin", 1],
        "three workers on three nodes": ["nodes", 3, "working-nodes", 3, "distributed", 1, "pin", 1],
    }
    rates, last = {name: [] for name in shapes}, {}
    for _ in range(args.runs):
        for name, flags in shapes.items():
            done = subprocess.run([str(program), *map(str, flags), "seconds", str(args.seconds)], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            last[name] = json.loads(done.stdout)
            rates[name].append(last[name]["transactions_per_second"])
    copies = "one worker, 3 copies, optimistic order"
    compared = {
        "one worker / 1,000,000 (wanted: 1.0)": spread([rate / 1e6 for rate in rates["one worker"]]),
        "3 copies, optimistic / none (wanted: 0.65)": ratios(rates[copies], rates["one worker"]),
        "optimistic / pessimistic order, 3 copies": ratios(rates[copies], rates["one worker, 3 copies, pessimistic order"]),
        "three workers / one worker": ratios(rates["three workers on three nodes"], rates["one worker"]),
    }
    lines = ["Committed transactions a second, full mix, 100,000 accounts a node, 4,000 of them hot with 90 % of the transactions; three nodes",
             "in one process over shm, closed loop. Transactions that are refused for want of money are not counted. Every run ends with an",
             "audit of the money.", "", "| configuration | median | min – max |", "|---|---|---|"]
    lines += [row(name, spread(v)) for name, v in rates.items()]
    lines += ["", "| ratio, pair by pair | median | min – max |", "|---|---|---|"]
    lines += [row(name, v) for name, v in compared.items()]
    write("11-smallbank", "SmallBank", {"rates": {k: spread(v) for k, v in rates.items()}, "ratios": compared, "last_runs": last}, "\n".join(lines))
