"""15-recovery: restart of 1 GB of rows from disk, and what the journal costs TPC-C."""
import json
import os
import pathlib
import re
import sys
import tempfile

from .common import built, example, ratios, row, spread, write


def recovery(args):
    """Restart from disk of 1 GB of rows, from a cold page cache; and what the journal costs TPC-C."""
    built_in = built("farhold-bench", "--examples")
    at = pathlib.Path(args.dir or tempfile.gettempdir())
    fills, restores, rates = [], [], {"replicated": [], "disk": []}
    for run in range(args.runs):
        with tempfile.TemporaryDirectory(dir=at, prefix="farhold-recovery-") as folder:
            filled = json.loads(example(built_in, "recovery", "fill", folder, args.warehouses_recovery, may_abort=True))
            for name in pathlib.Path(folder).iterdir():
                with open(name, "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            restored = json.loads(example(built_in, "recovery", "restore", folder))
            if restored["counts"] != filled["counts"]:
                sys.exit(f"rows are missing: {filled['counts']} became {restored['counts']}")
            fills.append(filled)
            restores.append(restored)
    for run in range(args.runs):
        for level in rates:
            with tempfile.TemporaryDirectory(dir=at, prefix="farhold-journal-") as folder:
                output = example(built_in, "tpcc", 2, args.seconds, 2, args.in_flight, *([folder] if level == "disk" else []))
                rates[level].append(float(re.findall(r"^(\d+) transactions/s, ", output, re.M)[-1]))
    seconds, scaled = spread([r["seconds"] for r in restores]), spread([r["seconds"] * 1e9 / r["data_bytes"] for r in restores])
    cost = ratios(rates["disk"], rates["replicated"])
    lines = [f"{restores[0]['rows']:,} rows of TPC-C, {restores[0]['data_bytes']:,} bytes of keys and values, {restores[0]['file_bytes']:,} bytes"
             f" of checkpoint and journal, page cache dropped, {restores[0]['threads']} threads; in a new process until transactions can run.", "",
             "| restart from disk | median | min – max |", "|---|---|---|",
             row("seconds", seconds), row("seconds for 1 GB (wanted: at most 10)", scaled),
             row("writing the checkpoint meanwhile, seconds", spread([f["checkpoint_seconds"] for f in fills])), "",
             f"TPC-C, two workers, two warehouses, {args.in_flight} transactions in flight on each worker:", "",
             "| transactions a second | median | min – max |", "|---|---|---|",
             row("`replicated`, one node", spread(rates["replicated"])), row("`disk`", spread(rates["disk"])),
             row("`disk` / `replicated`, pair by pair", cost)]
    write("15-recovery", "Recovery from disk", {
        "seconds": seconds, "seconds_for_1_gb": scaled, "fills": fills, "restores": restores,
        "rates": {level: spread(values) for level, values in rates.items()}, "disk_over_replicated": cost}, "\n".join(lines))
