"""Queries of fewer programs: RANGE and GROUPS frames, grouping sets, DISTINCT ON, LATERAL, recursive WITH."""
import schema as s
from expressions import Expressions, Reference
from queries import Queries, type_of_sum
from tree import Node

SHARE = 0.15
# What RANGE may be apart by, of a column's type.
OFFSETS = {
    "int2": ["1", "2"], "int4": ["1", "3"], "int8": ["1", "50"], "float4": ["0.5", "1"], "float8": ["0.5", "1"], "numeric": ["1.5", "2"],
    "date": ["INTERVAL '1 day'", "INTERVAL '1 month'"], "timestamp": ["INTERVAL '1 hour'", "INTERVAL '2 days'"],
    "timestamptz": ["INTERVAL '1 hour'", "INTERVAL '90 minutes'"],
}
RECURSIVE = ("bool", "int2", "int4", "int8", "float8", "text", "date", "timestamp", "timestamptz")
DEPTH_MAX = 3


class Analytics(Queries):
    def query(self):
        if self.rng.random() >= SHARE:
            return super().query()
        return self.rng.choice([self.frames, self.grouping_sets, self.distinct_on, self.lateral, self.recursive])()

    # Windows

    def frames(self):
        """Frames of peers: which of them comes first is open, so aggregates only."""
        rng = self.rng
        source = self.joined(rng.choice([0, 1]))
        expressions = Expressions(rng, source.columns)
        items = [rng.choice(source.columns) for _ in range(rng.randint(1, 2))]
        windows = []
        for number in range(rng.choice([1, 1, 2])):
            parts = ["PARTITION BY ", rng.choice(source.columns), " "] if rng.random() < 0.5 else []
            key = rng.choice(source.columns)
            order = ["ORDER BY ", key, rng.choice(["", " DESC", " NULLS FIRST", " DESC NULLS LAST"])]
            over = [" OVER (", *parts, *order]
            if rng.random() < 0.25:
                # A named window has the one or both of them.
                in_name, in_brackets = rng.choice([(parts, order), ([*parts, *order], [])])
                windows.append(Node(None, f"w{number} AS (", *in_name, ")"))
                over = [f" OVER (w{number} ", *in_brackets]
            kind = rng.choice(["sum", "count", "min", "max", "avg", "star"])
            inner = rng.choice(source.columns)
            tags = {"window", "risky", "representative"}
            type_ = inner.type
            if kind in ("sum", "avg"):
                inner = expressions.leaf(rng.choice([s.INT4, s.INT8, s.NUMERIC, s.FLOAT8]), tame=True)
                type_ = type_of_sum(inner.type)
                tags |= {"approximate"} if inner.type.name == "float8" else set()
                tags |= {"division"} if kind == "avg" else set()
            elif type_.name in ("bool", "bytea") and kind in ("min", "max"):
                kind = "count"
            argument = ["count(*)"] if kind == "star" else [f"{kind}(", inner, ")"]
            items.append(Node(type_, *argument, *over, self.frame(key), ")", tags=tags))
        conditions = [expressions.condition(1)] if rng.random() < 0.3 else []
        select = self.clauses(items, source.node, conditions)
        select.clauses["windows"] = ("WINDOW ", windows, ", ")
        return self.maybe_ordered(select)

    def frame(self, key):
        rng = self.rng
        unit = rng.choice(["RANGE", "RANGE", "GROUPS"])
        offsets = OFFSETS.get(key.type.name, []) if unit == "RANGE" else ["0", "1", "2"]
        before = ["UNBOUNDED PRECEDING", "CURRENT ROW", *(f"{offset} PRECEDING" for offset in offsets)]
        after = ["UNBOUNDED FOLLOWING", "CURRENT ROW", *(f"{offset} FOLLOWING" for offset in offsets)]
        if rng.random() < 0.2:
            return f" {unit} {rng.choice(before)}"
        exclude = rng.choice([" EXCLUDE GROUP", " EXCLUDE TIES", " EXCLUDE NO OTHERS"]) if rng.random() < 0.05 else ""
        return f" {unit} BETWEEN {rng.choice(before)} AND {rng.choice(after)}{exclude}"

    # Groups

    def grouping_sets(self):
        rng = self.rng
        source = self.joined(rng.choice([0, 1]))
        expressions = Expressions(rng, source.columns)
        keys = rng.sample(source.columns, min(len(source.columns), rng.choice([1, 2, 2, 3])))
        names = [key.sql() for key in keys]
        kind = rng.choice(["ROLLUP", "CUBE", "SETS", "MIXED"])
        if kind == "SETS":
            sets = [rng.sample(names, rng.randint(0, len(names))) for _ in range(rng.randint(1, 3))]
            unused = [name for name in names if not any(name in one for one in sets)]
            group = "GROUPING SETS ({})".format(", ".join("({})".format(", ".join(one)) for one in [*sets, *([unused] if unused else [])]))
        elif kind == "MIXED" and len(names) > 1:
            group = f"{names[0]}, {rng.choice(['ROLLUP', 'CUBE'])} ({', '.join(names[1:])})"
        else:
            group = f"{'ROLLUP' if kind == 'MIXED' else kind} ({', '.join(names)})"
        items = [*keys, *(self.aggregate(expressions) for _ in range(rng.randint(1, 2)))]
        if rng.random() < 0.5:
            items.append(Node(s.INT4, f"grouping({', '.join(rng.sample(names, rng.randint(1, len(names))))})"))
        made = self.clauses(items, source.node, [expressions.condition(1)] if rng.random() < 0.3 else [])
        made.clauses["group"] = ("GROUP BY ", [Node(None, group, tags={"representative"})], ", ")
        made.optional = tuple(name for name in made.optional if name != "group")
        if rng.random() < 0.2:
            made.clauses["having"] = ("HAVING ", [Node(s.BOOL, rng.choice(["(count(*) > 1)", f"(grouping({names[0]}) = 0)"]))], " AND ")
        # Ordered they are not: PostgreSQL 15 takes a key for redundant that WHERE or ON makes equal to another or to a constant, though
        # the sets without it have NULL there.
        return made, False

    def distinct_on(self):
        """An order by all columns says which row stays."""
        rng = self.rng
        source = self.joined(1)
        expressions = Expressions(rng, source.columns)
        items = [expressions.of(expressions.any_type(), rng.choice([0, 0, 1])) for _ in range(rng.randint(1, 4))]
        made = self.clauses(items, source.node, [expressions.condition(1)] if rng.random() < 0.4 else [])
        order = rng.sample(range(1, len(items) + 1), len(items))
        on = rng.sample(order[:(count := rng.randint(1, len(items)))], count)
        made.clauses["distinct"] = ("", [Node(None, f"DISTINCT ON ({', '.join(map(str, on))})", tags={"representative"})], "")
        keys = ", ".join(f"{number}{rng.choice(['', ' DESC', ' NULLS FIRST'])}" for number in order)
        made.clauses["tail"] = ("", [Node(None, f"ORDER BY {keys}{rng.choice(['', '', ' LIMIT 3'])}", tags={"representative"})], "")
        # Without the order it is open which row stays.
        made.optional = ("where",)
        return made, True

    # FROM

    def lateral(self):
        rng = self.rng
        left = self.source(0)
        right = self.source(0)
        pairs = [(a, b) for a in left.columns for b in right.columns if a.type.name == b.type.name]
        conditions = []
        if pairs:
            a, b = rng.choice(pairs)
            conditions.append(Node(s.BOOL, "(", b, rng.choice([" = ", " = ", " = ", " < ", " IS NOT DISTINCT FROM "]), a, ")"))
        if rng.random() < 0.3:
            conditions.append(Expressions(rng, left.columns + right.columns).condition(1))
        own = Expressions(rng, right.columns)
        if rng.random() < 0.4:
            items = [self.aggregate(own) for _ in range(rng.randint(1, 2))]
            inner = self.clauses(items, right.node, conditions)
        else:
            items = [Expressions(rng, left.columns + right.columns).of(own.any_type(), rng.choice([0, 0, 1])) for _ in range(rng.randint(1, 2))]
            inner = self.clauses(items, right.node, conditions)
            if rng.random() < 0.5:
                numbers = ", ".join(str(number + 1) for number in range(len(items)))
                inner.clauses["tail"] = ("", [Node(None, f"ORDER BY {numbers} LIMIT {rng.choice([1, 1, 2])}", tags={"representative"})], "")
        alias = self.alias()
        word, on = rng.choice([(" CROSS JOIN", ""), (",", ""), (" LEFT JOIN", " ON TRUE"), (" JOIN", " ON TRUE")])
        node = Node(None, left.node, f"{word} LATERAL (", inner, f") AS {alias}{on}", simpler=[left.node], tags={"join"})
        columns = left.columns + [Reference(item.type, f"{alias}.c{number}", True) for number, item in enumerate(items)]
        expressions = Expressions(rng, columns)
        chosen = [*columns[len(left.columns):], *(expressions.of(expressions.any_type(), 1) for _ in range(rng.randint(0, 2)))]
        return self.maybe_ordered(self.clauses(chosen, node, [expressions.condition(1)] if rng.random() < 0.3 else []))

    def recursive(self):
        """A walk along equal values to a depth, or a count."""
        rng = self.rng
        name = self.alias()
        start, step = self.source(0), self.source(0)
        pairs = [(a, b) for a in start.columns for b in step.columns if a.type.name == b.type.name and a.type.name in RECURSIVE]
        union = rng.choice(["UNION", "UNION", "UNION ALL"])
        if pairs and rng.random() < 0.8:
            a, b = rng.choice(pairs)
            onward = rng.choice([column for column in step.columns if column.type.name == a.type.name])
            depth = 2 if union == "UNION ALL" else DEPTH_MAX
            first = self.clauses([a, Node(s.INT4, "0")], start.node, [Expressions(rng, start.columns).condition(1)] if rng.random() < 0.6 else [])
            further = self.clauses([onward, Node(s.INT4, f"({name}.c1 + 1)")], Node(None, f"{name} JOIN ", step.node, " ON (", b, f" = {name}.c0)", tags={"join"}),
                                   [Node(s.BOOL, f"({name}.c1 < {depth})")])
            columns = [Reference(a.type, f"{name}.c0", a.wild), Reference(s.INT4, f"{name}.c1", False)]
        else:
            first = self.clauses([s.INT4.literal("1")], None, [])
            further = self.clauses([Node(s.INT4, f"({name}.c0 + {rng.choice([1, 2])})")], Node(None, name), [Node(s.BOOL, f"({name}.c0 < {rng.choice([0, 5, 20])})")])
            columns = [Reference(s.INT4, f"{name}.c0", False)]
        # A step without its end would never end.
        further.optional = ()
        other = self.source(0) if rng.random() < 0.3 else None
        node = Node(None, name, " CROSS JOIN ", other.node, simpler=[Node(None, name)]) if other else Node(None, name)
        expressions = Expressions(rng, columns)
        if rng.random() < 0.4:
            items = [Node(s.INT8, "count(*)"), *(self.aggregate(expressions) for _ in range(rng.randint(0, 2)))]
        else:
            items = [*columns, *(expressions.of(expressions.any_type(), 1) for _ in range(rng.randint(0, 1)))]
        made = self.clauses(items, node, [expressions.condition(1)] if rng.random() < 0.3 else [])
        made.clauses["with"] = ("WITH RECURSIVE ", [Recursion(None, f"{name} AS (", first, f" {union} ", further, ")", tags={"representative"})], ", ")
        made.optional = tuple(part for part in made.optional if part != "with")
        return self.maybe_ordered(made)


class Recursion(Node):
    """Made smaller it might never end."""

    def with_child(self, old, new):
        return Recursion(self.type, *(new if part is old else part for part in self.parts), tags=self.tags)

    def children(self):
        return []

    def all_tags(self):
        return self.tags.union(*(part.all_tags() for part in self.parts if isinstance(part, Node)))
