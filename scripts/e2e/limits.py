"""What the binary takes at most: memory, open files."""
import os
import pathlib
import re
import resource
import tempfile
import threading

import psycopg

from processes import start, stop, until, url_of

from .common import serve


MIB = 1 << 20


class Memory:
    """The most memory that a process holds from now on, in MiB: its own, or shared memory (RssShmem)."""

    def __init__(self, process, kind="RssAnon"):
        self.status, self.kind = pathlib.Path(f"/proc/{process.pid}/status"), kind
        self.most = self.before = self.now()
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self.watch)

    def now(self):
        return int(re.search(rf"{self.kind}:\s+(\d+) kB", self.status.read_text()).group(1)) / 1024

    def watch(self):
        while not self.over.wait(0.002):
            self.most = max(self.most, self.now())

    def __enter__(self):
        self.watcher.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.watcher.join()

    def grown(self):
        return self.most - self.before


def test_memory_limits_hold_for_long_rows():
    """Rows of 60 KB, 176 MiB a table, through queries that may hold 60 MiB, their joins 24."""
    # What is beside the limits: batches in flight on two threads, the allocator's free pages (docs/guide/joins.md).
    slack = 64
    queries = [
        "SELECT count(*), sum(length(l.t)), max(length(r.t)) FROM l JOIN r ON l.id = r.id",
        "SELECT count(*), sum(length(l.t || r.t)) FROM l JOIN r ON l.id = r.k",
        "SELECT count(*), min(length(l.t)), count(r.t) FROM l FULL JOIN r ON l.k = r.k AND l.id < r.id",
        "SELECT l.t, r.t FROM l JOIN r ON l.id = r.id",
        "SELECT t FROM (SELECT * FROM l UNION ALL SELECT * FROM r) u JOIN (SELECT id AS j FROM l) i ON u.id = i.j",
        "SELECT max(length(rpad(t, 100000))) FROM l",
        "SELECT l.t, r.id FROM l JOIN r ON l.id < r.id AND r.id < l.id + 3",
        "SELECT l.t, r.id FROM l LEFT JOIN (SELECT id FROM r) r ON l.id < r.id AND r.id < l.id + 3",
        "SELECT t FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.id < l.id)",
        "SELECT sum(n) FROM (SELECT string_to_array(repeat('a,', 50000), ',') a, 1 n FROM l) a",
        "SELECT t, count(*) FROM l GROUP BY t",
        "SELECT left(t, 3), count(*) FROM l GROUP BY 1",
        "SELECT count(DISTINCT t) FROM l",
        "SELECT t FROM l INTERSECT SELECT t FROM r",
        "SELECT array_length(array_agg(left(t, 100)), 1) FROM l",
        "SELECT t FROM l WHERE length(t) > id",
        "SELECT max(length(t)) FROM (SELECT t FROM l WHERE t LIKE '%0%' OR id > 0) l",
    ]
    refused = {
        "SELECT array_length(array_agg(t), 1) FROM l": "53200",
        "SELECT t FROM l ORDER BY t, id": "53200",
        "SELECT id, t, sum(k) OVER () FROM l": "53200",
        "SELECT id, last_value(t) OVER () FROM l": "53200",
        "SELECT id, max(t) OVER () FROM l": "53200",
        "SELECT l.t, r.t FROM l JOIN r ON l.id < r.id AND r.id < l.id + 3": "53200",
        "SELECT array_length(string_to_array(repeat('a,', 5000000), ','), 1)": "53200",
        "SELECT length(repeat('x', 2000000000))": "54000",
        "SELECT length(repeat('x', 200000000))": "53200",
    }
    # Of texts that all differ: what is taken beside the limit is at most as much again.
    differing = [
        "SELECT count(DISTINCT t) FROM d",
        "SELECT t FROM d UNION SELECT t FROM d",
        "SELECT (SELECT max(t) FROM d WHERE d.id = l.id) FROM l",
        "SELECT k, array_agg(t) FROM d GROUP BY k",
        "SELECT id, max(t) FROM d GROUP BY id",
        "SELECT id, t, row_number() OVER (PARTITION BY k ORDER BY id) FROM d",
        "UPDATE l SET k = k + 1 WHERE t IN (SELECT t FROM d)",
    ]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        process, url = serve(
            directory, "--memory", "900M", "--query-memory", "60M", "--join-memory", "24M",
            env=os.environ | {"MIMALLOC_PURGE_DELAY": "100"},
        )
        try:
            with psycopg.connect(url, autocommit=True) as db:
                for table in "lr":
                    db.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, k INT, t TEXT)")
                    for start_at in range(0, 3000, 100):
                        rows = ", ".join(f"({n}, {n % 1000}, repeat('{n % 10}', 60000))" for n in range(start_at, start_at + 100))
                        db.execute(f"INSERT INTO {table} VALUES {rows}")
                for query in queries:
                    with Memory(process) as memory, db.cursor() as cursor:
                        rows = sum(1 for _ in cursor.stream(query))
                    assert rows in (1, 10, 2999, 3000, 5997, 5998, 6000), (query, rows)
                    assert memory.grown() <= 60 + slack, f"{memory.grown():.0f} MiB: {query}"
                db.execute("CREATE TABLE d (id INT PRIMARY KEY, k INT, t TEXT)")
                for start_at in range(0, 3000, 100):
                    rows = ", ".join(f"({n}, {n % 1000}, {n} || repeat('x', 60000))" for n in range(start_at, start_at + 100))
                    db.execute(f"INSERT INTO d VALUES {rows}")
                for query in differing:
                    with Memory(process) as memory:
                        try:
                            db.execute(query)
                            raise AssertionError(f"{query} has room")
                        except psycopg.Error as error:
                            assert error.sqlstate == "53200", (query, error)
                    assert memory.grown() <= 2 * 60 + slack, f"{memory.grown():.0f} MiB: {query}"
                for query, state in refused.items():
                    with Memory(process) as memory:
                        try:
                            db.execute(query)
                            raise AssertionError(f"{query} has room")
                        except psycopg.Error as error:
                            assert error.sqlstate == state, (query, error)
                    assert memory.grown() <= 60 + slack, f"{memory.grown():.0f} MiB: {query}"
                # The memory of a large transaction is the system's again when the server is idle.
                with Memory(process) as memory:
                    db.execute("UPDATE r SET k = (SELECT max(id) FROM l)")
                assert memory.grown() > 150
                until(lambda: memory.now() < memory.before + slack, "the memory is given back")
        finally:
            stop(process)


