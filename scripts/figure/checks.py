"""19-checks: in a fresh clone with nothing compiled; Debian's packages, and what cargo and pip have downloaded before, are there. `warm` without `cold`
before it is measured where this script is, after a `make test` that has passed. `library` is the crate `farhold` without default features: a development build
of what a program of stored procedures links, and the size of such a program. Parts that are not measured keep what they had, with its commit."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from .common import ROOT, earlier, provenance, write

# The demo's line of its first second.
DEMO_RUNS = re.compile(r" +1 s ")


def checks(args):
    environment = {k: v for k, v in os.environ.items() if k != "CARGO_TARGET_DIR"}
    parts = earlier("19-checks", "parts", {})
    wanted = args.parts.split(",")

    def lines_of(where, *command):
        """Each line with the seconds until it came."""
        started = time.monotonic()
        with subprocess.Popen(command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout:
                sys.stderr.write(line)
                yield time.monotonic() - started, line
        if process.returncode:
            sys.exit(f"{' '.join(command)}: exit {process.returncode}")

    def make_test(where):
        """The seconds of each check that ran, and of all with what was installed before them."""
        said = list(lines_of(where, "make", "test"))
        return {m[1]: int(m[2]) for _, line in said if (m := re.match(r"=== (\w+) ok, (\d+) s", line))} | {"all": said[-1][0]}

    def build(where, *flags):
        """The seconds until cargo has built it."""
        return list(lines_of(where, "cargo", "build", "-p", "farhold", "--no-default-features", *flags))[-1][0]

    def measured(part, seconds, **more):
        parts[part] = {"commit": provenance()["commit"], "seconds": seconds, **more}
        titles = {"demo": "`make demo`, cold, to its first transactions", "cold": "`make test`, cold", "warm": "`make test` after a change in farhold-txn",
                  "library": "`cargo build -p farhold --no-default-features`, cold"}
        limits = {"demo": 12, "cold": 50, "warm": 12, "library": 2}
        lines = ["| | minutes | wanted | commit |", "|---|---|---|---|"]
        lines += [f"| {titles[name]} | {of['seconds']['all'] / 60:.1f} | {limits[name]} | {of['commit']} |" for name, of in parts.items()]
        cold, warm = (parts.get(name, {"seconds": {}})["seconds"] for name in ("cold", "warm"))
        shown = lambda seconds: f"{seconds:.0f}" if seconds is not None else ""
        lines += ["", "| check | seconds, cold | after the change |", "|---|---|---|"]
        lines += [f"| {name} | {shown(cold.get(name))} | {shown(warm.get(name))} |" for name in cold | warm if name != "all"]
        if "library" in parts:
            release, size = (parts["library"][key] for key in ("release", "embed_bytes"))
            lines += ["", f"The example `embed`, with the same features and `--release`: {release:.0f} s after nothing else was compiled, {size / 1e6:.1f} MB without debug"
                      " information."]
        write("19-checks", "The checks", {"parts": parts}, lines, profile="dev")

    with tempfile.TemporaryDirectory(prefix="farhold-checks-") as folder:
        clone = pathlib.Path(folder) / "farhold"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if "demo" in wanted:
            measured("demo", {"all": next(at for at, line in list(lines_of(clone, "make", "demo")) if DEMO_RUNS.match(line))})
            shutil.rmtree(clone / "target")
        if "library" in wanted:
            seconds = build(clone)
            release = build(clone, "--release", "--example", "embed")
            program = clone / "target/release/examples/embed"
            subprocess.run(["strip", "--strip-debug", program], check=True)
            measured("library", {"all": seconds}, release=release, embed_bytes=program.stat().st_size)
            shutil.rmtree(clone / "target")
        if "cold" in wanted:
            measured("cold", make_test(clone))
        if "warm" in wanted:
            where = clone if "cold" in wanted else ROOT
            source = where / "crates/farhold-txn/src/lib.rs"
            before = source.read_text()
            source.write_text(before + "\n// Another line.\n")
            try:
                seconds = make_test(where)
            finally:
                source.write_text(before)
            measured("warm", seconds)
