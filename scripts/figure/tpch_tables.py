"""29-tpch-tables: TPC-H's queries on tables of Farhold, as columns and as rows, and in DuckDB over the same rows in memory."""
import itertools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import plot

from .common import ROOT, ratios, spread, write
from .served import Served, seconds
from .tpch import bench

SQL = ROOT / "crates/farhold-bench/sql"
NAMES = ("columns", "rows", "duckdb")
# A query that takes longer fails.
QUERY_MINUTES_MAX = 10
# COPY commits after so many rows: a node with a journal takes transactions of at most 8 MiB.
COPY_CHUNK_ROWS = 20_000
COPY_BYTES = 1 << 20
# Query 11's fraction in its text: that of scale factor 1.
FRACTION = "0.0001000000"


def tpch_tables(args):
    results, lines = {}, []
    for scale in args.scale.split(","):
        result = measured(float(scale), args.runs, files(scale), args.dir)
        results[f"scale {scale}"] = result
        lines += table(scale, result)
    write("29-tpch-tables", "TPC-H on tables, as columns and as rows, and in DuckDB", {"results": results}, lines)
    plot.bars(ROOT / "figures/29-tpch-tables/plot.svg", [
        (f"TPC-H {title}: milliseconds", [f"Q{number}" for number in result["queries"]],
         {name: [query[name]["median"] if name in query else None for query in result["queries"].values()] for name in NAMES})
        for title, result in results.items()])
    if failed := [f"{title}, Q{number}: {why}" for title, result in results.items() for number, why in result["skipped"].items()]:
        sys.exit("\n".join(failed))


