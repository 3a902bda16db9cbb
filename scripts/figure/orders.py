"""17-orders: the optimistic order against the pessimistic one, where more and more transactions want the same rows."""
import json
import re

from .common import COPIES_FEATURES, built, output, ratios, spread, write

# TPC-C: transactions under way on each worker, a warehouse each. SmallBank: hot accounts of one node, which get 90 % of the transactions;
# workers of that node, and transactions under way on each.
ORDERS_TPCC = {"shm": (2, 16), "libfabric:tcp;ofi_rxm": (2, 16)}
ORDERS_SMALLBANK = {"shm": ((4000, 2, 1), (10, 2, 1)), "libfabric:tcp;ofi_rxm": ((4000, 1, 32), (100, 1, 32), (10, 1, 32))}


def orders(args):
    examples = built("farhold-bench", *COPIES_FEATURES, "--example", "replication", "--example", "smallbank") / "examples"
    found = {}
    for provider, depths in ORDERS_TPCC.items():
        for depth in depths:
            printed = output(examples / "replication", args.seconds, args.runs, provider, depth)
            runs = re.findall(r"^(\w+) (\d+)/s, ([0-9.]+) conflicts", printed, re.M)
            found["TPC-C", provider, f"{depth} under way for each warehouse"] = runs
    for provider, shapes in ORDERS_SMALLBANK.items():
        for hot, workers, depth in shapes:
            runs = []
            for order in ("optimistic", "pessimistic") * args.runs:
                flags = ["replicas", 3, "provider", provider, "hot", hot, "accounts", 20_000, "workers", workers, "in-flight", depth, "seconds", args.seconds,
                         "pessimistic", int(order == "pessimistic"), "distributed", 0]
                outcome = json.loads(output(examples / "smallbank", *flags))
                commits = sum(outcome["commits"].values())
                runs.append((order, outcome["transactions_per_second"], outcome["conflicts"] / commits))
            threads = f"{workers} worker{'s' if workers > 1 else ''}, {depth} under way on each"
            found["SmallBank", provider, f"{hot} hot accounts, {threads}"] = runs
    results = []
    lines = ["Transactions a second with three copies of each row in both orders, alternating; three nodes in one process on the same cores. TPC-C: full mix, one",
             "worker a node and one warehouse of a tenth of its rows. SmallBank: the workers of one node, 20,000 accounts, all its own. Conflicts are attempts that lost against others, for each",
             "transaction that committed.", "",
             "| load | over | | optimistic / pessimistic: median (min – max) | optimistic/s | pessimistic/s | conflicts: optimistic | pessimistic |",
             "|---|---|---|---|---|---|---|---|"]
    for (load, provider, shape), runs in found.items():
        of = lambda order, column: [float(run[column]) for run in runs if run[0] == order]
        rates = {order: spread(of(order, 1)) for order in ("optimistic", "pessimistic")}
        conflicts = {order: spread(of(order, 2)) for order in rates}
        ratio = ratios(rates["optimistic"]["runs"], rates["pessimistic"]["runs"])
        results.append({"load": load, "provider": provider, "shape": shape, "ratio": ratio, "rates": rates, "conflicts": conflicts})
        lines.append(f"| {load} | {provider} | {shape} | {ratio['median']:.2f} ({ratio['min']:.2f} – {ratio['max']:.2f}) |"
                     f" {rates['optimistic']['median']:,.0f} | {rates['pessimistic']['median']:,.0f} |"
                     f" {conflicts['optimistic']['median']:.3f} | {conflicts['pessimistic']['median']:.3f} |")
    write("17-orders", "The optimistic and the pessimistic order of commits with copies", {"shapes": results}, lines)
