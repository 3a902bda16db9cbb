"""Nodes that end, an etcd that stands still, and what was acknowledged."""
import json
import pathlib
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

import smallbank
from cluster import NODES, Cluster, Hosts
from etcd import Etcd, SlowWay, has_etcd
from processes import LIMIT_S, run, until

from .common import ways


def test_a_lost_node_is_replaced_and_comes_back():
    for how in (signal.SIGKILL, signal.SIGSTOP):
        with Cluster() as cluster:
            smallbank.create(cluster.urls[0], clients=2)
            before = cluster.status()
            assert [node["role"] for node in before["nodes"]] == ["member"] * 3, before
            assert {lag["on"] for lag in before["nodes"][0]["lag"]} >= {1, 2}, before
            assert all(node["running"] and node["recovery"] == "nothing" for node in before["nodes"]), before
            clients = [smallbank.Client([cluster.urls[node]], node) for node in range(2)]
            for client in clients:
                client.goes_on(50)
            cluster.lose(2, how)
            for client in clients:
                client.goes_on(200)
            cluster.get_back(2)
            smallbank.end(clients, 50, LIMIT_S)
            for url in cluster.urls:
                smallbank.audit(url, clients)


def acknowledged(clients):
    for client in clients:
        assert not client.failure, client.failure
    return sum(client.acknowledged for client in clients)


def refused(url):
    """A commit does not happen, and the client hears a state that says to try again, in time."""
    began = time.monotonic()
    with psycopg.connect(url, autocommit=True) as db:
        try:
            db.execute("UPDATE savings SET balance = balance WHERE id = 1")
        except psycopg.Error as error:
            took = time.monotonic() - began
            assert error.sqlstate == "40001" and took < 60, (error.sqlstate, error, took)
            return
    raise AssertionError("a commit without a lease")


def without_the_register(etcd, lease_s, take_away, give_back):
    """A cluster of hosts whose register is away or too slow: for less than a lease nothing happens; for longer, commits stop, and go on after."""
    with Hosts(etcd, lease_ms=lease_s * 1000) as hosts:
        smallbank.create(hosts.urls[0], clients=3)
        clients = [smallbank.Client([hosts.urls[node]], node) for node in range(NODES)]
        for client in clients:
            client.goes_on(20)
        before = hosts.status()
        assert [node["role"] for node in before["nodes"]] == ["member"] * NODES, before

        def said():
            return [(node["pid"], node["recovery"]) for node in hosts.status()["nodes"]]

        # What nodes say of themselves is in the register too.
        until(lambda: said() == [(node.pid, "nothing") for node in hosts.nodes], lambda: f"what nodes say: {said()}")
        take_away()
        time.sleep(lease_s / 3)
        give_back()
        for client in clients:
            client.goes_on(20)
        take_away()
        # By then every renewal that was begun before is over.
        time.sleep(2 * lease_s)
        stopped = acknowledged(clients)
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(refused, hosts.urls))
        status = run("cluster", "status", "--register", hosts.register, "--dir", hosts.directory_of(1))
        assert status.returncode != 0 and "register of the cluster does not answer" in status.stderr, status
        here = f"node 1, process {hosts.nodes[1].pid}: the register of the cluster does not answer"
        assert here in status.stdout, status
        assert acknowledged(clients) == stopped, "a commit was acknowledged without a lease"
        give_back()
        for client in clients:
            client.goes_on(20)
        until(lambda: hosts.status() is not None, "the register's answer")
        after = hosts.status()
        assert after["configuration"] == before["configuration"], ("somebody was expelled", before, after)
        assert all(node.poll() is None for node in hosts.nodes), "a node has ended"
        smallbank.end(clients, 20, LIMIT_S)
        for url in hosts.urls:
            smallbank.audit(url, clients)


def test_an_etcd_that_stands_still_stops_commits_and_loses_nothing():
    if not has_etcd():
        return
    with Etcd() as etcd:
        without_the_register(etcd.port, 5, etcd.stand_still, etcd.go_on)


def test_an_etcd_that_is_too_slow_stops_commits_and_loses_nothing():
    if not has_etcd():
        return
    lease_s = 5
    with Etcd() as etcd, SlowWay(etcd.port) as way:
        # Two calls make a renewal: slow enough for no renewal to be in time. A little slowness is nothing.
        way.delay_s = 0.02
        without_the_register(
            way.port, lease_s, lambda: setattr(way, "delay_s", lease_s), lambda: setattr(way, "delay_s", 0.02))


