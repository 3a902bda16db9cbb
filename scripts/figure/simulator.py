"""12-simulator: simulated transactions a second, and the planted defects."""
import json
import subprocess

from .common import built, row, spread, write


def simulator(args):
    program = built("farhold-sim", profile="whole") / "farhold-sim"
    rate_of = lambda *flags: json.loads(subprocess.run([str(program), "rate", "--seeds", "200", *flags], capture_output=True, text=True).stdout)
    runs, alone = [], []
    for _ in range(args.runs):
        runs.append(rate_of())
        alone.append(rate_of("--jobs", "1"))
    rate, rate_alone = (spread([run["transactions_per_second"] for run in of]) for of in (runs, alone))
    teeth = subprocess.run([str(program), "teeth"], capture_output=True, text=True)
    last = runs[-1]
    lines = ["Committed transactions of the simulated clusters a second of real time: starting three nodes, faults, recovery, healing and",
             "all checks included. The seeds run mixed transactions, SmallBank and TPC-C. Each has one thread; as many run at once as there are processors.", "",
             "| | median | min – max |", "|---|---|---|", row(f"transactions/s, {last['jobs']} seeds at a time (wanted: 50,000)", rate),
             row("seeds/s", spread([run["seeds_per_second"] for run in runs])), row("transactions/s, one seed at a time", rate_alone), "",
             f"Of {last['seeds']} seeds {last['not_in_order']} were not in order.", "", "## Planted defects", "", teeth.stdout.strip()]
    write("12-simulator", "The simulator", {"runs": runs, "alone": alone, "rate": rate, "rate_alone": rate_alone, "teeth": teeth.stdout.splitlines()}, "\n".join(lines))
