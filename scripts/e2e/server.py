"""A database that is served: starts, ends, what its commands say."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import duckdb
import psycopg

from processes import ROOT, line_with, run, start, stop, url_of

from .common import left_behind, serve, with_hang_ups


def test_a_hang_up_ends_a_database_unless_it_was_to_be_ignored():
    process = start("serve", "--json", "--memory", "256M", "--listen", "127.0.0.1:0", **with_hang_ups(signal.SIG_DFL))
    url_of(process)
    assert len(left_behind(process)) == 1
    stop(process, signal.SIGHUP)
    assert process.returncode == 0, process.returncode
    assert left_behind(process) == []
    kept = start("serve", "--json", "--memory", "256M", "--listen", "127.0.0.1:0", **with_hang_ups(signal.SIG_IGN))
    url = url_of(kept)
    kept.send_signal(signal.SIGHUP)
    with psycopg.connect(url, autocommit=True) as db:
        assert db.execute("SELECT 1").fetchone() == (1,)
    stop(kept, signal.SIGTERM)
    assert kept.returncode == 0, kept.returncode


def test_rows_and_definitions_survive_the_process():
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            process, url = serve(directory)
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("CREATE TABLE kept (id INT PRIMARY KEY, name TEXT NOT NULL, at TIMESTAMP)")
                db.execute("CREATE INDEX kept_name ON kept (name)")
                db.execute("INSERT INTO kept VALUES (1, 'one', '2026-01-02 03:04:05'), (2, 'two', NULL)")
            stop(process, how)
            process, url = serve(directory)
            with psycopg.connect(url, autocommit=True) as db:
                assert db.execute("SELECT id, name FROM kept ORDER BY id").fetchall() == [(1, "one"), (2, "two")]
                assert db.execute("SELECT id FROM kept WHERE name = 'two'").fetchall() == [(2,)]
                db.execute("INSERT INTO kept VALUES (3, 'three', NULL)")
                try:
                    db.execute("INSERT INTO kept VALUES (1, 'again', NULL)")
                    raise AssertionError("a duplicate key went in after the restart")
                except psycopg.errors.UniqueViolation:
                    pass
            stop(process)


def test_crashes_are_the_systems_to_tell():
    """Libraries that libfabric loads handle the signals of a crash, and write files into the working directory."""
    for how in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            process, _ = serve(directory)
            before = set(os.listdir("."))
            stop(process, how)
            assert process.returncode == -how, (how, process.returncode)
            assert not [name for name in set(os.listdir(".")) - before if name.endswith(".btr")]


def test_second_start_says_who_holds_the_directory():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        process, _ = serve(directory)
        second = run("serve", "--dir", directory, "--listen", "127.0.0.1:0")
        assert second.returncode != 0
        assert str(process.pid) in second.stderr, second.stderr
        stop(process)


def test_serving_strangers_needs_a_password():
    refused = run("serve", "--listen", "0.0.0.0:0")
    assert refused.returncode != 0 and "password" in refused.stderr, refused.stderr


def test_port_in_use_is_said():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        process, url = serve(directory)
        address = url.split("@")[1].split("/")[0]
        second = run("serve", "--listen", address)
        assert second.returncode != 0 and address in second.stderr, second.stderr
        stop(process)


def test_sql_command():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        process, url = serve(directory)
        answer = run("sql", "--connect", url, "-c", "SELECT 1 AS one; SELECT 'a' AS x")
        assert answer.returncode == 0 and "one" in answer.stdout and "(1 row)" in answer.stdout, answer
        answer = run("sql", "--json", "--connect", url, "-c", "SELECT 1 AS one")
        assert json.loads(answer.stdout) == {"one": "1"}, answer
        answer = run("sql", "--connect", url, "-c", "SELECT * FROM nowhere")
        assert answer.returncode != 0 and "42P01" in answer.stderr, answer
        stop(process)
    answer = run("sql", "--connect", "postgresql://farhold@127.0.0.1:1/farhold", "-c", "SELECT 1")
    assert answer.returncode != 0 and "farhold serve" in answer.stderr, answer


def test_import_csv_and_parquet():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, tempfile.TemporaryDirectory() as files:
        process, url = serve(directory)
        oracle = duckdb.connect()
        oracle.execute(
            "CREATE TABLE t AS SELECT i::BIGINT AS id, 'name, \"' || i AS name, (i / 100)::DECIMAL(12,2) AS price,"
            " DATE '2026-01-01' + (i % 365)::INT AS day, CASE WHEN i % 7 = 0 THEN NULL ELSE i * 1.5::DOUBLE END AS maybe"
            " FROM range(20000) AS r(i)"
        )
        for kind, options in (("parquet", "(FORMAT parquet)"), ("csv", "(HEADER)")):
            file = f"{files}/rows_{kind}.{kind}"
            oracle.execute(f"COPY t TO '{file}' {options}")
            done = run("import", "--json", file, "--create", "id", "--connect", url)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["rows"] == 20000
            with psycopg.connect(url, autocommit=True) as db:
                query = "SELECT count(*), sum(id), sum(price), min(day), count(maybe), sum(maybe) FROM "
                ours = db.execute(query + f"rows_{kind}").fetchone()
                theirs = oracle.execute(query + "t").fetchone()
                assert [str(float(v)) if not hasattr(v, "year") else str(v)[:10] for v in ours] == [
                    str(float(v)) if not hasattr(v, "year") else str(v)[:10] for v in theirs], (kind, ours, theirs)
        codes = pathlib.Path(files) / "codes.csv"
        codes.write_text("id,code,moment,amount\n1,007,2026-01-01 10:00:00+02,1.50\n2,42,,0.05\n")
        done = run("import", codes, "--create", "id", "--connect", url)
        assert done.returncode == 0, done.stderr
        with psycopg.connect(url, autocommit=True) as db:
            rows = db.execute("SELECT code, moment, amount::text FROM codes ORDER BY id").fetchall()
            assert rows == [("007", "2026-01-01 10:00:00+02", "1.50"), ("42", None, "0.05")], rows
        broken = pathlib.Path(files) / "broken.csv"
        broken.write_text("id,name,price,day,maybe\n30001,a,2.5,2026-01-01,1\n30002,b,not a price,2026-01-01,1\n")
        failed = run("import", broken, "--table", "rows_csv", "--connect", url)
        assert failed.returncode != 0 and "22P02" in failed.stderr, failed
        # A table that the command has made goes with it.
        twice = pathlib.Path(files) / "twice.csv"
        for lines, code in (("1,a\n1,b\n", "23505"), ("1,a\n2\n", "22P04")):
            twice.write_text(f"id,name\n{lines}")
            failed = run("import", twice, "--create", "id", "--connect", url)
            assert failed.returncode != 0 and code in failed.stderr and "dropped again" in failed.stderr, failed
        twice.write_text("id,name\n1,a\n2,b\n")
        for made in (True, False):
            done = run("import", twice, "--create", "id", "--connect", url)
            assert (done.returncode == 0) == made and ("42P07" in done.stderr) != made, done
        with psycopg.connect(url, autocommit=True) as db:
            assert db.execute("SELECT count(*) FROM twice").fetchone() == (2,)
        failed = run("import", f"{files}/none.csv", "--connect", url)
        assert failed.returncode != 0 and "none.csv" in failed.stderr, failed
        stop(process)


def test_fabric_info_and_key_value_bench():
    info = json.loads(run("fabric", "info", "--json", "--milliseconds", 100).stdout)
    # A device or a reason, never both.
    assert info["mover"].keys() in ({"engine", "queue"}, {"engine", "no_dsa_queue"}), info["mover"]
    providers = info["providers"]
    shm = next(provider for provider in providers if provider["name"] == "shm")
    assert shm["instructions"]["compare_swap"]["native"], shm
    assert {figure["bytes"] for figure in shm["figures"] if figure["instruction"] == "read"} >= {64, 1 << 20}, shm
    flags = ["--sizes", "128,1024", "--keys", 500, "--seconds", 1, "--writers", 1, "--zipf", 0.99]
    for put in ("message", "transaction"):
        done = run("bench", "--json", "kv", *flags, "--put", put)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert [result["configuration"]["value_bytes"] for result in results] == [128, 1024], done
        assert all(result["farhold"]["gets_per_second"] > 0 for result in results), done


def test_queries_beside_transactions_see_what_was_acknowledged():
    # The journal is in memory: on a busy disk a commit may wait longer than the 3 s that the bench runs, and then none would be counted.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as journals:
        flags = ["--mixes", "1:1", "--runs", 1, "--seconds", 3, "--warm-up", 0, "--in-flight", 20, "--journal", journals]
        done = run("bench", "--json", "htap", *flags)
        assert done.returncode == 0, done
        measured = {one["kept"]: one for one in json.loads(done.stdout.splitlines()[-1])["measured"]}
        assert measured.keys() == {"columns", "rows"}, done
        for one in measured.values():
            assert one["transactions_per_second"] > 0 and one["freshness"]["checks"] > 0 and not one["freshness"]["missed"], one
        assert measured["columns"]["waits_us"]["views"] > 0 and measured["rows"]["waits_us"]["views"] == 0, measured
        assert not os.listdir(journals), os.listdir(journals)


def test_ch_answers_equal_duckdbs():
    bench = start("bench", "--json", "ch", "--warehouses", 1, "--stay", "--listen", "127.0.0.1:0", "--columns", "all")
    listen = json.loads(line_with(bench, '"listening"'))["listen"]
    oracle = subprocess.run(
        [sys.executable, str(ROOT / "scripts/ch_oracle.py"), "--port", listen.rsplit(":", 1)[1], "--columns"],
        capture_output=True, text=True, timeout=600,
    )
    assert oracle.returncode == 0, oracle.stdout[-4000:] + oracle.stderr[-4000:]
    stop(bench)