def with_descriptors(soft, hard):
    """A process that may open so many files, and raise that so far."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}


def test_a_server_opens_as_many_files_as_it_may():
    process = start("serve", "--json", "--memory", "256M", "--listen", "127.0.0.1:0", **with_descriptors(64, 300))
    try:
        url = url_of(process)
        limits = pathlib.Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"Max open files +300 +300 ", limits), limits
        connections = [psycopg.connect(url, autocommit=True) for _ in range(80)]
        assert connections[-1].execute("SELECT 1").fetchone() == (1,)
        for connection in connections:
            connection.close()
    finally:
        stop(process)


def test_memory_for_rows_holds():
    """A node with room for 128 MiB of rows refuses more than that, keeps what it has, and takes rows again where some were deleted."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        process, url = serve(directory, "--memory", "128M")
        try:
            with psycopg.connect(url, autocommit=True) as db, Memory(process, "RssShmem") as rows_memory:
                db.execute("CREATE TABLE t (id INT PRIMARY KEY, t TEXT)")
                insert = "INSERT INTO t SELECT g.i, repeat('x', 60000) FROM generate_series({}, {}) g(i)"

                def fill(first):
                    """Ten rows at a time; how many there was room for."""
                    for start_at in range(first, first + 5000, 10):
                        try:
                            db.execute(insert.format(start_at, start_at + 9))
                        except psycopg.Error as error:
                            assert error.sqlstate == "53200", error
                            return start_at - first
                    raise AssertionError("there is no limit")

                # Pages and indexes take some of it.
                with Memory(process) as own_memory:
                    taken = fill(0)
                assert 0.7 * 128 * MIB < taken * 60_000 < 128 * MIB, taken
                assert db.execute("SELECT count(*), sum(length(t)) FROM t").fetchone() == (taken, taken * 60_000)
                db.execute("DELETE FROM t WHERE id % 2 = 0")
                assert fill(10_000) > taken * 0.4
                assert own_memory.grown() <= 64, f"{own_memory.grown():.0f} MiB beside the rows"
                assert rows_memory.grown() <= 128 + 16, f"{rows_memory.grown():.0f} MiB of rows"
        finally:
            stop(process)
