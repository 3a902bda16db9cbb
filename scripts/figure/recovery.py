"""15-recovery: restart from disk of 1 GB of rows, from a cold page cache; and what the journal costs TPC-C."""
import json
import os
import pathlib
import re
import sys
import tempfile

from .common import built, output, ratios, spread, spreads, table, write


def recovery(args):
    examples = built("farhold-bench", "--examples") / "examples"
    at = pathlib.Path(args.dir or tempfile.gettempdir())
    fills, restores, rates = [], [], {"memory": [], "disk": []}
    for run in range(args.runs):
        with tempfile.TemporaryDirectory(dir=at, prefix="farhold-recovery-") as folder:
            filled = json.loads(output(examples / "recovery", "fill", folder, args.warehouses_recovery, may_abort=True))
            for name in pathlib.Path(folder).iterdir():
                with open(name, "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            restored = json.loads(output(examples / "recovery", "restore", folder))
            if restored["counts"] != filled["counts"]:
                sys.exit(f"rows are missing: {filled['counts']} became {restored['counts']}")
            fills.append(filled)
            restores.append(restored)
    for run in range(args.runs):
        for level in rates:
            with tempfile.TemporaryDirectory(dir=at, prefix="farhold-journal-") as folder:
                said = output(examples / "tpcc", 2, args.seconds, 2, args.in_flight, *([folder] if level == "disk" else []))
                rates[level].append(float(re.findall(r"^(\d+) transactions/s, ", said, re.M)[-1]))
    seconds, scaled = spread([r["seconds"] for r in restores]), spread([r["seconds"] * 1e9 / r["data_bytes"] for r in restores])
    over_memory = ratios(rates["disk"], rates["memory"])
    lines = [f"{restores[0]['rows']:,} rows of TPC-C, {restores[0]['data_bytes']:,} bytes of keys and values, {restores[0]['file_bytes']:,} bytes"
             f" of checkpoint and journal, page cache dropped, {restores[0]['threads']} threads; in a new process until transactions can run.", "",
             *table("restart from disk", {
                 "seconds": seconds, "seconds for 1 GB (wanted: at most 10)": scaled,
                 "writing the checkpoint meanwhile, seconds": spread([f["checkpoint_seconds"] for f in fills])}), "",
             f"TPC-C, two workers, two warehouses, {args.in_flight} transactions in flight on each worker:", "",
             *table("transactions a second", {
                 "`memory`, one node": spread(rates["memory"]), "`disk`": spread(rates["disk"]),
                 "`disk` / `memory`, pair by pair": over_memory})]
    write("15-recovery", "Recovery from disk", {
        "seconds": seconds, "seconds_for_1_gb": scaled, "fills": fills, "restores": restores,
        "rates": spreads(rates), "disk_over_memory": over_memory}, lines)
