"""07-joins: the raw joins beside what memory bandwidth allows, DuckDB and Polars; the model's choices."""
import subprocess

import plot

from .common import ROOT, ratios, recorded, row, spread, write


def join_bench(args, *flags):
    command = ["cargo", "bench", "-q", "-p", "farhold-join", "--bench", "joins", "--", *flags, "--rounds", str(args.runs)]
    return recorded(command, check=True, stdout=subprocess.DEVNULL)[1]


def joins(args):
    rivals = []
    for rows in (16_000_000, 64_000_000) if args.python else ():
        command = [args.python, "scripts/compare-joins", "--rows", str(rows), "--rounds", str(args.runs)]
        rivals.append(recorded(command, check=True)[1])
    measured, sweep = join_bench(args, "--raw"), join_bench(args, "--sweep")
    table = lambda name: [row for row in measured if row["table"] == name]
    lines = ["Unique build keys in random order, uniform foreign keys, 16-byte tuples, sums of both payloads; M tuples/s of both sides. `dense`: the"
             " keys are 0..n, `sparse`: any 64-bit words.", ""]
    if rivals:
        lines += ["## Beside DuckDB and Polars, round by round (dense keys; wanted: 4 times each)", "", "| | median | min – max | Farhold's ratio | min – max |", "|---|---|---|---|---|"]
        for result in rivals:
            rates = result["mtuples_per_second"]
            ours = next(iter(rates.values()))
            for name, values in rates.items():
                ratio, title = ratios(ours, values), f"{name}, {result['rows'] // 10**6} M a side"
                lines.append(f"{row(title, spread(values))} {ratio['median']:.2f} | {ratio['min']:.2f} – {ratio['max']:.2f} |")
        lines.append("")
    lines += ["## Algorithms, and what the bandwidth measured in each round allows the radix join's passes (wanted: 0.70 of it)", "",
              "The bound is that of the usual passes: every key is read once for the histogram and the build keys once more for their interval, every row is read, written"
              " as a tuple of 16 bytes by a streaming store, and this read again, on all cores: 28 bytes a row of each side at the rate of reads, 32 at that of reading"
              " two columns and streaming tuples. Farhold's join moves fewer: it makes no histogram, reads keys by themselves only where they fill an interval, and"
              " packs such keys and row numbers into 8 bytes, others and row numbers into 12. Its own bytes, sparse 12 and 28 a row, dense 12 and 24: `of what it moves`. `cold` is the first round, on fresh pages.", "",
              "| | M tuples/s | cold | share of the bound | min – max | of what it moves |", "|---|---|---|---|---|---|"]
    for figure in table("bandwidth") + table("raw"):
        if figure["table"] == "bandwidth":
            lines.append(f"| bandwidth, {figure['row']}: read {figure['read_gb_s']:.0f} GB/s, columns to tuples {figure['zip_gb_s']:.0f} GB/s | | | | | |")
        else:
            share = lambda name: f"{figure[name]:.2f}" if name in figure else ""
            between = f"{share('bandwidth_share_min')} – {share('bandwidth_share_max')}" if "bandwidth_share" in figure else ""
            shares = " | ".join([share("bandwidth_share"), between, share("moved_share")])
            lines.append(f"| {figure['row']} | {figure['mtuples_s']:.0f} | {figure['cold_mtuples_s']:.0f} | {shares} |")
    lines += ["", "## The model's choice (wanted: at most 1.05 of the best)", "", "| rows a side (or build x probe), keys, choice | its time over the best | no_partition ms | radix ms |", "|---|---|---|---|"]
    lines += [f"| {r['row']} | {r['over_best']:.2f} | {r['no_partition_ms']:.2f} | {r['radix_ms']:.2f} |" for r in sweep]
    write("07-joins", "Joins", {"rivals": rivals, "measured": measured, "sweep": sweep}, lines)
    size = lambda r: int(r["row"].split()[0])
    square = [r for r in sweep if " x " not in r["row"]]
    rate = lambda r, name: (size(r), 2 * size(r) / r[name] / 1e3)
    groups = [(f"{keys} keys: M tuples/s of both sides", "tuples a side",
               {name: [rate(r, f"{name}_ms") for r in square if keys in r["row"]] for name in ("no_partition", "radix")}) for keys in ("dense", "sparse")]
    plot.lines(ROOT / "figures/07-joins/plot.svg", groups)
