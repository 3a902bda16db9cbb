"""16-copies: what copies of rows cost TPC-C, all nodes in one process."""
import re
import subprocess
import sys

from .common import built, ratios, row, spread, write

COPIES = {
    "one copy": "one copy", "three": "three copies, optimistic order", "pessimistic": "three copies, pessimistic order",
    "unpopulated one": "one copy, memory taken meanwhile", "unpopulated three": "three copies, memory taken meanwhile"}


def copies(args):
    features = ["--features", "farhold-fabric/libfabric,farhold-txn/libfabric"]
    program = built("farhold-bench", *features, "--example", "replication") / "examples/replication"
    results, lines = {}, ["Transactions a second, full mix, three nodes of one worker each in one process, on the same cores, alternating. Memory for "
                          "rows and mirrors is taken from the system before (`populate_bytes`) where nothing else is said.", ""]
    for provider in ("shm", "libfabric:tcp;ofi_rxm"):
        done = subprocess.run([str(program), str(args.seconds), str(args.runs), provider], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        results[provider], some = copies_over(done.stdout)
        lines += [f"## {provider}", "", *some]
    write("16-copies", "What copies cost TPC-C", {"providers": results}, "\n".join(lines))


def copies_over(printed):
    found = re.findall(rf"^({'|'.join(COPIES)}) +(\d+)/s, a transaction: workers (\d+) ns, agents (\d+) ns", printed, re.M)
    of = lambda which: [tuple(map(int, numbers)) for name, *numbers in found if name == which]
    rates = {name: [rate for rate, *_ in of(which)] for which, name in COPIES.items()}
    one, three, pessimistic, unpopulated_one, unpopulated_three = rates.values()
    rates = {name: runs for name, runs in rates.items() if runs}
    cost = lambda with_copies, without: spread([1 - r for r in ratios(with_copies, without)["runs"]])
    compared = {
        "cost of three copies, of one copy's rate (wanted over shm: at most 0.25)": cost(three, one),
        "optimistic / pessimistic": ratios(three, pessimistic),
    }
    if unpopulated_one:
        compared["cost, memory taken meanwhile"] = cost(unpopulated_three, unpopulated_one)
    budget = {name: {"workers_ns": spread([ns for _, ns, _ in of(which)]), "others_ns": spread([ns for *_, ns in of(which)])}
              for which, name in COPIES.items() if name in rates}
    lines = ["| configuration | median | min – max |", "|---|---|---|"]
    lines += [row(name, spread(v)) for name, v in rates.items()]
    lines += [row(name, v) for name, v in compared.items()]
    lines += ["", "| processors' time for a transaction, ns | workers | home agents and keepers of mirrors |", "|---|---|---|"]
    lines += [f"| {name} | {b['workers_ns']['median']:,.0f} | {b['others_ns']['median']:,.0f} |" for name, b in budget.items()]
    return {"rates": {k: spread(v) for k, v in rates.items()}, "compared": compared, "processor_time": budget}, [*lines, ""]
