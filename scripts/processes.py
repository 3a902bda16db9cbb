"""Processes of the binary, target/debug/farhold (or $FARHOLD), for the tests that are scripts."""
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FARHOLD = os.environ.get("FARHOLD", str(ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/farhold"))
# Ends what hangs, also on a third of a processor.
LIMIT_S = 600


def run(*args, **more):
    """Runs the binary to its end."""
    return subprocess.run([FARHOLD, *map(str, args)], capture_output=True, text=True, timeout=LIMIT_S, **more)


def start(*args, **more):
    """Starts the binary; its standard output comes line by line."""
    return subprocess.Popen(
        [FARHOLD, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more
    )


def line_with(process, text):
    """Reads the process's output up to a line that holds `text`; one that does not come in the end is not waited for."""
    seen = []
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            seen.append(line)
            if text in line:
                return line
    finally:
        watchdog.cancel()
    raise AssertionError(f"ended without {text!r}: {seen} {process.stderr.read()}")


def until(condition, what):
    """Waits for something another process does; fails after a limit, and says what it waited for: a text, or what makes one."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what() if callable(what) else what}"
        time.sleep(0.02)


def stop(process, how=signal.SIGINT):
    process.send_signal(how)
    process.wait(LIMIT_S)
    process.stdout.close()
    process.stderr.close()


def url_of(process):
    """Where a process that has just started takes clients."""
    listen = json.loads(line_with(process, '"listening"'))["listen"]
    return f"postgresql://farhold@{listen}/farhold"
