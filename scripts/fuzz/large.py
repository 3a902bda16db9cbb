"""A schema whose joins do not fit the memory of the spilling server, and the queries for it: few rows come out, so that they compare quickly."""
import re

import schema as s
from expressions import Expressions
from queries import Queries, references
from schema import Column, Table
from tree import Node

ROWS = 16_000
COLUMNS = [
    ("id", s.INT8, "i"), ("k", s.INT4, "CAST(i % 20 AS INT)"), ("j", s.INT8, "(i * 7919) % 9000"),
    ("f", s.FLOAT8, "CASE WHEN i % 50 = 0 THEN 'NaN' WHEN i % 50 = 1 THEN '-0' WHEN i % 50 = 2 THEN '0' ELSE CAST(i % 3000 AS TEXT) END"),
    ("n", s.numeric_of(12, 2), "CAST(i % 4001 AS NUMERIC(12,2)) / 4"), ("x", s.TEXT, "repeat('pad', 250) || CAST(i % 7000 AS TEXT)"),
    ("d", s.DATE, "DATE '2024-01-01' + CAST(i % 3000 AS INT)"),
]


class LargeTable(Table):
    """Rows come from generate_series; every seventh key of each kind is NULL."""

    def inserts(self):
        cells = [what if name in ("id", "k") else f"CASE WHEN (i + {at}) % 7 <> 0 THEN CAST({what} AS {type_.sql}) END" for at, (name, type_, what) in enumerate(COLUMNS)]
        names = ", ".join(f"{cell} AS {name}" for cell, (name, _, _) in zip(cells, COLUMNS))
        return [f"INSERT INTO {self.name} SELECT {names} FROM generate_series(1, {self.count}) AS g(i)"]


def schema(rng):
    tables = []
    for name in ("t0", "t1"):
        table = LargeTable(name, [Column(name, type_, name == "f", name == "id") for name, type_, _ in COLUMNS], ["id"], [], [], "", [])
        table.count = rng.choice([ROWS // 4, ROWS // 2, ROWS])
        tables.append(table)
    return tables


def spilled_bytes(link, sql):
    """What the joins of a query spill, or None where it cannot be explained."""
    answer = link.simple(f"EXPLAIN ANALYZE {sql}")
    if answer.failed:
        return None
    plan = "\n".join(row[0].decode() for row in answer.rows)
    return sum(int(number) for number in re.findall(r"(\d+) bytes spilled", plan))


class LargeQueries(Queries):
    """Aggregates over joins of two big tables, of a table and a window over the other, and by EXISTS, IN and their negations."""

    def query(self):
        rng = self.rng
        left, right = rng.choice(self.tables), rng.choice(self.tables)
        a, b = references(left, "a"), references(right, "b")
        by_name = lambda columns, name: columns[[c[0] for c in COLUMNS].index(name)]
        word = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "EXISTS", "NOT EXISTS", "IN", "NOT IN"])
        # Of a side whose rows are not needed only keys are kept, which fit: most of those must be long.
        narrow = ["id", "j", "f", "n", "d"]
        key = rng.choice([*narrow, "x"] if "JOIN" in word or rng.random() < 0.3 else ["x"])
        on = Node(s.BOOL, "(", by_name(a, key), " = ", by_name(b, key), ")")
        sides = (Node(None, f"{left.name} AS a"), self.side(right))
        conditions = [self.narrow(a)] if rng.random() < 0.4 else []
        columns = a
        if word in ("EXISTS", "NOT EXISTS"):
            source = sides[0]
            conditions.append(Node(s.BOOL, f"({word} (SELECT 1 FROM ", sides[1], " WHERE ", on, "))", tags={"subquery"}))
        elif word in ("IN", "NOT IN"):
            source = sides[0]
            inner = by_name(b, key)
            not_null = [" WHERE ", inner, " IS NOT NULL"] if rng.random() < 0.7 else []
            conditions.append(Node(s.BOOL, "(", by_name(a, key), f" {word} (SELECT ", inner, " FROM ", sides[1], *not_null, "))", tags={"subquery"}))
        else:
            columns = a + b
            extra = [" AND ", self.narrow(b)] if word != "FULL JOIN" and rng.random() < 0.3 else []
            source = Node(None, sides[0], f" {word} ", sides[1], " ON ", on, *extra, tags={"join"})
        exact = [c for c in columns if c.type.name != "float8"]
        groups = [by_name(rng.choice([a, b] if columns is not a else [a]), "k")] if rng.random() < 0.8 else []
        items = [*groups, Node(s.INT8, "count(*)")]
        # Long values of both sides, so that either is one that does not fit.
        items += [Node(s.TEXT, "max(", by_name(side, "x"), ")") for side in ([a, b] if columns is not a else [a])]
        for column in rng.sample(exact, 2):
            word = "count(DISTINCT " if rng.random() < 0.3 else rng.choice(["count(", "min(", "max("] + (["sum("] if column.type.family == "number" else []))
            items.append(Node(column.type, word, column, ")"))
        made = self.clauses(items, source, conditions)
        if groups:
            made.clauses["group"] = ("GROUP BY ", [Node(None, "1")], ", ")
        return made, False

    def side(self, table):
        """The table, or all of its columns with a number of the row in its group."""
        if self.rng.random() < 0.6:
            return Node(None, f"{table.name} AS b")
        return Node(None, f"(SELECT id, k, j, f, n, x, d, row_number() OVER (PARTITION BY k ORDER BY id) AS r FROM {table.name}) AS b")

    def narrow(self, columns):
        return Expressions(self.rng, columns).comparison(0)
