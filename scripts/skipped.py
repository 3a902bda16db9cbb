"""What a check skips because this machine lacks it: said, and put on the list that scripts/run-checks prints at its end."""
import os
import pathlib
import sys


def skipped(why):
    line = f"{pathlib.Path(sys.argv[0]).name}: {why}"
    print(f"SKIPPED: {line}", file=sys.stderr)
    if name := os.environ.get("FARHOLD_SKIPPED"):
        with open(name, "a") as file:
            file.write(line + "\n")
