"""22-rules: each rule around the joins, inside Farhold: CH-benCHmark's queries on rows and TPC-H's on columns, on two nodes of which one makes plans without the
rule, in turns."""
import pathlib
import statistics
import tempfile

from .common import farhold, ratios, spread, write
from .served import Served, seconds
from .tpch_tables import files, load, queries_of

RULES = ("enabled", "reduce", "common", "decimals")
TITLES = ["| without `farhold_join.` | with, ms | without, ms | ratio | queries that gain | queries that lose |", "|---|---|---|---|---|---|"]


def rules(args):
    of_ch, of_tpch = ch(args), tpch(args)
    lines = [f"{args.runs} interleaved runs, no writers, through the PostgreSQL protocol. The time with a rule over the time without it: of all queries, and of those that"
             " differ by a tenth or more (medians of the ratios run by run).", "", f"## CH-benCHmark on rows, {args.warehouses} warehouses", "", *TITLES, *map(line, of_ch, of_ch.values()),
             "", f"## TPC-H on columns, scale factor {args.scale}", "", *TITLES, *map(line, of_tpch, of_tpch.values())]
    write("22-rules", "Rules around the joins, inside Farhold", {"warehouses": args.warehouses, "rules": of_ch, "tpch": of_tpch}, lines)


def line(rule, of):
    differing = lambda differs: ", ".join(f"Q{q['query']} {q['ratio']:.2f}" for q in of["queries"] if differs(q["ratio"]))
    return f"| {rule} | {of['with_ms']:.0f} | {of['without_ms']:.0f} | {of['ratio']:.2f} | {differing(lambda r: r <= 0.9)} | {differing(lambda r: r >= 1.1)} |"


def summed(queries):
    ours, without = (sum(q[k] for q in queries) for k in ("ms", "without_ms"))
    return {"with_ms": ours, "without_ms": without, "ratio": ours / without, "queries": queries}


def ch(args):
    bench = lambda rule: farhold("bench", "--json", "ch", "--warehouses", args.warehouses, "--runs", args.runs, "--without", rule)
    return {rule: summed(bench(rule)["queries"]) for rule in RULES}


def tpch(args):
    scale = args.scale.split(",")[0]
    gigabytes = 4 * max(1, round(float(scale)))
    sizes = [flag for name in ("memory", "query-memory", "column-memory") for flag in (f"--{name}", f"{gigabytes}G")]

    def node(*flags):
        return Served("serve", "--json", "--listen", "127.0.0.1:0", *sizes, *flags)

    def filled(node):
        import duckdb

        with tempfile.TemporaryDirectory(dir=args.dir) as home, duckdb.connect() as duck:
            load(duck, {"columns": node}, files(scale), pathlib.Path(home))
        node.wait_for_columns()
        return node

    of = {}
    with node() as whole:
        filled(whole)
        for rule in RULES:
            with node("--without", rule) as without:
                filled(without)
                of[rule] = summed([one(whole, without, number, sql, args.runs) for number, sql in queries_of(float(scale)).items()])
    return of


def one(whole, without, number, sql, runs):
    """A query on both nodes in turns, after a run on each."""
    times = {"with": [], "without": []}
    nodes = [("with", whole), ("without", without)]
    for turn in range(runs + 1):
        for name, node in nodes if turn % 2 else reversed(nodes):
            took, _ = seconds(node.run, sql)
            if turn:
                times[name].append(took * 1000)
    return {"query": number, "ms": statistics.median(times["with"]), "without_ms": statistics.median(times["without"]),
            "ratio": ratios(times["with"], times["without"])["median"], **{name: spread(of) for name, of in times.items()}}
