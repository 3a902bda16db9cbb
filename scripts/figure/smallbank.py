"""11-smallbank: SmallBank with and without copies of rows, in both orders of commits."""
import json

from .common import built, in_turns, output, ratios, spread, spreads, table, write


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
    for name, flags in in_turns(args.runs, shapes):
        last[name] = json.loads(output(program, *flags, "seconds", args.seconds, about=f"{name}: "))
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
             "audit of the money.", "", *table("configuration", spreads(rates)), "", *table("ratio, pair by pair", compared)]
    write("11-smallbank", "SmallBank", {"rates": spreads(rates), "ratios": compared, "last_runs": last}, lines)
