"""23-hardware: commits as hardware transactions, beside the latches, on a processor that has them."""
import json
import re
import sys

from .common import built, in_turns, output, provenance, ratios, spreads, table, write

WAYS = {"hardware": False, "latches": True}
COUNTS = ("attempts", "commits", "commits_far", "conflicts", "capacity", "unexplained")


def of_tpcc(program, warehouses, workers, seconds, latches):
    said = output(program, warehouses, seconds, workers, 1, *(["latches"] if latches else []))
    rate = float(re.search(r"(\d+) transactions/s, ", said)[1])
    found = re.search(r"(\d+) attempts of hardware transactions: Hardware {(.*)}", said)
    if not found:
        return rate, {}
    of = {name: int(count) for name, count in re.findall(r"(\w+): (\d+)", found[2])}
    conflicts = of["aborts_changed"] + of["aborts_locked"] + of["aborts_conflict"]
    return rate, {"attempts": int(found[1]), "commits": of["commits"], "commits_far": of["commits_far"], "conflicts": conflicts,
                  "capacity": of["aborts_capacity"], "unexplained": of["aborts_unexplained"]}


def of_smallbank(program, flags, seconds, latches):
    result = json.loads(output(program, *flags, "latches", int(latches), "seconds", seconds))
    return result["transactions_per_second"], {name: sum(node[name] for node in result["hardware"]) for name in COUNTS}


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
    rates, counts = {name: {way: [] for way in WAYS} for name in measure}, {name: dict.fromkeys(COUNTS, 0) for name in measure}
    for name, of in in_turns(args.runs, measure):
        for way, latches in WAYS.items():
            rate, found = of(latches)
            rates[name][way].append(rate)
            for count, number in found.items():
                counts[name][count] += number if not latches else 0
    compared = {name: ratios(both["hardware"], both["latches"]) for name, both in rates.items()}
    all_rates = {f"{name}: {way}": spreads(both)[way] for name, both in rates.items() for way in WAYS}
    lines = ["Transactions a second, of one process over shm without copies and journal. An attempt is one try of a commit's near part as a hardware",
             "transaction; what does not commit so takes the latches.", "", *table("configuration", all_rates), "",
             *table("hardware / latches", compared), "",
             "| of the attempts | commits | of distributed ones | conflicts, locks, changed rows | no room in the cache | no cause given |", "|---" * 6 + "|"]
    for name, of in counts.items():
        shares = [f"{of[count] / max(of['attempts'], 1):.2%}" for count in COUNTS[1:]]
        lines.append(f"| {name} | " + " | ".join(shares) + " |")
    write("23-hardware", "Hardware transactions", {"rates": all_rates, "ratios": compared, "attempts": counts}, lines, profile="shipped")
