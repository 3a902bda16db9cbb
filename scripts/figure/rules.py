"""22-rules: each rule around the joins: two nodes with the same rows, of which one makes plans of CH-benCHmark's queries without it."""
from .common import farhold, write

RULES = ("enabled", "reduce", "common", "decimals")


def rules(args):
    lines = [f"{args.warehouses} warehouses, no writers, {args.runs} interleaved runs, through the PostgreSQL protocol. The time with a rule over the time without"
             " it: of all queries, and of those that differ by a tenth or more (medians of the ratios run by run).", "",
             "| without `farhold_join.` | with, ms | without, ms | ratio | queries that gain | queries that lose |", "|---|---|---|---|---|---|"]
    results = {}
    for rule in RULES:
        queries = farhold("bench", "--json", "ch", "--warehouses", args.warehouses, "--runs", args.runs, "--without", rule)["queries"]
        ours, without = (sum(q[k] for q in queries) for k in ("ms", "without_ms"))
        differing = lambda differs: ", ".join(f"Q{q['query']} {q['ratio']:.2f}" for q in queries if differs(q["ratio"]))
        lines.append(f"| {rule} | {ours:.0f} | {without:.0f} | {ours / without:.2f} | {differing(lambda r: r <= 0.9)} | {differing(lambda r: r >= 1.1)} |")
        results[rule] = {"with_ms": ours, "without_ms": without, "ratio": ours / without, "queries": queries}
    write("22-rules", "Rules around the joins, inside Farhold", {"warehouses": args.warehouses, "rules": results}, lines)
