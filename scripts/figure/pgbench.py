"""05-pgbench: point reads by pgbench, over TCP and Unix sockets; beside the PostgreSQL of `--rival-port`."""
import json
import pathlib
import re
import subprocess
import tempfile

from .common import FARHOLD, in_turns, ratios, row, spread, write


def pgbench(args):
    sockets = tempfile.TemporaryDirectory()
    serving = subprocess.Popen([str(FARHOLD), "serve", "--json", "--listen", "127.0.0.1:0", "--memory", "2G",
                                "--pin", "--unix-socket-dir", sockets.name], stdout=subprocess.PIPE, text=True)
    try:
        port = json.loads(serving.stdout.readline())["listen"].rsplit(":", 1)[1]
        fill = ["pgbench", "-h", "127.0.0.1", "-U", "farhold", "-p", port, "-i", "-q", "-s", "10", "farhold"]
        subprocess.run(fill, check=True, capture_output=True)
        hosts = {"TCP": ("127.0.0.1", "127.0.0.1")}
        if args.rival_socket_dir or not args.rival_port:
            hosts["Unix socket"] = (sockets.name, args.rival_socket_dir)
        ours, theirs, latency = ({name: [] for name in hosts} for _ in range(3))
        for name, (host, rival_host) in in_turns(args.runs, hosts):
            rate, p99 = pgbench_once(["pgbench", "-h", host, "-U", "farhold"], port, "farhold", args.seconds)
            ours[name].append(rate)
            latency[name].append(p99)
            if args.rival_port:
                rate, _ = pgbench_once(["pgbench", "-h", rival_host, "-U", "postgres"], args.rival_port, "postgres", args.seconds)
                theirs[name].append(rate)
    finally:
        serving.terminate()
        serving.wait()
        sockets.cleanup()
    lines = ["`pgbench -S -M prepared -c 8 -j 4`, scale 10, `farhold serve --pin`; clients and server share the cores, and the kernel's sockets take most of them.", "",
             "| | median | min – max |", "|---|---|---|"]
    results = {}
    for name in hosts:
        result = results[name] = {"queries_per_second": spread(ours[name]), "p99_ms": spread(latency[name])}
        lines += [row(f"Farhold, {name}, queries/s", spread(ours[name])), row(f"Farhold, {name}, p99 in ms", spread(latency[name]))]
        if theirs[name]:
            result |= {"postgresql": spread(theirs[name]), "ratio": ratios(ours[name], theirs[name])}
            wanted = " (wanted: 1.3)" if name == "TCP" else ""
            lines += [row(f"PostgreSQL 15, {name}, queries/s", spread(theirs[name])), row(f"ratio, {name}, pair by pair{wanted}", result["ratio"])]
    write("05-pgbench", "Point reads through the PostgreSQL protocol", results, lines)


def pgbench_once(client, port, database, seconds):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*client, "-p", str(port), "-n", "-S", "-M", "prepared", "-c", "8", "-j", "4", "-T", str(seconds), "-l",
             f"--log-prefix={folder}/log", database], check=True, capture_output=True, text=True)
        rate = float(re.search(r"tps = ([0-9.]+)", done.stdout)[1])
        latencies = sorted(int(line.split()[2]) for log in pathlib.Path(folder).iterdir() for line in open(log))
        return rate, latencies[len(latencies) * 99 // 100] / 1000