def files(scale):
    """The folder of a scale factor's rows as Parquet files, one folder a table. The bench makes them before it runs a query."""
    root = pathlib.Path(tempfile.gettempdir()) / "farhold-tpch"
    folder = root / f"sf{float(scale):g}"
    if not folder.is_dir():
        subprocess.run([*bench("release", scale), "--folder", root, "--queries", "6", "--runs", "1"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


def queries_of(scale):
    """The text of each query, by its number."""
    return {int(path.stem[1:]): path.read_text().replace(FRACTION, f"{0.0001 / scale:.10f}") for path in sorted((SQL / "tpch").glob("q*.sql"))}


def measured(scale, runs, folder, disk):
    """Loads the rows into all three, and runs each query in turns."""
    import duckdb

    queries = queries_of(scale)
    threads = len(os.sched_getaffinity(0))
    gigabytes = 4 * max(1, round(scale))
    with tempfile.TemporaryDirectory(dir=disk) as home:
        # Without flags a node has as many threads for queries as there are processors.
        node = lambda name, *flags: Served(
            "serve", "--json", "--listen", "127.0.0.1:0", "--memory", f"{gigabytes}G", "--query-memory", f"{gigabytes}G", "--column-memory", f"{gigabytes}G",
            "--durability", "disk", "--journal", pathlib.Path(home) / name, *flags)
        with node("columns") as columns, node("rows", "--columns", "none") as rows, duckdb.connect(config={"threads": threads}) as duck:
            nodes = {"columns": columns, "rows": rows}
            load_s = load(duck, nodes, folder, pathlib.Path(home))
            columns.wait_for_columns()
            kept = columns.run("SELECT relname, state, table_rows, table_bytes, bytes FROM pg_catalog.farhold_columns ORDER BY relname")
            for one in nodes.values():
                one.run_only(f"SET statement_timeout = '{QUERY_MINUTES_MAX}min'")
            by = {name: one.run for name, one in nodes.items()} | {"duckdb": lambda sql: duck.execute(sql).fetchall()}
            times, skipped = {}, {}
            for number, sql in queries.items():
                duck.execute(sql)
                times[number], why = run_query(sql, [column[0] for column in duck.description], by, runs)
                if why:
                    skipped[number] = why
                print(f"Q{number}", why or {name: round(statistics.median(all_of), 1) for name, all_of in times[number].items()}, file=sys.stderr, flush=True)
    compared = [of for number, of in times.items() if number not in skipped]
    sums = {name: [sum(of[name][run] for of in compared) for run in range(runs)] for name in NAMES}
    return {
        "scale": scale, "threads": threads, "runs": runs, "duckdb": duckdb.__version__, "load_s": load_s, "skipped": skipped,
        "queries": {number: {name: spread(all_of) for name, all_of in of.items() if len(all_of) == runs} for number, of in times.items()},
        "ratios": {number: against(times[number]) for number in queries if number not in skipped},
        "sums_ms": {name: spread(all_of) for name, all_of in sums.items()}, "sums_ratios": against(sums),
        "tables": [{"table": name, "state": state, "rows": count, "row_bytes": of_rows, "column_bytes": of_columns} for name, state, count, of_rows, of_columns in kept],
    }


def against(times):
    """The time on columns relative to the others', pair by pair."""
    return {other: ratios(times["columns"], times[other]) for other in ("duckdb", "rows")}


def load(duck, nodes, folder, home):
    """The same rows into all: DuckDB reads the files, a node a COPY of CSV. The seconds of each."""
    load_s = dict.fromkeys(NAMES, 0.0)
    for definition, name in re.findall(r"(CREATE TABLE (\w+) .*?\n\));", (SQL / "tpch.sql").read_text(), re.DOTALL):
        # An index for each key would only take DuckDB memory.
        duck.execute(re.sub(r",\s*PRIMARY KEY \(.*\)", "", definition))
        load_s["duckdb"] += seconds(duck.execute, f"INSERT INTO {name} SELECT * FROM read_parquet('{folder}/{name}/*.parquet')")[0]
        csv = home / f"{name}.csv"
        duck.execute(f"COPY {name} TO '{csv}' (HEADER false)")
        for kind, node in nodes.items():
            node.run_only(definition)
            load_s[kind] += copy_in(node, name, csv)
        csv.unlink()
    return load_s


def copy_in(node, table, csv):
    node.run_only(f"SET farhold.copy_chunk_rows = {COPY_CHUNK_ROWS}")
    started = time.perf_counter()
    with node.connection.cursor() as cursor, open(csv, "rb") as file:
        with cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
            while read := file.read(COPY_BYTES):
                copy.write(read)
    return time.perf_counter() - started


def run_query(sql, names, by, runs):
    """The times of each in milliseconds, after a run that warms up; and why the query is not compared, if one fails or answers differently."""
    import duckdb
    import psycopg

    times = {name: [] for name in by}
    for turn in range(runs + 1):
        answers = {}
        # Which one is first changes.
        for name in list(by)[turn % 3:] + list(by)[:turn % 3]:
            try:
                took, answers[name] = seconds(by[name], sql)
            except (psycopg.Error, duckdb.Error) as error:
                return times, f"fails on {name}: {str(error).splitlines()[0]}"
            if turn:
                times[name].append(took * 1000)
        for name in ("columns", "rows"):
            if wrong := difference(answers[name], answers["duckdb"], names, sql):
                return times, f"is wrong on {name}, or in DuckDB: {wrong}"
    return times, None


def difference(ours, theirs, names, sql):
    """How an answer differs from DuckDB's; None: not at all. Rows that ORDER BY leaves in any order may come in any order, and of those that
    a LIMIT divides, any may be there."""
    import ch_oracle

    if len(ours) != len(theirs):
        return f"{len(ours)} rows, DuckDB has {len(theirs)}"
    # No inner query has an ORDER BY or a LIMIT, and what an ORDER BY names is a column of the result.
    order, limit = re.search(r"\border by\s+(.*?)\s*(?:\blimit (\d+)\s*)?$", sql, re.DOTALL).groups() if "order by" in sql else ("", None)
    order = [names.index(word) for word in re.findall(r"(\w+)(?: desc)?(?:,|$)", order)]
    sorted_by = lambda row: [row[at] for at in order]
    in_any_order = [at for at in range(len(names)) if not any(isinstance(row[at], float) for row in [*ours, *theirs])]
    exact = lambda row: [(row[at] is None, row[at].rstrip() if isinstance(row[at], str) else row[at]) for at in in_any_order]
    first = 0
    for _, group in itertools.groupby(theirs, sorted_by):
        group = list(group)
        last = first + len(group)
        pair = [sorted(rows, key=exact) for rows in (ours[first:last], group)]
        if limit and last == int(limit):
            pair = [[sorted_by(row) for row in rows] for rows in pair]
        if found := next(ch_oracle.differences(*pair), None):
            return f"of rows {first + 1} to {last}, {found}"
        first = last
    return None


def table(scale, result):
    runs, skipped = result["runs"], result["skipped"]
    lines = [f"## Scale factor {scale}", "",
             f"{runs} runs in turns after one that warms up, {result['threads']} threads for each, milliseconds until all rows of the answer have arrived (of Farhold"
             " through the PostgreSQL protocol): median (min – max). Both nodes have a journal on disk. `columns` keeps tables of 65,536 rows and more as columns"
             f" too, `rows` keeps none. DuckDB {result['duckdb']} has the same rows in memory, in tables of the same types without keys, and runs in the client."
             " Ratios are those of each pair of runs.", "",
             "Each answer is compared with DuckDB's: floating-point numbers to one part in 10^6, everything else exactly; rows that ORDER BY leaves in any order, in"
             f" any order. {22 - len(skipped)} of 22 queries agree in all runs" + (", the others are in no sum:" if skipped else "."), "",
             *[f"- Q{number} {why}" for number, why in skipped.items()], *([""] if skipped else []),
             "| query | columns | rows | DuckDB | columns / DuckDB | columns / rows |", "|---|---|---|---|---|---|"]
    cells = lambda of: [f"{of[name]['median']:,.1f} ({of[name]['min']:,.1f} – {of[name]['max']:,.1f})" if name in of else "skipped" for name in NAMES]
    quotients = lambda of: [f"{of[other]['median']:.2f} ({of[other]['min']:.2f} – {of[other]['max']:.2f})" for other in ("duckdb", "rows")]
    for number, of in result["queries"].items():
        lines.append(f"| Q{number} | {' | '.join(cells(of) + (quotients(result['ratios'][number]) if number in result['ratios'] else ['', '']))} |")
    of_duckdb, of_rows = quotients(result["sums_ratios"])
    lines += [f"| sum | {' | '.join(cells(result['sums_ms']))} | {of_duckdb}{' (wanted: at most 1.2)' if float(scale) == 1 else ''} | {of_rows} |", "",
              "| table | rows | MB of rows | MB of columns | columns |", "|---|---|---|---|---|"]
    lines += [f"| {one['table']} | {one['rows']:,} | {one['row_bytes'] / 1e6:.1f} | {one['column_bytes'] / 1e6:.1f} | {one['state']} |" for one in result["tables"]]
    load_s = result["load_s"]
    return [*lines, "", f"Loading took {load_s['columns']:.0f} s with columns, {load_s['rows']:.0f} s without, by COPY of CSV through the protocol; DuckDB read Parquet files in"
            f" {load_s['duckdb']:.0f} s.", ""]
