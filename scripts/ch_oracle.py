#!/usr/bin/env python3
"""Runs the 22 CH-benCHmark queries on a PostgreSQL-protocol server and on DuckDB over the same rows, and compares the answers.

The rows come from the server itself by `SELECT`, unless --rows names a directory of CSV files with headers. The server must
be quiet meanwhile: no transaction may change the tables between the export and the last query. Integers, decimals, texts and
timestamps must agree exactly and in order; floating-point numbers, and decimals that DuckDB computes as such (averages),
to one part in 10^6. Prints a line a query; exit 1 if one differs.
"""
import argparse
import csv
import datetime
import decimal
import math
import pathlib
import sys
import tempfile
import time

import duckdb
import psycopg

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUERIES = sorted((ROOT / "crates/farhold-bench/sql/ch").glob("q*.sql"))
TABLES = [
    "warehouse", "district", "customer", "history", "new_order", "orders", "order_line", "item", "stock",
    "region", "nation", "supplier",
]
# PostgreSQL type numbers -> DuckDB types.
TYPES = {
    16: "BOOLEAN", 21: "SMALLINT", 23: "INTEGER", 20: "BIGINT", 700: "REAL", 701: "DOUBLE", 25: "VARCHAR",
    1042: "VARCHAR", 1043: "VARCHAR", 1082: "DATE", 1114: "TIMESTAMP",
}
NUMERIC, BPCHAR = 1700, 1042
ROWS_PER_FETCH = 20_000
FIRST_DIFFERENCES = 3


def duck_type(column):
    """The DuckDB type of a result column of psycopg."""
    if column.type_code == NUMERIC:
        return f"DECIMAL({column.precision or 38}, {column.scale or 0})"
    return TYPES[column.type_code]


def export(server, table, directory):
    """Writes a table to a CSV file; returns the columns' DuckDB definitions."""
    with server.cursor() as cursor, open(directory / f"{table}.csv", "w", newline="") as file:
        cursor.execute(f"SELECT * FROM {table}")
        columns = cursor.description
        blank_padded = [i for i, column in enumerate(columns) if column.type_code == BPCHAR]
        writer = csv.writer(file)
        writer.writerow(column.name for column in columns)
        while rows := cursor.fetchmany(ROWS_PER_FETCH):
            for row in rows:
                if blank_padded:
                    row = list(row)
                    for i in blank_padded:
                        row[i] = row[i].rstrip(" ")
                writer.writerow(row)
        return ", ".join(f"{column.name} {duck_type(column)}" for column in columns)


def definition(server, table):
    """The DuckDB definition of a table's columns, without its rows."""
    with server.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} LIMIT 0")
        return ", ".join(f"{column.name} {duck_type(column)}" for column in cursor.description)


def copy_to_duckdb(server, rows):
    """A DuckDB database with the server's tables; from the CSV files of `rows` if given."""
    duck = duckdb.connect()
    with tempfile.TemporaryDirectory(prefix="ch-oracle-") as temporary:
        directory = pathlib.Path(rows or temporary)
        for table in TABLES:
            columns = definition(server, table) if rows else export(server, table, directory)
            duck.execute(f"CREATE TABLE {table} ({columns})")
            duck.execute(f"COPY {table} FROM '{directory / (table + '.csv')}' (HEADER)")
    return duck


def same(left, right):
    """Two values agree."""
    if left is None or right is None:
        return left is None and right is None
    if isinstance(left, float) or isinstance(right, float):
        return math.isclose(float(left), float(right), rel_tol=1e-6, abs_tol=1e-6)
    numbers = (int, decimal.Decimal)
    if isinstance(left, numbers) and isinstance(right, numbers):
        return decimal.Decimal(left) == decimal.Decimal(right)
    if isinstance(left, str) and isinstance(right, str):
        return left.rstrip(" ") == right.rstrip(" ")
    if isinstance(left, datetime.datetime) and isinstance(right, datetime.datetime):
        return left.replace(tzinfo=None) == right.replace(tzinfo=None)
    return left == right


def differences(left, right):
    """Descriptions of the rows in which two results differ."""
    if len(left) != len(right):
        yield f"{len(left)} rows, DuckDB has {len(right)}"
    for number, (a, b) in enumerate(zip(left, right), 1):
        if len(a) != len(b) or not all(map(same, a, b)):
            yield f"row {number}: {a}, DuckDB has {b}"


def wait_for_columns(server):
    """Until all of them are built."""
    until = time.monotonic() + 300
    while not (states := [state for state, in server.execute("SELECT state FROM pg_catalog.farhold_columns")]) or any(state == "building" for state in states):
        if time.monotonic() > until:
            sys.exit(f"the columns are not built: {states}")
        time.sleep(0.2)
    assert "kept" in states, states


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", default="farhold")
    parser.add_argument("--dbname", default="farhold")
    parser.add_argument("--rows", help="directory of CSV files, one a table, instead of an export")
    parser.add_argument("--query", type=int, action="append", help="only this query; may be repeated")
    parser.add_argument("--columns", action="store_true", help="of a Farhold that keeps its tables as columns: wait for them, and run each query on rows too")
    arguments = parser.parse_args()
    failed = 0
    with psycopg.connect(
        host=arguments.host, port=arguments.port, user=arguments.user, dbname=arguments.dbname, autocommit=True
    ) as server:
        started = time.monotonic()
        if arguments.columns:
            # What is compared must not be exported from itself.
            server.execute("SET farhold.access_path = 'rows'")
        duck = copy_to_duckdb(server, arguments.rows)
        if arguments.columns:
            wait_for_columns(server)
        print(f"copied {len(TABLES)} tables in {time.monotonic() - started:.1f} s", flush=True)
        for path in QUERIES:
            number = int(path.stem[1:])
            if arguments.query and number not in arguments.query:
                continue
            sql = path.read_text()
            started = time.monotonic()
            try:
                with server.cursor() as cursor:
                    answer = cursor.execute(sql).fetchall()
                if arguments.columns:
                    server.execute("SET farhold.access_path = 'auto'")
                    on_columns = server.execute(sql).fetchall()
                    server.execute("SET farhold.access_path = 'rows'")
            except psycopg.Error as error:
                failed += 1
                print(f"Q{number:<3} FAILED: {error}", flush=True)
                continue
            seconds, started = time.monotonic() - started, time.monotonic()
            expected = duck.execute(sql).fetchall()
            duck_seconds = time.monotonic() - started
            found = list(differences(answer, expected))
            if arguments.columns:
                found += [f"on columns, {what}" for what in differences(on_columns, expected)]
            verdict = "DIFFERS" if found else "agrees"
            print(f"Q{number:<3} {verdict}, {len(answer)} rows, {seconds:.3f} s, DuckDB {duck_seconds:.3f} s", flush=True)
            for line in found[:FIRST_DIFFERENCES]:
                print(f"     {line}")
            failed += bool(found)
    print(f"{failed} queries differ or failed" if failed else "every answer agrees")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
