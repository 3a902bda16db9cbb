"""25-misses: which memory a TPC-C transaction waits for as the data grows. Counted by valgrind's model of caches, as virtual machines show no hardware counters."""
import collections
import re
import shutil
import subprocess
import sys
import tempfile

from .common import built, output, write

# The last cache of the model, which is what a processor shares between few cores: 32 MiB, 16 ways, lines of 64 bytes.
LAST_CACHE = "33554432,16,64"
WARM_SECONDS, COUNTED_SECONDS = 5, 40
# What a function's misses are, by the first pattern that its name and file match.
GROUPS = {
    "rows": r"execute::near.*read_near|farhold-fabric/src/copy/|section::|save_undo",
    "hash indexes": r"txn::Txn::get|prefetch_row|store::index::hash|table::lookup",
    "ordered indexes": r"farhold_btree",
    "allocator": r"malloc|_int_free|mi_",
}


def misses_by_group(profile):
    """Misses of reads and of writes in the last cache, by group."""
    said = output("callgrind_annotate", "--auto=no", "--threshold=100", "--show=DLmr,DLmw", "--sort=DLmr", profile)
    found = collections.Counter()
    for line in said[said.index("file:function"):].splitlines()[2:]:
        counts = re.match(r"\s*([\d,]+|\.)\s*(?:\([^)]*\))?\s+([\d,]+|\.)\s*(?:\([^)]*\))?\s+(\S.*)", line)
        if counts:
            number = sum(int(count.replace(",", "")) for count in counts.groups()[:2] if count != ".")
            found[next((name for name, pattern in GROUPS.items() if re.search(pattern, counts[3])), "other")] += number
    return found


def counted(program, warehouses, folder):
    """Transactions while misses were counted, and the misses."""
    profile, seconds = f"{folder}/{warehouses}", WARM_SECONDS + COUNTED_SECONDS + 10
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--cache-sim=yes", f"--LL={LAST_CACHE}", f"--callgrind-out-file={profile}",
               program, str(warehouses), str(seconds), "1"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    rates = []
    for line in running.stdout:
        if rate := re.fullmatch(r"(\d+) transactions/s\n", line):
            rates.append(int(rate[1]))
            # The program prints a line each second.
            if len(rates) in (WARM_SECONDS, WARM_SECONDS + COUNTED_SECONDS):
                subprocess.run(["callgrind_control", "-i", "on" if len(rates) == WARM_SECONDS else "off", str(running.pid)], check=True, capture_output=True)
    if running.wait():
        sys.exit(f"tpcc ended with {running.returncode} under valgrind")
    return sum(rates[WARM_SECONDS:WARM_SECONDS + COUNTED_SECONDS]), misses_by_group(profile)


def misses(_args):
    if not shutil.which("valgrind"):
        sys.exit("this needs valgrind")
    program = built("farhold-bench", "--features", "allocator", "--example", "tpcc", profile="shipped") / "examples/tpcc"
    each = {}
    with tempfile.TemporaryDirectory() as folder:
        for warehouses in (1, 24):
            transactions, found = counted(program, warehouses, folder)
            each[warehouses] = {name: round(found[name] / transactions, 2) for name in [*GROUPS, "other"]}
    head = "| lines a transaction | " + " | ".join(each[1]) + " | all |"
    rows = [f"| {name} warehouses | " + " | ".join(f"{count:.1f}" for count in groups.values()) + f" | {sum(groups.values()):.1f} |"
            for name, groups in each.items()]
    lines = [f"Cache lines that TPC-C on one worker reads or writes and that are not in the last cache of valgrind's model ({LAST_CACHE}: bytes, ways,"
             " bytes of a line), each transaction. The model has no prefetching and no TLB.", "",
             head, "|" + "---|" * (len(GROUPS) + 3), *rows]
    write("25-misses", "Cache misses of TPC-C as the data grows", {"lines_a_transaction": each}, lines, profile="shipped")
