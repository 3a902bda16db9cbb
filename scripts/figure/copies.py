"""16-copies: what copies of rows cost TPC-C, all nodes in one process."""
import re

from .common import COPIES_FEATURES, built, cost, output, ratios, spread, spreads, table, write

COPIES = {
    "one copy": "one copy", "three": "three copies, optimistic order", "pessimistic": "three copies, pessimistic order",
    "unpopulated one": "one copy, memory taken meanwhile", "unpopulated three": "three copies, memory taken meanwhile"}


def copies(args):
    program = built("farhold-bench", *COPIES_FEATURES, "--example", "replication") / "examples/replication"
    results, lines = {}, ["Transactions a second, full mix, three nodes of one worker each in one process, on the same cores, alternating. Memory for "
                          "rows and mirrors is taken from the system before (`populate_bytes`) where nothing else is said.", ""]
    for provider in ("shm", "libfabric:tcp;ofi_rxm"):
        results[provider], some = copies_over(output(program, args.seconds, args.runs, provider))
        lines += [f"## {provider}", "", *some]
    write("16-copies", "What copies cost TPC-C", {"providers": results}, lines)


def copies_over(printed):
    found = re.findall(rf"^({'|'.join(COPIES)}) +(\d+)/s, a transaction: workers (\d+) ns, agents (\d+) ns", printed, re.M)
    of = lambda which: [tuple(map(int, numbers)) for name, *numbers in found if name == which]
    rates = {name: [rate for rate, *_ in of(which)] for which, name in COPIES.items()}
    one, three, pessimistic, unpopulated_one, unpopulated_three = rates.values()
    rates = {name: runs for name, runs in rates.items() if runs}
    compared = {
        "cost of three copies, of one copy's rate (wanted over shm: at most 0.25)": cost(three, one),
        "optimistic / pessimistic": ratios(three, pessimistic),
    }
    if unpopulated_one:
        compared["cost, memory taken meanwhile"] = cost(unpopulated_three, unpopulated_one)
    budget = {name: {"workers_ns": spread([ns for _, ns, _ in of(which)]), "others_ns": spread([ns for *_, ns in of(which)])}
              for which, name in COPIES.items() if name in rates}
    lines = [*table("configuration", spreads(rates) | compared), "",
             "| processors' time for a transaction, ns | workers | home agents and keepers of mirrors |", "|---|---|---|"]
    lines += [f"| {name} | {b['workers_ns']['median']:,.0f} | {b['others_ns']['median']:,.0f} |" for name, b in budget.items()]
    return {"rates": spreads(rates), "compared": compared, "processor_time": budget}, [*lines, ""]
