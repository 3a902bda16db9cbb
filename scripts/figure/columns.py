"""26-columns: CH-benCHmark's queries on columns, on rows, and in DuckDB over the same rows in memory; the bytes of the columns."""
import os
import pathlib
import statistics
import sys
import tempfile

from .common import ROOT, spread, write
from .served import Served, seconds


def columns(args):
    sys.path.insert(0, str(ROOT / "scripts"))
    import ch_oracle
    import duckdb

    queries = {int(path.stem[1:]): path.read_text() for path in ch_oracle.QUERIES}
    times = {number: {"columns": [], "rows": [], "duckdb": []} for number in queries}
    bench = ["bench", "--json", "ch", "--warehouses", args.warehouses, "--stay"]
    with tempfile.TemporaryDirectory() as folder, Served(*bench) as rows, Served(
            *bench, "--columns", "auto", "--durability", "disk", "--journal", pathlib.Path(folder) / "journal") as kept:
        kept.wait_for_columns()
        duck = ch_oracle.copy_to_duckdb(rows.connection, None)
        duck.execute(f"SET threads = {os.cpu_count()}")
        # Each node's orders have the time of its own load.
        oracles = {"columns": ch_oracle.copy_to_duckdb(kept.connection, None), "rows": duck}
        sizes = kept.run("SELECT relname, table_rows, table_bytes, bytes, state FROM pg_catalog.farhold_columns WHERE bytes > 0 ORDER BY relname")
        by = {"columns": kept.run, "rows": rows.run, "duckdb": lambda sql: duck.execute(sql).fetchall()}
        for number, sql in sorted(queries.items()):
            for turn in range(args.runs):
                answers = {}
                # Which one is first changes.
                for name in list(by)[turn % 3:] + list(by)[:turn % 3]:
                    took, answers[name] = seconds(by[name], sql)
                    times[number][name].append(took * 1000)
                for name in ("columns", "rows"):
                    if wrong := list(ch_oracle.differences(answers[name], oracles[name].execute(sql).fetchall())):
                        sys.exit(f"query {number} on {name}: {wrong[0]}")
            print(f"Q{number}", {name: round(statistics.median(all_of), 1) for name, all_of in times[number].items()}, file=sys.stderr, flush=True)
    medians = {number: {name: statistics.median(all_of) for name, all_of in each.items()} for number, each in times.items()}
    sums = {name: sum(each[name] for each in medians.values()) for name in by}
    lines = [f"{args.warehouses} warehouses, no writers, {args.runs} runs in turns, milliseconds until all rows of the answer have arrived (of Farhold through the"
             f" PostgreSQL protocol). DuckDB {duckdb.__version__} has the same rows in memory and runs in the client, with {os.cpu_count()} threads."
             " The answers of all three agree.", "",
             "| query | columns | rows | DuckDB | columns / rows | columns / DuckDB |", "|---|---|---|---|---|---|"]
    lines += [f"| {n} | {m['columns']:.1f} | {m['rows']:.1f} | {m['duckdb']:.1f} | {m['columns'] / m['rows']:.2f} | {m['columns'] / m['duckdb']:.2f} |"
              for n, m in sorted(medians.items())]
    lines += [f"| all | {sums['columns']:.0f} | {sums['rows']:.0f} | {sums['duckdb']:.0f} | {sums['columns'] / sums['rows']:.2f} (wanted: at most 0.6) |"
              f" {sums['columns'] / sums['duckdb']:.2f} (wanted: at most 1.0; none above 2) |", "",
              "| table | rows | MB of rows | MB of columns | ratio |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {count:,} | {of_rows / 1e6:.1f} | {of_columns / 1e6:.1f} | {of_columns / of_rows:.2f} |" for name, count, of_rows, of_columns, _ in sizes]
    all_rows, all_columns = (sum(size[at] for size in sizes) for at in (2, 3))
    lines.append(f"| all | | {all_rows / 1e6:.1f} | {all_columns / 1e6:.1f} | {all_columns / all_rows:.2f} (wanted: at most 0.35) |")
    write("26-columns", "CH-benCHmark on columns, on rows, and in DuckDB", {
        "warehouses": args.warehouses, "runs": args.runs, "duckdb": duckdb.__version__, "sums_ms": sums,
        "queries": {number: {name: spread(all_of) for name, all_of in each.items()} for number, each in times.items()},
        "bytes": [{"table": name, "rows": count, "of_rows": of_rows, "of_columns": of_columns} for name, count, of_rows, of_columns, _ in sizes],
    }, lines)
