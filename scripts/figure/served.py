"""A node that answers SQL through the PostgreSQL protocol, for figures that compare queries."""
import json
import subprocess
import sys
import time

from .common import FARHOLD


class Served:
    """A node, until the block ends. The command says with `--json` where it listens."""

    def __init__(self, *command):
        self.command = [str(FARHOLD), *map(str, command)]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        import psycopg

        said = self.process.stdout.readline()
        if not said:
            sys.exit(f"{' '.join(self.command)} has ended before it was ready")
        host, port = json.loads(said)["listen"].rsplit(":", 1)
        self.connection = psycopg.connect(host=host, port=port, user="farhold", dbname="farhold", autocommit=True)
        return self

    def __exit__(self, *_):
        self.connection.close()
        self.process.terminate()
        self.process.wait()

    def run(self, sql):
        return self.connection.execute(sql).fetchall()

    def run_only(self, sql):
        """Runs a statement that answers no rows."""
        self.connection.execute(sql)

    def wait_for_columns(self):
        """Until all columns that are wanted have been built, and merging has come to rest."""
        until, before = time.monotonic() + 600, None
        while (now := self.run("SELECT relname, state, segments, segment_rows, delta_rows FROM pg_catalog.farhold_columns ORDER BY relname")) != before or any(
                row[1] == "building" for row in now):
            if time.monotonic() > until:
                sys.exit("the columns do not come to rest within ten minutes")
            before = now
            time.sleep(2)


def seconds(run, sql):
    started = time.perf_counter()
    rows = run(sql)
    return time.perf_counter() - started, rows
