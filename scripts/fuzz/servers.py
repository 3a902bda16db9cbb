"""PostgreSQL and Farhold for one process of the fuzzer: started on free ports in temporary directories, ended with it."""
import glob
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from processes import FARHOLD, LIMIT_S, url_of  # noqa: E402


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def version_of(program):
    return int(pathlib.Path(program).parts[-3])


def program(name):
    """A program of the newest PostgreSQL here; Debian keeps the server's out of the PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), key=version_of)
    found = found[-1] if found else shutil.which(name)
    if not found:
        sys.exit(f"PostgreSQL's {name} is missing: scripts/install-deps test installs it")
    return found


class Postgres:
    """A cluster of its own: no fsync, text sorts by bytes, UTC. PostgreSQL refuses to run as root, so there it is the user postgres."""

    def __enter__(self):
        self.home = tempfile.mkdtemp(prefix="farhold-fuzz-")
        self.port = free_port()
        data = f"{self.home}/data"
        self.user = None
        if os.getuid() == 0:
            self.user = pwd.getpwnam("postgres" if "postgres" in {u.pw_name for u in pwd.getpwall()} else "nobody")
            os.chown(self.home, self.user.pw_uid, self.user.pw_gid)
        self._as_user([program("initdb"), "-D", data, "-U", "farhold", "-A", "trust", "-E", "UTF8", "--locale=C", "--lc-ctype=C.UTF-8", "--no-sync"])
        options = {
            "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off", "timezone": "UTC", "max_connections": 40,
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.home, "jit": "off", "max_wal_size": "256MB",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self.log = open(f"{self.home}/log", "wb")
        self.process = subprocess.Popen([program("postgres"), "-D", data, *settings], stdout=self.log, stderr=self.log, start_new_session=True, **self._demoted())
        deadline = time.monotonic() + LIMIT_S
        while subprocess.run([program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]).returncode:
            assert self.process.poll() is None and time.monotonic() < deadline, pathlib.Path(f"{self.home}/log").read_text()
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(LIMIT_S)
        self.log.close()
        shutil.rmtree(self.home)

    def url(self, database="postgres"):
        return f"postgresql://farhold@127.0.0.1:{self.port}/{database}"

    def _demoted(self):
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [], "cwd": self.home} if self.user else {}

    def _as_user(self, command):
        done = subprocess.run(command, capture_output=True, text=True, **self._demoted())
        assert done.returncode == 0, done.stderr


class Farhold:
    """One node; `flags` say with how much memory. `keeps_columns`: it has a journal, and its scans read columns."""

    def __init__(self, *flags, keeps_columns=False):
        self.flags, self.keeps_columns = flags, keeps_columns

    def __enter__(self):
        self.journal = None
        if self.keeps_columns:
            # In memory: what is fuzzed is no disk.
            self.journal = tempfile.TemporaryDirectory(prefix="farhold-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        # A file takes what panics say; a pipe would fill and stop the server.
        self.errors = tempfile.TemporaryFile(mode="w+")
        flags = ["serve", "--json", "--listen", "127.0.0.1:0", "--memory", "512M", "--threads", "2", *self.flags]
        if self.journal:
            flags += ["--durability", "disk", "--journal", self.journal.name, "--columns", "all"]
        self.process = subprocess.Popen([FARHOLD, *flags], stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True, env={**os.environ, "RUST_BACKTRACE": "0"})
        self._url = url_of(self.process)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()
        self.errors.close()
        if self.journal:
            self.journal.cleanup()

    def last_words(self):
        self.errors.seek(0)
        return self.errors.read()[-1500:]

    def url(self):
        return self._url

    def again(self):
        """Starts another in the place of one that has ended, or answers no more."""
        self.process.kill()
        self.__exit__()
        self.__enter__()
