"""What the tests of the binary share."""
import glob
import pathlib
import signal
import sys

from processes import start, url_of

IS_LONG = "--long" in sys.argv[1:]


def ways(first, *others):
    """Those of a test: all of them, or the first."""
    return (first, *others) if IS_LONG else (first,)


def left_behind(process):
    """Files in shared memory of databases that this process has made."""
    return glob.glob(f"/dev/shm/farhold-{process.pid}-*")


def group_is_gone(leader):
    """No process of the session that `leader` began is alive."""
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = pathlib.Path(stat).read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            return False
    return True


def serve(directory, *more, **options):
    if "--memory" not in more:
        more = ("--memory", "256M", *more)
    process = start("serve", "--json", "--dir", directory, "--listen", "127.0.0.1:0", *more, **options)
    return process, url_of(process)


def with_hang_ups(disposition):
    """A process that is started so, whatever this one was started with."""
    return {"preexec_fn": lambda: signal.signal(signal.SIGHUP, disposition)}
