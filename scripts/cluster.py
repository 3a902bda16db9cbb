"""Clusters of three processes with copies of their rows, which lose nodes and get them back."""
import json
import os
import shutil
import signal
import sys
import tempfile

from etcd import free_ports
from processes import LIMIT_S, run, start, stop, until, url_of

NODES = 3


class Cluster:
    """Three nodes; by default each row is on all of them. Use it in a `with`: its directory goes at the end.

    The end of a process is known at once. The lease is so long that no machine with too much to do takes a slow node for one that stands still: on a
    third of a processor the threads that renew leases were seen to stand for more than a second."""

    def __init__(self, replicas=NODES, lease_ms=5000, journal=None, durability="disk", columns="auto"):
        self.replicas = replicas
        self.flags = ["--replicas", replicas, "--lease-ms", lease_ms, "--columns", columns]
        if journal:
            self.flags += ["--durability", durability, "--journal", journal]
        if durability == "nvm":
            self.flags.append("--assume-persistence")
        # Clients keep this list, and find a node that has started again in it.
        self.urls = [None] * NODES

    def __enter__(self):
        self.home = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.directory = self.home.name
        self._start_all()
        return self

    def __exit__(self, failed, *_):
        for number, node in enumerate(self.nodes):
            if failed and node.poll() is not None:
                print(f"node {number} had ended with {node.returncode}: {node.stderr.read()}", file=sys.stderr)
            stop(node, signal.SIGKILL if failed else signal.SIGINT)
        self.home.cleanup()

    def status(self):
        return json.loads(run("--json", "cluster", "status", "--dir", self.directory).stdout)

    def lose(self, lost, how=signal.SIGKILL):
        """Strikes a node, and returns once the others serve its rows; one that stands still is ended by them first."""
        self.nodes[lost].send_signal(how)
        assert self.nodes[lost].wait(LIMIT_S) == -signal.SIGKILL, self.nodes[lost].stderr.read()

        def taken_over():
            self._others_live(lost)
            now = self.status()
            return now["nodes"][lost]["role"] == "gone" and sum(len(node["serves"]) for node in now["nodes"]) == NODES

        until(taken_over, lambda: f"the rows of node {lost}: {self.status()}")

    def get_back(self, lost):
        """Starts a lost node again, and returns once all copies are whole."""
        stop(self.nodes[lost], signal.SIGKILL)
        self.nodes[lost] = self._start(lost)
        self.urls[lost] = url_of(self.nodes[lost])

        def are_whole():
            self._others_live(None)
            copies = [node["copies"] for node in self.status()["nodes"]]
            return all(len(of_node) == self.replicas - 1 and all(copy["whole"] for copy in of_node) for of_node in copies)

        until(are_whole, lambda: f"all copies: {self.status()}")

    def lose_all(self):
        """Kills all nodes, gives up the memory of their rows, and starts them on their journals."""
        for node in self.nodes:
            node.send_signal(signal.SIGKILL)
        for node in self.nodes:
            stop(node, signal.SIGKILL)
        shutil.rmtree(self.directory)
        os.mkdir(self.directory)
        self._start_all()

    def _start_all(self):
        self.nodes = [self._start(node) for node in range(NODES)]
        self.urls[:] = [url_of(node) for node in self.nodes]

    def _start(self, node):
        return start(
            "serve", "--json", "--dir", self.directory, "--listen", "127.0.0.1:0", "--memory", "128M", "--threads", 2,
            "--node", node, "--nodes", NODES, *self.flags,
        )

    def _others_live(self, lost):
        """Nobody has ended by itself, as one that was too slow for its lease does."""
        for number, node in enumerate(self.nodes):
            assert number == lost or node.poll() is None, f"node {number} has ended: {node.stderr.read()}"


class Hosts(Cluster):
    """As on three hosts: the nodes share no memory, and agree in an etcd on who belongs to the cluster."""

    def __init__(self, etcd_port, lease_ms):
        super().__init__(lease_ms=lease_ms)
        self.register = f"etcd://127.0.0.1:{etcd_port}/hosts"
        self.ports = free_ports(NODES)

    def status(self):
        """None: the register does not answer."""
        done = run("--json", "cluster", "status", "--register", self.register)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def directory_of(self, node):
        return f"{self.directory}/host{node}"

    def _start(self, node):
        peers = "".join(f"&peer={peer}@127.0.0.1:{self.ports[peer]}" for peer in range(NODES) if peer != node)
        provider = f"libfabric:tcp;ofi_rxm?listen=127.0.0.1:{self.ports[node]}{peers}&secret-file={self.directory}/secret"
        return start(
            "serve", "--json", "--dir", self.directory_of(node), "--listen", "127.0.0.1:0", "--memory", "128M", "--threads", 2,
            "--node", node, "--nodes", NODES, *self.flags, "--provider", provider, "--register", self.register,
        )