def again(statement):
    """Does it, again while others are in the way."""
    def is_done():
        try:
            statement()
        except psycopg.errors.SerializationFailure:
            return False
        return True

    until(is_done, "a statement that nobody is in the way of any more")


def test_what_is_given_up_on_other_nodes_is_free_again():
    """Keys of all nodes: inserted and rolled back, inserted by somebody else, deleted, inserted again."""
    with Cluster() as cluster:
        one, other = (psycopg.connect(url, autocommit=True) for url in cluster.urls[:2])
        again(lambda: one.execute("CREATE TABLE t (id INT PRIMARY KEY, by INT)"))

        def give_up(key):
            with one.transaction(force_rollback=True):
                one.execute("INSERT INTO t VALUES (%s, 1)", [key])

        for _ in range(3):
            for key in range(30):
                again(lambda: give_up(key))
            for key in range(30):
                again(lambda: other.execute("INSERT INTO t VALUES (%s, 2)", [key]))
            assert one.execute("SELECT count(*), min(by) FROM t").fetchone() == (30, 2)
            again(lambda: one.execute("DELETE FROM t"))
            assert other.execute("SELECT count(*) FROM t").fetchone() == (0,)
        one.close()
        other.close()


def test_tpcc_goes_on_without_a_node_and_shows_it():
    for how in ways([], ["--freeze"]):
        with tempfile.TemporaryDirectory() as directory:
            picture = pathlib.Path(directory) / "run.svg"
            done = run(
                "bench", "--json", "tpcc", "--nodes", 3, "--warehouses", 3, "--seconds", 20, "--in-flight", 4, "--memory", "2G",
                "--replicas", 2, "--lease-ms", 3000, "--kill-after", 2, "--return-after", 5, *how, "--plot", picture, "--audit",
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr
            events = [json.loads(line) for line in done.stdout.splitlines()]
            assert [event["violations"] for event in events if event.get("event") == "condition"] == [0] * 12, events
            result = events[-1]
            struck = "node 2 stopped" if how else "node 2 killed"
            marks = [mark["what"] for mark in result["marks"]]
            assert marks[:3] == [struck, "the others go on without node 2", "node 2's rows are served again"], marks
            assert marks[-1] == "every row has all its copies again", marks
            assert result["recovery"]["before"] > 0 and result["recovery"]["after"] > 0, result
            drawn = picture.read_text()
            assert drawn.startswith("<svg") and all(mark in drawn for mark in marks), drawn


def test_tpcc_comes_back_from_the_journals_of_all_nodes():
    for copies in ways([], ["--replicas", 2, "--lease-ms", 5000]):
        with tempfile.TemporaryDirectory() as journal:
            done = run(
                "bench", "--json", "tpcc", "--nodes", 2, "--warehouses", 2, "--seconds", 4, "--in-flight", 8, "--memory", "1G",
                "--durability", "disk", "--journal", journal, "--kill-all-after", 2, "--audit", *copies,
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr
            events = [json.loads(line) for line in done.stdout.splitlines()]
            conditions = [event["violations"] for event in events if event.get("event") == "condition"]
            assert conditions == [0] * 12, conditions
            result = events[-1]
            assert result["acknowledged_before_all_were_killed"] > 50, result
            assert result["transactions_per_second"] > 0 and len(result["marks"]) == 2, result


def test_all_nodes_end_under_smallbank_and_come_back_from_their_journals():
    for replicas, durability in ((1, "disk"), (3, "disk"), (2, "nvm")):
        with tempfile.TemporaryDirectory() as journal, Cluster(replicas, journal=journal, durability=durability) as cluster:
            smallbank.create(cluster.urls[0], clients=3)
            clients = [smallbank.Client(cluster.urls, number) for number in range(3)]
            for _ in range(2):
                for client in clients:
                    client.goes_on(20)
                cluster.lose_all()
                for url in cluster.urls:
                    smallbank.audit(url, clients)
            smallbank.end(clients, 20, LIMIT_S)
            smallbank.audit(cluster.urls[0], clients)


def test_a_kill_of_all_without_a_journal_is_refused():
    refused = run("bench", "tpcc", "--kill-all-after", 1)
    assert refused.returncode != 0 and "--durability disk" in refused.stderr, refused
