"""18-join-budgets: joins within a part of the build side's bytes, on one thread and on all; and under a memory limit of the kernel a quarter above that."""
import sys

from .common import recorded, write
from .joins import join_bench


def budget(args):
    measured = join_bench(args, "--arrow")
    done, limited = recorded(["scripts/join-in-cgroup", "--release", "--sides", "64,256,1024", "--parts", "2,4,10"], capture_output=True)
    if done.returncode not in (0, 1, 77):
        sys.exit(done.stderr)
    lines = [f"Arrow batches, 16 M rows of 16 bytes a side, sparse keys; {args.runs} rounds, turn and turn about. Slowdown: the time over that in memory on"
             " as many threads, round by round. `by key`: both sides are distributed among the threads by a hash of the key first, which is in the time, as in plans"
             " whose statistics say that the build side will not fit; `one build side`: all threads probe one, as in plans without statistics. In memory it is one"
             " build side. A join in memory takes 1.4 GiB, which the kernel (and the host of a virtual machine) clears first; one that gets the pages of the round before does"
             " without that: `over kept pages`.", "", "## Slowdown (wanted: 1.6, 2.2, 4)", "",
             "| budget, of the build side's bytes | MiB | spilled MiB | M tuples/s | slowdown | min – max | over kept pages |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {r['row']} | {r['budget_mib'] or r['reserved_mib']:.0f} | {r['spilled_mib']:.0f} | {r['mtuples_s']:.1f} | {r['slowdown']:.2f} |"
              f" {r['slowdown_min']:.2f} – {r['slowdown_max']:.2f} | {r['over_kept_pages']:.2f} |" for r in measured]
    lines += ["", "## Under a memory limit a quarter above the budget (wanted: none is killed)", ""]
    if not limited:
        lines.append(f"Not run: {done.stderr.strip()}")
    else:
        killed = sum(not r["ok"] for r in limited)
        lines += [f"{len(limited)} joins of rows of 64 bytes, {killed} failed. Resident: the process's own most, which the limit has to hold. The cgroup's most counts the page"
                  " cache of the spill files as well, which the kernel fills the limit with and takes back.", "",
                  "| sides, MiB | budget, MiB | limit, MiB | join | resident, MiB | of the limit | cgroup, MiB | spilled, MiB | s | |", "|---|---|---|---|---|---|---|---|---|---|"]
        show = lambda value, form: "" if value is None else format(value, form)
        lines += [f"| {r['side_mib']} | {r['budget_mib']:.1f} | {r['limit_mib']} | {r['shape']} | {show(r['resident_mib'], '.0f')} |"
                  f" {show(r['resident_mib'] and r['resident_mib'] / r['limit_mib'], '.2f')} | {show(r['cgroup_peak_mib'], '.1f')} | {show(r['spilled_mib'], '.0f')} |"
                  f" {show(r['seconds'], '.2f')} | {'' if r['ok'] else 'FAILED'} |" for r in limited]
    write("18-join-budgets", "Joins within a memory budget", {"measured": measured, "limited": limited or []}, lines)
