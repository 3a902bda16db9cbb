"""23-hardware: commits as hardware transactions, beside the latches, on a processor that has them."""
import json
import re
import sys
from collections import Counter

from .common import built, in_turns, output, provenance, ratios, spreads, table, write

WAYS = {"hardware": False, "latches": True}
# What may become of an attempt, and the counters of `farhold_txn::Hardware` that say so.
ENDS = {
    "commits": ["commits"], "of distributed ones": ["commits_far"], "conflicts, locks, changed rows": ["aborts_changed", "aborts_locked", "aborts_conflict"],
    "snapshot or index": ["aborts_not_plain"], "no room in the cache": ["aborts_capacity"], "no cause given": ["aborts_unexplained"],
}


def counters(said):
    """The counters of all nodes, added up."""
    found = re.findall(r"(commits|commits_far|aborts_\w+): (\d+)", " ".join(re.findall(r"Hardware {(.*?)}", said)))
    return {name: sum(int(count) for named, count in found if named == name) for name in sum(ENDS.values(), [])}


def of_tpcc(program, warehouses, workers, seconds, latches):
    said = output(program, warehouses, seconds, workers, 1, *(["latches"] if latches else []))
    return float(re.search(r"(\d+) transactions/s, ", said)[1]), counters(said)


def of_smallbank(program, flags, seconds, latches):
    said = output(program, *flags, "latches", int(latches), "seconds", seconds)
    return json.loads(said)["transactions_per_second"], counters(said)


def hardware(args):
    if not provenance()["machine"]["rtm"]:
        sys.exit("this processor has no hardware transactions (RTM)")
    tpcc, smallbank = (built("farhold-bench", "--features", "allocator", "--example", name, profile="shipped") / "examples" / name
                       for name in ("tpcc", "smallbank"))
    near = {"TPC-C, one worker": (1, 1), "TPC-C, two workers, two warehouses": (2, 2), "TPC-C, two workers, one warehouse": (1, 2)}
    of_two = ["nodes", 2, "working-nodes", 2, "pin", 1, "distributed"]
    far = {"SmallBank, two workers on two nodes, 1 % distributed": [*of_two, 1], "the same, all distributed": [*of_two, 100],
           "all distributed, ten hot accounts": [*of_two, 100, "hot", 10]}
    measure = {name: lambda latches, shape=shape: of_tpcc(tpcc, *shape, args.seconds, latches) for name, shape in near.items()}
    measure |= {name: lambda latches, flags=flags: of_smallbank(smallbank, flags, args.seconds, latches) for name, flags in far.items()}
    rates, counts = {name: {way: [] for way in WAYS} for name in measure}, {name: Counter() for name in measure}
    for name, of in in_turns(args.runs, measure):
        for way, latches in WAYS.items():
            rate, found = of(latches)
            rates[name][way].append(rate)
            counts[name].update({} if latches else found)
    compared = {name: ratios(both["hardware"], both["latches"]) for name, both in rates.items()}
    all_rates = {f"{name}: {way}": spreads(both)[way] for name, both in rates.items() for way in WAYS}
    lines = ["Transactions a second, of one process over shm without copies and journal. An attempt is one try of a commit's near part as a hardware",
             "transaction; what does not commit so takes the latches.", "", *table("configuration", all_rates), "",
             *table("hardware / latches", compared), "",
             "| of the attempts | " + " | ".join(ENDS) + " |", "|---" * (1 + len(ENDS)) + "|"]
    for name, of in counts.items():
        attempts = max(sum(of.values()) - of["commits_far"], 1)  # which are commits
        lines.append(f"| {name} | " + " | ".join(f"{sum(of[count] for count in end) / attempts:.2%}" for end in ENDS.values()) + " |")
    write("23-hardware", "Hardware transactions", {"rates": all_rates, "ratios": compared, "attempts": counts}, lines, profile="shipped")
