"""Random transactions: changes, reads of what they have changed, savepoints and the ways back, COMMIT or ROLLBACK.

All servers take the same steps. Where a step fails, or its answers differ by decision, all go back to the last savepoint, or the block ends.
"""
import random

import ways
from analytics import Analytics
from bench import ROWS_QUERY
from changes import Changes
from link import Lost, TooManyRows
from tree import Node

STEPS_MAX = 8


class Step:
    """`kind`: change, query, savepoint, back or release. `number`: which of the savepoints that there are, and seed of its ways."""

    def __init__(self, kind, node=None, ordered=False, number=0):
        self.kind, self.node, self.ordered, self.number = kind, node, ordered, number


def steps(rng, tables):
    """The steps and how the block ends."""
    made = []
    for _ in range(rng.randint(2, STEPS_MAX)):
        kind = rng.choices(["change", "read", "query", "savepoint", "back", "release"], [6, 3, 2, 2, 2, 1])[0]
        number = rng.randrange(1 << 30)
        if kind == "change":
            made.append(Step("change", Changes(rng, tables).change()[0], number=number))
        elif kind == "read":
            made.append(Step("query", Node(None, ROWS_QUERY.format(rng.choice(tables).name)), number=number))
        elif kind == "query":
            made.append(Step("query", *Analytics(rng, tables).query(), number=number))
        else:
            made.append(Step(kind, number=number))
    return made, rng.choice(["COMMIT", "COMMIT", "ROLLBACK"])


class Block:
    """One run through the steps. `said`: what has been asked so far, as a file would replay it."""

    def __init__(self, bench, tables, decided):
        self.bench, self.tables, self.decided = bench, tables, decided
        self.said, self.savepoints, self.count, self.finding, self.differs = [], [], 0, None, False

    def run(self, steps, end):
        """The finding, if there is one that is not decided."""
        self._all("BEGIN")
        for step in steps:
            if not self._step(step):
                break
        else:
            self._all(end)
        self._all("ROLLBACK", quiet=True)
        if self.finding is None:
            self._compare_tables()
        return self.finding

    def _all(self, sql, quiet=False):
        """Asks all of them; whether it worked everywhere."""
        bench = self.bench
        if not quiet:
            self.said.append(sql)
        worked = not bench.postgres.simple(sql).failed
        for name, link in bench.farhold.items():
            try:
                answer = link.simple(sql)
            except Lost:
                bench.recover(name)
                continue
            if answer.failed and worked and not quiet and self.finding is None:
                self._found(bench.difference(Node(None, sql), False, ways.Way(name, "simple"), 0, bench.postgres.simple("SELECT 1")))
        return worked

    def _found(self, finding):
        if finding is not None:
            self.differs = True
            if not self.decided(finding):
                self.finding = finding
        return finding

    def _step(self, step):
        """Whether the block goes on."""
        if step.kind == "savepoint":
            self.count += 1
            self.savepoints.append(f"s{self.count}")
            return self._all(f"SAVEPOINT {self.savepoints[-1]}")
        if step.kind in ("back", "release"):
            return self._unwound(step)
        try:
            expected = self.bench.expected(step.node.sql(), step.node.all_tags())
        except TooManyRows:
            # PostgreSQL's block has failed by that.
            self._all("ROLLBACK", quiet=True)
            return False
        self.said.append(step.node.sql())
        rng = random.Random(step.number)
        differed = False
        for name in self.bench.farhold:
            way = ways.inside_block(rng, name, step.kind == "query")
            if self._found(self.bench.difference(step.node, step.ordered, way, step.number, expected)):
                differed = True
            if self.finding:
                return False
        if not expected.failed and not differed:
            return True
        if not self.savepoints:
            return False
        return self._all(f"ROLLBACK TO {self.savepoints[-1]}")

    def _unwound(self, step):
        """To a savepoint, which stays and those behind it go; or it is released with them."""
        if not self.savepoints:
            return True
        at = step.number % len(self.savepoints)
        name = self.savepoints[at]
        self.savepoints = self.savepoints[: at + (step.kind == "back")]
        return self._all(f"ROLLBACK TO {name}" if step.kind == "back" else f"RELEASE {name}")

    def _compare_tables(self):
        for table in self.tables:
            for name in self.bench.farhold:
                sql = Node(None, ROWS_QUERY.format(table.name), tags={"product", "approximate"})
                if self._found(self.bench.table_difference(table, name, sql)) and self.finding:
                    return


def replay(bench, tables, steps, end, decided):
    """The finding of the steps on tables as they were, with what was said."""
    bench.load(tables)
    block = Block(bench, tables, decided)
    block.run(steps, end)
    return block


def reduced(bench, tables, steps, end, block, decided):
    """Without the steps that are no part of the difference."""
    at = len(steps) - 1
    while at >= 0:
        fewer = steps[:at] + steps[at + 1:]
        again = replay(bench, tables, fewer, end, decided)
        if again.finding and again.finding.signature() == block.finding.signature():
            steps, block = fewer, again
        at -= 1
    return block
