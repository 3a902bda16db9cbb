"""12-simulator: simulated transactions a second, and the planted defects."""
import json

from .common import built, output, row, spread, write


def simulator(args):
    program = built("farhold-sim", profile="whole") / "farhold-sim"
    rate_of = lambda *flags: json.loads(output(program, "rate", "--seeds", 200, *flags, may_abort=True))
    runs, alone = [], []
    for _ in range(args.runs):
        runs.append(rate_of())
        alone.append(rate_of("--jobs", "1"))
    rate, rate_alone = (spread([run["transactions_per_second"] for run in of]) for of in (runs, alone))
    teeth = output(program, "teeth", may_abort=True)
    last = runs[-1]
    lines = ["Committed transactions of the simulated clusters a second of real time: starting three nodes, faults, recovery, healing and",
             "all checks included. The seeds run mixed transactions, SmallBank and TPC-C. Each has one thread; as many run at once as there are processors.", "",
             "| | median | min – max |", "|---|---|---|", row(f"transactions/s, {last['jobs']} seeds at a time (wanted: 50,000)", rate),
             row("seeds/s", spread([run["seeds_per_second"] for run in runs])), row("transactions/s, one seed at a time", rate_alone), "",
             f"Of {last['seeds']} seeds {last['not_in_order']} were not in order.", "", "## Planted defects", "", teeth.strip()]
    write("12-simulator", "The simulator", {"runs": runs, "alone": alone, "rate": rate, "rate_alone": rate_alone, "teeth": teeth.splitlines()}, lines)
