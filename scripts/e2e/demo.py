"""`farhold demo`: how it ends, and what it leaves behind."""
import json
import os
import signal

import psycopg

from processes import LIMIT_S, line_with, start, stop, until, url_of

from .common import group_is_gone, left_behind, ways, with_hang_ups


def test_demo_ends_consistent_and_leaves_nothing():
    demo = start("demo", "--json", "--warehouses", 3, "--seconds", 3, "--listen", "127.0.0.1:0")
    output, errors = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 0, output[-3000:] + errors
    events = [json.loads(line) for line in output.splitlines()]
    summary = events[-1]
    assert summary["event"] == "summary"
    assert summary["conditions_held"] == 12 and summary["conditions_violated"] == 0, summary
    assert summary["lost"] == [] and summary["sql_inconsistent"] == 0, summary
    assert summary["commits"] > 1000 and summary["sql_answers"] > 0, summary
    assert {t["name"] for t in summary["transactions"]} == {
        "new-order", "payment", "order-status", "delivery", "stock-level"}, summary
    assert sum(e["event"] == "second" for e in events) >= 2
    assert left_behind(demo) == []


def test_demo_that_kills_a_node_loses_nothing():
    demo = start("demo", "--json", "--kill", "--warehouses", 3, "--seconds", 8, "--listen", "127.0.0.1:0")
    output, errors = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 0, output[-3000:] + errors
    events = [json.loads(line) for line in output.splitlines()]
    happened = [event["what"] for event in events if event["event"] == "mark"]
    assert happened == [
        "node 2 killed", "the others go on without node 2", "node 2's rows are served again", "node 2 started again",
        "node 2 is a member again", "every row has all its copies again"], happened
    summary = events[-1]
    assert summary["event"] == "summary" and summary["conditions_held"] == 12, summary
    assert summary["lost"] == [] and summary["sql_inconsistent"] == 0 and summary["commits"] > 100, summary
    assert left_behind(demo) == []


def test_interrupted_demo_leaves_nothing():
    for marker in ways('"loaded"', '"second"'):
        demo = start("demo", "--json", "--warehouses", 3, "--seconds", 60, "--listen", "127.0.0.1:0")
        line_with(demo, marker)
        stop(demo)
        assert demo.returncode != 0
        until(lambda: group_is_gone(demo.pid), "node processes of an interrupted demo")
        assert left_behind(demo) == []


def test_killed_demo_leaves_no_process_and_no_file():
    demo = start("demo", "--json", "--warehouses", 3, "--seconds", 60, "--listen", "127.0.0.1:0")
    line_with(demo, '"second"')
    stop(demo, signal.SIGKILL)
    until(lambda: group_is_gone(demo.pid), "node processes of a killed demo")
    until(lambda: left_behind(demo) == [], "files of a killed demo")



def test_a_demo_whose_process_group_is_ended_leaves_nothing():
    for how in ways(signal.SIGTERM, signal.SIGHUP):
        demo = start("demo", "--json", "--warehouses", 3, "--seconds", 60, "--listen", "127.0.0.1:0", **with_hang_ups(signal.SIG_DFL))
        line_with(demo, '"second"')
        os.killpg(demo.pid, how)
        demo.wait(LIMIT_S)
        until(lambda: group_is_gone(demo.pid), "node processes of an ended demo")
        assert left_behind(demo) == [], how
        demo.stdout.close()
        demo.stderr.close()


def test_the_next_start_removes_what_a_killed_process_group_left():
    demo = start("demo", "--json", "--warehouses", 3, "--seconds", 60, "--listen", "127.0.0.1:0")
    line_with(demo, '"second"')
    living = start("serve", "--json", "--memory", "256M", "--listen", "127.0.0.1:0")
    url = url_of(living)
    os.killpg(demo.pid, signal.SIGKILL)
    demo.wait(LIMIT_S)
    until(lambda: group_is_gone(demo.pid), "node processes of a killed demo")
    assert len(left_behind(demo)) == 1
    next_ = start("serve", "--json", "--memory", "256M", "--listen", "127.0.0.1:0")
    url_of(next_)
    assert left_behind(demo) == []
    assert len(left_behind(living)) == 1
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    for process in (living, next_):
        stop(process)
        assert left_behind(process) == []
    demo.stdout.close()
    demo.stderr.close()
