"""08-tpch: TPC-H through DataFusion with and without Farhold's joins, and DuckDB beside them: same files, threads, memory limit."""
import os
import statistics
import subprocess
import sys

import plot

from .common import ROOT, SHIPPED_FLAGS, recorded, write


def tpch(args):
    results, lines = {}, []
    for scale in args.scale.split(","):
        command = [*bench("shipped", scale), "--memory", args.memory, "--runs", str(args.runs), "--engines", "farhold,plain"]
        if args.python:
            command += ["--rival", f"{args.python} {ROOT / 'scripts/duckdb-queries'}"]
        done, result = recorded(command, stdout=subprocess.PIPE, env=os.environ | {"RUSTFLAGS": SHIPPED_FLAGS})
        if not result:
            sys.exit(done.stdout)
        results[f"scale {scale}"] = result | {"exit": done.returncode}
        lines += tpch_table(scale, result)
    write("08-tpch", "TPC-H over Parquet files", {"results": results}, lines, profile="shipped (`make release`)")
    tpch_plot(ROOT / "figures/08-tpch/plot.svg", results)


def bench(profile, scale):
    """The command of the bench, which other flags may follow."""
    # With `-p farhold` the features are those of the binary, and DataFusion is compiled once for both.
    return ["cargo", "bench", "-q", "--profile", profile, "-p", "farhold", "-p", "farhold-bench", "--features", "farhold-bench/tpch", "--bench", "tpch", "--",
            "--scale", scale]


def tpch_table(scale, result):
    names = [engine["engine"] for engine in result["queries"][0]["engines"]]
    official = "the specification's answers and each other's" if result["official_answers"] else "each other's"
    lines = [f"## Scale factor {scale}", "",
             f"Memory limit {result['memory_bytes'] / 2**30:g} GiB and {result['threads']} threads for each; median of {result['runs']} interleaved"
             f" runs after one that warms the file cache, in milliseconds; answers checked against {official}.", "",
             "| query | " + " | ".join(names) + " | farhold / plain | farhold / DuckDB |", "|---" * (len(names) + 3) + "|"]
    total = {name: 0.0 for name in names}
    failed = {name: [] for name in names}
    for query in result["queries"]:
        times = {}
        for engine in query["engines"]:
            name = engine["engine"]
            if "error" in engine or engine.get("wrong"):
                failed[name].append(query["query"])
            else:
                times[name] = statistics.median(engine["ms"])
                total[name] += times[name]
        cells = [f"{times[name]:,.1f}" if name in times else "failed" for name in names]
        lines.append(f"| Q{query['query']} | " + " | ".join(cells) + " | " + " | ".join(tpch_ratios(times)) + " |")
    whole = {name: ms for name, ms in total.items() if not failed[name]}
    cells = [f"{whole[name]:,.1f}" if name in whole else f"{len(failed[name])} failed" for name in names]
    lines.append("| all | " + " | ".join(cells) + " | " + " | ".join(tpch_ratios(whole)) + " |")
    return [*lines, ""]


def tpch_ratios(times):
    duckdb = next((ms for name, ms in times.items() if name.startswith("duckdb")), None)
    return [f"{times['farhold'] / other:.2f}" if "farhold" in times and other else "" for other in (times.get("plain"), duckdb)]


def tpch_plot(path, results):
    groups = []
    for title, result in results.items():
        bars = {}
        for query in result["queries"]:
            for engine in query["engines"]:
                bars.setdefault(engine["engine"], []).append(statistics.median(engine["ms"]) if engine.get("ms") else None)
        groups.append((f"TPC-H {title}: milliseconds", [f"Q{q['query']}" for q in result["queries"]], bars))
    plot.bars(path, groups)
