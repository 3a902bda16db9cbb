"""14-replication: TPC-C with copies of rows on three node processes; a node killed at full load."""
from .common import ROOT, cost, farhold, in_turns, ratios, row, spread, spreads, table, write


def replication(args):
    shapes = {
        "one copy": ["--replicas", 1],
        "three copies, optimistic": ["--replicas", 3],
        "three copies, pessimistic": ["--replicas", 3, "--pessimistic"],
    }
    rates = {name: [] for name in shapes}
    common = ["--nodes", 3, "--workers", 1, "--in-flight", 2, "--seconds", args.seconds, "--lease-ms", 1000, "--pin"]
    last = {}
    for name, flags in in_turns(args.runs, shapes):
        last[name] = farhold("bench", "--json", "tpcc", *common, *flags)
        rates[name].append(last[name]["transactions_per_second"])
    compared = {
        "cost of three copies, of one copy's rate (wanted: at most 0.25)": cost(rates["three copies, optimistic"], rates["one copy"]),
        "optimistic / pessimistic": ratios(rates["three copies, optimistic"], rates["three copies, pessimistic"]),
    }
    folder = ROOT / "figures/14-replication"
    folder.mkdir(parents=True, exist_ok=True)
    # With memory for rows and copies taken before, as who wants a failover in time has it, and without.
    taken = {"meanwhile": [], "before (`--populate 1G`)": ["--memory", "2G", "--populate", "1G"]}
    kills = {when: [] for when in taken}
    for when, flags in in_turns(args.runs, taken):
        kills[when].append(farhold("bench", "--json", "tpcc", "--nodes", 3, "--workers", 1, "--in-flight", 2, "--replicas", 3, "--seconds", 12,
                                   "--kill-after", 4, "--audit", "--plot", folder / "kill.svg", *flags))
    served = lambda kill: {mark["what"]: mark["seconds"] for mark in kill["marks"]}
    seconds_unserved = lambda kill: max(served(kill).values()) - min(served(kill).values())
    back = {when: spread([kill["recovery"]["seconds_after_lease"] for kill in some]) for when, some in kills.items()}
    unserved = {when: spread([seconds_unserved(kill) for kill in some]) for when, some in kills.items()}
    lines = ["Transactions a second, full mix, three node processes of one worker each on the same cores, alternating. Memory is taken from the "
             "system meanwhile (no `--populate`).", "", *table("configuration", spreads(rates) | compared), "",
             f"Kill -9 of one of three nodes at full load, lease 100 ms, {args.runs} runs of each. All of the specification's conditions held and nothing"
              " acknowledged was lost.", "", "| memory for rows and copies taken | seconds | median | min – max |", "|---|---|---|---|"]
    for when in taken:
        lines += [f"| {when} | from the end of the lease to 90 % of what the survivors then do (wanted: at most 1) " + row("", back[when])[3:],
                  f"| {when} | from the kill until the killed node's rows are served again " + row("", unserved[when])[3:]]
    lines += ["", "![throughput over time](kill.svg)"]
    write("14-replication", "Replication", {
        "rates": spreads(rates), "compared": compared, "back": back, "unserved": unserved, "kills": kills, "last_runs": last}, lines)
