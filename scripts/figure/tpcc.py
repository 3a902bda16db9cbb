"""01-tpcc: one node runs TPC-C in a process of its own without SQL, which is built in minutes; three nodes are the program's, which takes half
an hour (`--processes`)."""
import re
import subprocess

from .common import built, farhold, output, ratios, spreads, table, write


def data_name(warehouses):
    return f"one worker, {warehouses} warehouses"


def tpcc_of_one_node(program, warehouses, workers, seconds):
    """Its transactions a second, and the bytes of its rows and keys, and of what they take."""
    said = output(program, warehouses, seconds, workers)
    used, data, keys = map(int, re.search(r"(\d+) bytes for (\d+) of rows and (\d+) of index keys", said).groups())
    return float(re.search(r"(\d+) transactions/s, ", said)[1]), {"data": data + keys, "used": used}


def tpcc(args):
    shapes = {"one worker": (1, 1), "two workers": (2, 2)} | {data_name(warehouses): (warehouses, 1) for warehouses in (8, 24)}
    program = built("farhold-bench", "--features", "allocator", "--example", "tpcc", profile="shipped") / "examples/tpcc"
    processes, flags = "three node processes", ["--nodes", 3, "--workers", 1, "--in-flight", 2]  # one runs while another waits for an answer
    rates = {name: [] for name in shapes} | ({processes: []} if args.processes else {})
    rival_name, _, rival_command = (args.rival or "").partition("=")
    rival = {name: [] for name in shapes}
    for _ in range(args.runs):
        for name, (warehouses, workers) in shapes.items():
            rate, memory = tpcc_of_one_node(program, warehouses, workers, args.seconds)
            rates[name].append(rate)
            if name == "one worker":
                memory_of_one = memory
            if rival_command:
                command = rival_command.format(threads=workers, seconds=args.seconds, warehouses=warehouses)
                output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout.split()
                rival[name].append(float(re.findall(r"[0-9.]+", output[-1])[-1]))
        if args.processes:
            rates[processes].append(farhold("bench", "--json", "tpcc", *flags, "--seconds", args.seconds, "--pin")["transactions_per_second"])
    one = rates["one worker"]
    compared = {
        "two workers / one worker (wanted: 1.8)": ratios(rates["two workers"], one),
        "8 warehouses / 1": ratios(rates[data_name(8)], one),
        "24 warehouses / 1 (wanted: 0.65)": ratios(rates[data_name(24)], one),
    }
    if rival_command:
        compared |= {
            f"{name} / {rival_name}" + (" (wanted: 1.5)" if name == "one worker" else ""): ratios(rates[name], rival[name]) for name in rival}
        compared[f"{rival_name}, 24 warehouses / 1"] = ratios(rival[data_name(24)], rival["one worker"])
    if args.processes:
        compared["three node processes / one worker (wanted: 2.4)"] = ratios(rates[processes], one)
    ours, theirs = spreads(rates), spreads(rival)
    of_all = {f"Farhold, {name}": v for name, v in ours.items()} | {f"{rival_name}, {name}": v for name, v in theirs.items()}
    ratio = memory_of_one["used"] / memory_of_one["data"]
    lines = ["Transactions a second, full mix, closed loop without think time; warehouses = workers where nothing else is said.", "",
             *table("configuration", of_all), "", *table("ratio, pair by pair", compared), "",
             f"Memory after the population of one warehouse: {memory_of_one['used']:,} bytes for {memory_of_one['data']:,} bytes of rows and keys:"
              f" {ratio:.2f}x (wanted: at most 1.4)."]
    write("01-tpcc", "TPC-C", {
        "rates": ours, "rival": {"name": rival_name, "rates": theirs}, "ratios": compared, "memory": memory_of_one}, lines, profile="shipped")
