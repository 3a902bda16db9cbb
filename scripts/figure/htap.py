"""28-htap: transactions and analytical queries at the same time, on a node that keeps columns and on one that does not."""
import subprocess

from .common import ROOT, farhold, ratios, row, spread, write

KINDS = ("columns", "rows")


def htap(args):
    flags = ["--warehouses", args.warehouses, "--runs", args.runs, "--seconds", args.seconds, "--pin"]
    result = farhold("bench", "--json", "htap", *flags, "--mixes", args.mixes, *(["--journal", args.dir] if args.dir else []))
    # Without a journal, commits write more for the columns.
    alone = farhold("bench", "--json", "htap", *flags, "--mixes", "1:0", "--durability", "memory")
    settings, measured = result["configuration"], result["measured"]
    runs = {(mix, kind): sorted((one for one in measured if name(one) == mix and one["kept"] == kind), key=lambda one: one["run"])
            for mix in settings["mixes"] for kind in KINDS}
    of = lambda mix, kind, figure: [one[figure] for one in runs[mix, kind]]
    frontier = {mix: {kind: {figure: spread(of(mix, kind, figure)) for figure in ("transactions_per_second", "queries_per_second")} for kind in KINDS}
                for mix in settings["mixes"]}
    queries = {mix: ratios(of(mix, "columns", "queries_per_second"), of(mix, "rows", "queries_per_second"))
               for mix in settings["mixes"] if clients(mix) and all(of(mix, "rows", "queries_per_second"))}
    costs = {f"{cost['workers']}:{cost['clients']}": {key: spread(cost[key]) for key in ("of_columns", "of_both") if cost[key]} for cost in result["costs"]}
    waits = {mix: {figure: spread([one["waits_us"][figure] / 1000 for one in runs[mix, "columns"]]) for figure in ("p50", "p99", "max")}
             for mix in settings["mixes"] if clients(mix)}
    checked = {mix: {kind: [sum(len(one["freshness"][what]) if what == "missed" else one["freshness"][what] for one in runs[mix, kind])
                            for what in ("acknowledged", "checks", "missed")] for kind in KINDS} for mix in settings["mixes"] if clients(mix) and workers(mix)}
    reads = {mix: {kind: spread([one["freshness"]["check_us"]["p99"] / 1000 for one in runs[mix, kind]]) for kind in KINDS} for mix in checked}
    partial = sorted({mix for (mix, _), of_mix in runs.items() if clients(mix) and any(not one["rounds"] for one in of_mix)})

    lines = [f"W:Q is W workers that run TPC-C ({settings['in_flight']} transactions in flight on each) and Q clients that ask CH-benCHmark's 22 queries one after"
             f" the other through the PostgreSQL protocol. {settings['warehouses']} warehouses, {settings['runs']} runs in turns of {settings['seconds']} s after"
             f" {settings['warm_up']} s; each loads a new node with a journal. `columns` keeps tables of 65,536 rows and more as columns, `rows` keeps none.",
             f"The machine has {settings['processors']} processors, which workers, queries ({threads(settings)}), clients, the journal's thread and those of"
             " the columns share. A worker is bound to a processor, which the other threads leave to it."
             + (" So there is at most one worker and one query client by default." if settings["processors"] <= 2 else ""),
             *([f"In {', '.join(partial)} some queries were never answered within the time: the rate is that of the others."] if partial else []), "",
             "## Throughput frontier", "", "![transactions and queries a second](frontier.svg)", "",
             "The dashed, proportional lines join the most transactions a second with the most queries a second. A frontier above its line makes more of both at the same"
             " time than in turns. Below: the lines of a fixed number of workers, and those of a fixed number of clients.", "",
             "| W:Q | transactions/s on columns | on rows | queries/s on columns | on rows | queries: columns / rows, pair by pair |", "|---|---|---|---|---|---|"]
    for mix, kinds in frontier.items():
        cells = [f"{kinds[kind][figure]['median']:,.1f}" for figure in ("transactions_per_second", "queries_per_second") for kind in KINDS]
        ratio = f"{queries[mix]['median']:.2f} ({queries[mix]['min']:.2f} – {queries[mix]['max']:.2f})" if mix in queries else ""
        lines.append(f"| {mix} | {' | '.join(cells)} | {ratio} |")
    lines += ["", "## Cost of the columns for transactions", "", "The share of TPC-C's rate, pair by pair.", "", "| | median | min – max |", "|---|---|---|"]
    for mix, cost in costs.items():
        wanted = "" if clients(mix) else " (wanted: at most 0.05)"
        lines.append(row(f"{mix}, columns beside rows{wanted}", cost["of_columns"]))
        if clients(mix) and "of_both" in cost:
            lines.append(row(f"{mix} on columns, beside {workers(mix)}:0 on rows (wanted, with a core for the queries: at most 0.10)", cost["of_both"]))
    of_alone = spread(alone["costs"][0]["of_columns"])
    lines += [row("1:0 without a journal, columns beside rows (wanted: at most 0.05)", of_alone)]
    lines += ["", "## Freshness", "",
              "A query waits until its columns contain all that was committed before its snapshot. The wait is from the snapshot to each view of a table's columns, in ms:"
              " quantiles of each run.", "", "![waits for the columns](freshness.svg)", "", "| | median | min – max |", "|---|---|---|"]
    for mix, of_mix in waits.items():
        lines += [row(f"{mix}, {figure}" + (" (wanted: at most 20)" if figure == "p99" and workers(mix) else ""), values) for figure, values in of_mix.items()]
    lines += ["", "Beside each worker, a client commits one number after the other. Before each query, a client notes the numbers that are acknowledged, and then reads them by a"
              " query. A number smaller than the noted one is missed.", "", "| W:Q | on | acknowledged | reads | missed | 99 of 100 reads took at most, ms |", "|---|---|---|---|---|---|"]
    lines += [f"| {mix} | {kind} | {acknowledged:,} | {checks:,} | {missed} | {reads[mix][kind]['median']:.1f} ({reads[mix][kind]['min']:.1f} – {reads[mix][kind]['max']:.1f}) |"
              for mix, kinds in checked.items() for kind, (acknowledged, checks, missed) in kinds.items()]
    write("28-htap", "Transactions and queries at the same time", {
        "frontier": frontier, "queries_columns_over_rows": queries, "costs": costs, "waits_ms": waits, "reads_p99_ms": reads, "cost_without_journal": of_alone,
        "result": result, "without_journal": alone}, lines)
    subprocess.run([ROOT / "scripts/plot", "htap"], check=True)


def name(one):
    return f"{one['workers']}:{one['clients']}"


def workers(mix):
    return int(mix.split(":")[0])


def clients(mix):
    return int(mix.split(":")[1])


def threads(settings):
    """The threads of queries in each mix, in words."""
    counts = [f"{count} thread{'s' if count > 1 else ''} in {mix}" for mix, count in settings["query_threads"].items() if clients(mix)]
    return ", ".join(counts)
