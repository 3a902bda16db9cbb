"""Random queries: point reads and ranges (the direct path), joins, subqueries, grouping, windows, set operations."""
import schema as s
from expressions import Expressions, Reference
from tree import Clauses, Node

SIMPLE_AGGREGATES = ["count", "min", "max", "sum", "avg"]


def type_of_sum(type_):
    return {"int2": s.INT8, "int4": s.INT8, "int8": s.NUMERIC, "float4": s.FLOAT4, "float8": s.FLOAT8}.get(type_.name, s.NUMERIC)


def type_of_average(type_):
    return s.FLOAT8 if type_.name in ("float4", "float8") else s.NUMERIC


def references(table, alias=None):
    prefix = f"{alias}." if alias else ""
    return [Reference(column.type, prefix + column.name, column.wild) for column in table.columns]


class Source:
    """What a FROM names: its SQL, its columns, and those that order its rows. `keyed`: no two rows are equal in these; otherwise rows that are
    may stand in any order."""

    def __init__(self, node, columns, order, keyed):
        self.node, self.columns, self.order, self.keyed = node, columns, order, keyed


class Queries:
    """A generator over the tables of a schema. Aliases count up, so that every scope is apart from the others."""

    def __init__(self, rng, tables):
        self.rng, self.tables, self.aliases = rng, tables, 0

    def query(self):
        """A query and whether its rows come in an order."""
        kind = self.rng.choices(["direct", "select", "group", "window", "set", "constants"], [6, 10, 5, 2, 3, 1])[0]
        return getattr(self, kind)()

    def alias(self):
        self.aliases += 1
        return f"q{self.aliases}"

    # The direct path

    def direct(self):
        """What a primary key or an index may answer: bounds on a prefix, an order, a limit."""
        rng = self.rng
        table = rng.choice(self.tables)
        columns = references(table)
        by_name = {column.name: reference for column, reference in zip(table.columns, columns)}
        prefixes = [names for names in [table.key, table.unique, *table.indexes] if names]
        prefix = rng.choice(prefixes) if prefixes and rng.random() < 0.9 else [rng.choice(table.columns).name]
        expressions = Expressions(rng, columns)
        conditions = []
        for name in prefix[:rng.randint(1, len(prefix))]:
            conditions.append(self.bound(table, by_name[name], name))
        if rng.random() < 0.4:
            conditions.append(expressions.condition(1))
        if rng.random() < 0.5:
            items = columns
        else:
            items = [expressions.of(expressions.any_type(), rng.choice([0, 0, 1, 2])) for _ in range(rng.randint(1, 4))]
        select = self.clauses(items, Node(None, table.name), conditions)
        # A name behind ORDER BY is that of a result's column, if there is one.
        results = {f"c{number}" for number in range(len(items))}
        ordered = table.key and not results & set(table.key) and rng.random() < 0.4
        if ordered:
            way = rng.choice(["", " DESC"])
            keys = ", ".join(name + way for name in table.key)
            limit = rng.choice(["", f" LIMIT {rng.choice([0, 1, 2, 5])}", f" LIMIT 3 OFFSET {rng.choice([0, 1, 2])}"])
            select.clauses["tail"] = ("", [Node(None, f"ORDER BY {keys}{limit}", simpler=[Node(None, f"ORDER BY {keys}")] if limit else [])], "")
        return select, bool(ordered)

    def bound(self, table, column, name):
        """A condition that an index may answer; constants are mostly values of the table."""
        rng = self.rng
        at = [c.name for c in table.columns].index(name)
        present = [row[at] for row in table.rows if row[at] is not None]

        def value():
            if present and rng.random() < 0.7:
                return column.type.literal(rng.choice(present))
            other = column.type
            if other.family == "number" and rng.random() < 0.3:
                other = rng.choice([s.INT4, s.INT8, s.NUMERIC, s.FLOAT8])
            elif other.family == "text" and rng.random() < 0.5:
                other = s.TEXT
            return other.literal(rng.choice(other.small + other.wild if rng.random() < 0.3 else other.small))

        kind = rng.choices(["equal", "range", "between", "in", "null", "parameter"], [8, 3, 1, 2, 1, 1])[0]
        if kind == "range":
            parts = ["(", column, rng.choice([" < ", " <= ", " > ", " >= "]), value(), ")"]
            return Node(s.BOOL, *parts)
        if kind == "between":
            return Node(s.BOOL, "(", column, " BETWEEN ", value(), " AND ", value(), ")")
        if kind == "in":
            items = []
            for number in range(rng.randint(1, 3)):
                items += [", " if number else "", value()]
            return Node(s.BOOL, "(", column, " IN (", *items, "))")
        if kind == "null":
            return Node(s.BOOL, "(", column, rng.choice([" IS NULL)", " IS NOT NULL)", " = NULL)"]))
        return Node(s.BOOL, "(", column, " = ", value(), ")")

    # FROM

    def source(self, depth):
        rng = self.rng
        if depth > 0 and rng.random() < 0.25:
            inner = self.inner(depth - 1)
            alias = self.alias()
            columns = [(Reference(item.type, f"{alias}.c{number}", True), item) for number, item in enumerate(inner.items)]
            # What is compared with a sum of floats depends on its last digits.
            exact = [column for column, item in columns if "approximate" not in item.all_tags()]
            columns = exact or [column for column, _ in columns]
            return Source(Node(None, "(", inner, f") AS {alias}"), columns, columns, False)
        if depth > 0 and rng.random() < 0.07:
            return self.listed()
        table = rng.choice(self.tables)
        alias = self.alias()
        columns = references(table, alias)
        keyed = [c for c, column in zip(columns, table.columns) if column.name in table.key]
        return Source(Node(None, f"{table.name} AS {alias}"), columns, keyed or columns, bool(keyed))

    def listed(self):
        """A VALUES list in FROM."""
        rng = self.rng
        expressions = Expressions(rng, [])
        types = [rng.choice(s.EXPRESSION_TYPES) for _ in range(rng.randint(1, 3))]
        rows = []
        for _ in range(rng.randint(2, 4)):
            items = [expressions.leaf(type_) if rng.random() < 0.4 else expressions.of(type_, rng.choice([1, 2])) for type_ in types]
            parts = [part for item in items for part in (", ", item)][1:]
            rows += [", ", Node(None, "(", *parts, ")")]
        alias = self.alias()
        names = ", ".join(f"c{number}" for number in range(len(types)))
        columns = [Reference(type_, f"{alias}.c{number}", True) for number, type_ in enumerate(types)]
        return Source(Node(None, "(VALUES ", *rows[1:], f") AS {alias}({names})"), columns, columns, False)

    def inner(self, depth):
        """A query for FROM, IN and set operations: no order, `items` says its columns."""
        rng = self.rng
        source = self.joined(depth)
        if rng.random() < 0.3:
            return self.grouped(source)
        expressions = Expressions(rng, source.columns, self.subqueries(depth))
        items = [expressions.of(expressions.any_type(), 1) for _ in range(rng.randint(1, 3))]
        return self.clauses(items, source.node, [expressions.condition(2)] if rng.random() < 0.5 else [], distinct=rng.random() < 0.15)

    def joined(self, depth):
        rng = self.rng
        left = self.source(depth)
        count = rng.choices([0, 1, 2], [5, 5, 2])[0]
        for number in range(count):
            right = self.source(depth)
            kind = rng.choice(["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"])
            columns = left.columns + right.columns
            merged = self.merged(left, right) if kind != "CROSS JOIN" and number == count - 1 and rng.random() < 0.2 else None
            if merged:
                node = Node(None, left.node, f" {kind} ", right.node, f" USING ({merged.sql()})", simpler=[left.node, right.node], tags={"join"})
                columns = columns + [merged]
            elif kind == "CROSS JOIN":
                node = Node(None, left.node, " CROSS JOIN ", right.node, simpler=[left.node, right.node])
            else:
                on = self.join_condition(left, right, kind)
                node = Node(None, left.node, f" {kind} ", right.node, " ON ", on, simpler=[left.node, right.node], tags={"join"})
            left = Source(node, columns, left.order + right.order, left.keyed and right.keyed)
        return left

    def merged(self, left, right):
        """A column that USING may merge, without a qualifier; the join must be the last one, or others may have the name as well."""
        named = lambda columns: {c.sql().split(".")[-1]: c for c in columns}
        once = lambda columns, name: [c.sql().split(".")[-1] for c in columns].count(name) == 1
        a, b = named(left.columns), named(right.columns)
        names = [n for n in a if n in b and once(left.columns, n) and once(right.columns, n) and a[n].type.name == b[n].type.name]
        if not names:
            return None
        name = self.rng.choice(names)
        return Reference(a[name].type, name, a[name].wild or b[name].wild)

    def join_condition(self, left, right, kind):
        """Mostly an equality of columns; PostgreSQL refuses a FULL JOIN by anything else."""
        rng = self.rng
        pairs = [(a, b) for a in left.columns for b in right.columns if a.type.name == b.type.name]
        loose = [(a, b) for a in left.columns for b in right.columns if a.type.family == b.type.family and a.type.family in ("number", "text")]
        pairs = loose if loose and rng.random() < 0.2 else pairs
        if not pairs:
            return Node(s.BOOL, "TRUE") if kind != "FULL JOIN" else Node(s.BOOL, "(1 = 1)")
        conditions = []
        for a, b in rng.sample(pairs, min(len(pairs), rng.choice([1, 1, 1, 2]))):
            conditions += [" AND " if conditions else "", Node(s.BOOL, "(", a, " = ", b, ")")]
        if kind != "FULL JOIN" and rng.random() < 0.25:
            conditions += [" AND ", Expressions(rng, left.columns + right.columns).condition(1)]
        if kind == "JOIN" and rng.random() < 0.1:
            a, b = rng.choice(pairs)
            conditions = [Node(s.BOOL, "(", a, rng.choice([" < ", " >= ", " IS NOT DISTINCT FROM "]), b, ")")]
        return Node(s.BOOL, "(", *conditions, ")") if len(conditions) > 1 else conditions[0]

    def subqueries(self, depth):
        return Subqueries(self, depth - 1) if depth > 0 else None

    # SELECT

    def clauses(self, items, source, conditions, distinct=False):
        """A SELECT; `items` are named c0, c1, and so on."""
        where = []
        for condition in conditions:
            where.append(condition)
        named = [Node(None, item, f" AS c{number}") for number, item in enumerate(items)]
        made = Clauses({
            "with": ("WITH ", [], ", "),
            "verb": ("", [Node(None, "SELECT")], ""),
            "distinct": ("", [Node(None, "DISTINCT", tags={"representative"})] if distinct else [], ""),
            "items": ("", named, ", "),
            "from": ("FROM ", [source] if source else [], ""),
            "where": ("WHERE ", where, " AND "),
            "group": ("GROUP BY ", [], ", "),
            "having": ("HAVING ", [], " AND "),
            "windows": ("WINDOW ", [], ", "),
            "tail": ("", [], ""),
        }, optional=("with", "distinct", "where", "group", "having", "windows", "tail"))
        made.items = items
        return made

    def order(self, select, before=()):
        """An order by all columns, and perhaps a limit. `before`: what it begins with."""
        rng = self.rng
        keys = [*before]
        for number in rng.sample(range(len(select.items)), len(select.items)):
            # A bare name is the item's, whatever columns there are, and a number is one in parentheses, too.
            item = rng.choice([str(number + 1), str(number + 1), f"({number + 1})", f"c{number}", f"(c{number})"])
            keys.append(f"{item}{rng.choice(['', '', ' DESC', ' ASC', ' NULLS FIRST', ' DESC NULLS LAST'])}")
        order = f"ORDER BY {', '.join(keys)}"
        limit = rng.choice(["", f" LIMIT {rng.choice([0, 1, 3, 10])}", f" LIMIT 4 OFFSET {rng.choice([0, 1, 3])}", f" OFFSET {rng.choice([1, 4])}"])
        select.clauses["tail"] = ("", [Node(None, order + limit, simpler=[Node(None, order)] if limit else [], tags={"representative"} | ({"limit"} if limit else set()))], "")

    def maybe_ordered(self, select, before=()):
        ordered = self.rng.random() < 0.4
        if ordered:
            self.order(select, before)
        return select, ordered

    def by_column(self, source):
        """What ORDER BY may begin with that is no item: a column of FROM, which items may be called as."""
        rng = self.rng
        column = rng.choice(source.columns).sql()
        name = column.split(".")[-1]
        alone = [c.sql().split(".")[-1] for c in source.columns].count(name) == 1
        return rng.choice([column, f"({column} IS NULL)", f"({name} IS NULL)" if alone else f"({column}) DESC"])

    def select(self):
        rng = self.rng
        source = self.joined(1)
        expressions = Expressions(rng, source.columns, self.subqueries(2))
        items = [expressions.of(expressions.any_type(), rng.choice([0, 1, 2, 3])) for _ in range(rng.randint(1, 4))]
        conditions = [expressions.condition(rng.choice([1, 2, 3]))] if rng.random() < 0.65 else []
        distinct = rng.random() < 0.15
        made = self.clauses(items, source.node, conditions, distinct=distinct)
        before = [] if distinct or rng.random() < 0.7 else [self.by_column(source)]
        if rng.random() < 0.1:
            before = []
            self.with_part(made)
        return self.maybe_ordered(made, before)

    def with_part(self, select):
        """A WITH that FROM joins by nothing."""
        inner = self.inner(1)
        name = self.alias()
        select.clauses["with"] = ("WITH ", [Node(None, f"{name} AS (", inner, ")")], ", ")
        before = select.clauses["from"][1][0]
        select.clauses["from"] = ("FROM ", [Node(None, before, f" CROSS JOIN {name}", simpler=[before])], "")

    def group(self):
        return self.maybe_ordered(self.grouped(self.joined(1)))

    def grouped(self, source):
        rng = self.rng
        expressions = Expressions(rng, source.columns)
        keys = []
        for _ in range(rng.choices([0, 1, 2], [2, 5, 2])[0]):
            keys.append(rng.choice(source.columns) if rng.random() < 0.7 else expressions.of(expressions.any_type(), 1))
        aggregates = [self.aggregate(expressions) for _ in range(rng.randint(0 if keys else 1, 3))]
        conditions = [expressions.condition(2)] if rng.random() < 0.4 else []
        made = self.clauses([*keys, *aggregates], source.node, conditions)
        if keys:
            # By position: a constant among the keys is not one here.
            numbers = [Node(None, str(number + 1), tags={"representative"}) for number in range(len(keys))]
            made.clauses["group"] = ("GROUP BY ", numbers, ", ")
        if rng.random() < 0.3:
            made.clauses["having"] = ("HAVING ", [Node(s.BOOL, "(", Node(s.INT8, "count(*)"), rng.choice([" > ", " = ", " <= "]), rng.choice(["0", "1", "2"]), ")")
                                                  if rng.random() < 0.6 else Node(s.BOOL, "(", self.aggregate(expressions), " IS NOT NULL)")], " AND ")
        return made

    def aggregate(self, expressions):
        rng = self.rng
        kind = rng.choices(["star", "count", "extreme", "sum", "avg", "bool", "string"], [3, 2, 4, 4, 2, 1, 1])[0]
        filter_ = ["", ""]
        if rng.random() < 0.12:
            filter_ = [" FILTER (WHERE ", expressions.condition(1), ")"]
        else:
            filter_ = []
        distinct = rng.random() < 0.12
        word = "DISTINCT " if distinct else ""
        if kind == "star":
            return Node(s.INT8, "count(*)", *filter_)
        if kind == "count":
            return Node(s.INT8, f"count({word}", expressions.of(expressions.any_type(), 1), ")", *filter_)
        if kind == "extreme":
            type_ = expressions.any_type()
            if type_.name in ("bool", "bytea"):
                type_ = s.INT4
            inner = expressions.of(type_, 1)
            return Node(s.TEXT if type_.name == "varchar" else type_, rng.choice(["min(", "max("]), inner, ")", *filter_, tags={"representative"})
        if kind == "bool":
            return Node(s.BOOL, rng.choice(["bool_and(", "bool_or("]), expressions.of(s.BOOL, 1), ")", *filter_)
        if kind == "string":
            # A constant is not the same expression twice, which DISTINCT wants.
            inner = expressions.column(s.TEXT)
            if inner is None:
                return Node(s.INT8, "count(*)", *filter_)
            return Node(s.TEXT, f"string_agg({word}", inner, ", ',' ORDER BY ", inner, ")", *filter_)
        numbers = [c.type for c in expressions.columns if c.type.family == "number"] or [s.INT4]
        type_ = rng.choice(numbers)
        inner = expressions.tame(type_, 1)
        floats = {"approximate", "floats"} if type_.name in ("float4", "float8") else set()
        if kind == "sum":
            return Node(type_of_sum(type_), f"sum({word}", inner, ")", *filter_, tags=floats | {"risky"})
        return Node(type_of_average(type_), f"avg({word}", inner, ")", *filter_, tags=floats | {"risky", "division"})

    def window(self):
        rng = self.rng
        source = self.joined(1)
        expressions = Expressions(rng, source.columns)
        items = [rng.choice(source.columns) for _ in range(rng.randint(1, 2))]
        order = []
        for column in source.order:
            order += [", " if order else "", column, rng.choice(["", " DESC", " NULLS FIRST"])]
        first = None
        for _ in range(rng.choice([1, 1, 2])):
            over = [" OVER ("]
            if rng.random() < 0.6:
                over += ["PARTITION BY ", rng.choice(source.columns), " "]
            over += ["ORDER BY ", *order]
            # Two windows may take rows that are equal in two orders, and which values then stand beside each other is open.
            first = first or over
            over = over if source.keyed else first
            kind = rng.choice(["row_number", "rank", "dense_rank", "lag", "lead", "sum", "count", "min", "max", "first_value", "last_value", "ntile"])
            inner = rng.choice(source.columns)
            if kind in ("row_number", "rank", "dense_rank"):
                items.append(Node(s.INT8, f"{kind}()", *over, ")", tags={"window"}))
            elif kind == "ntile":
                items.append(Node(s.INT4, f"ntile({rng.choice([1, 2, 3])})", *over, ")", tags={"window"}))
            elif kind in ("lag", "lead"):
                items.append(Node(inner.type, f"{kind}(", inner, f", {rng.choice([1, 2])})", *over, ")", tags={"window"}))
            else:
                frame = rng.choice(["", "", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING", " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"])
                tags = {"window"}
                type_ = inner.type
                if kind == "sum":
                    inner = expressions.leaf(rng.choice([s.INT4, s.INT8, s.NUMERIC, s.FLOAT8]), tame=True)
                    type_ = type_of_sum(inner.type)
                    tags |= {"risky"} | ({"approximate"} if inner.type.name == "float8" else set())
                elif kind == "count":
                    type_ = s.INT8
                elif kind in ("min", "max") and type_.name in ("bool", "bytea"):
                    inner = s.INT4.literal("1")
                    type_ = s.INT4
                items.append(Node(type_, f"{kind}(", inner, ")", *over, frame, ")", tags=tags | {"representative"}))
        conditions = [expressions.condition(1)] if rng.random() < 0.4 else []
        return self.maybe_ordered(self.clauses(items, source.node, conditions))

    def set(self):
        """UNION, INTERSECT, EXCEPT, each with and without ALL, of two queries whose columns have the same types."""
        rng = self.rng
        made = self.arm(types := [rng.choice(s.EXPRESSION_TYPES) for _ in range(rng.randint(1, 3))])
        for _ in range(rng.choice([1, 1, 2])):
            word = rng.choice(["UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL"])
            other = self.arm(types)
            made = Node(None, "(", made, f") {word} (", other, ")", simpler=[made, other], tags={"representative"})
        outer = Clauses({"body": ("", [made], ""), "tail": ("", [], "")}, optional=("tail",))
        outer.items = types
        return self.maybe_ordered(outer)

    def arm(self, types):
        rng = self.rng
        source = self.joined(0)
        expressions = Expressions(rng, source.columns)
        items = [expressions.leaf(type_) if rng.random() < 0.7 else expressions.of(type_, 1) for type_ in types]
        return self.clauses(items, source.node, [expressions.condition(1)] if rng.random() < 0.4 else [])

    def constants(self):
        """No table at all."""
        expressions = Expressions(self.rng, [])
        return self.clauses([expressions.of(expressions.any_type(), 3) for _ in range(self.rng.randint(1, 4))], None, []), False


class Subqueries:
    """Subqueries of an expression, with and without columns of the query around them."""

    def __init__(self, queries, depth):
        self.queries, self.depth = queries, depth

    def _inner(self, outer):
        """A source, and a condition that ties it to the outer columns or stands alone."""
        rng = self.queries.rng
        source = self.queries.source(0)
        conditions = []
        pairs = [(a, b) for a in source.columns for b in outer.columns if a.type.name == b.type.name]
        if pairs and rng.random() < 0.5:
            a, b = rng.choice(pairs)
            conditions.append(Node(s.BOOL, "(", a, " = ", b, ")"))
        if rng.random() < 0.4:
            conditions.append(Expressions(rng, source.columns).condition(1))
        return source, conditions

    def _item(self, source):
        """A column, or an aggregate, of which there is a row without any in the source; whether it is the latter."""
        rng = self.queries.rng
        column = rng.choice(source.columns)
        kind = rng.choice(["column", "column", "column", "count", "extreme"])
        if kind == "count":
            return Node(s.INT8, rng.choice(["count(*)", "(count(*) + 1)", "coalesce(sum(1), 7)"])), True
        if kind == "extreme" and column.type.name not in ("bool", "bytea", "varchar"):
            return Node(column.type, rng.choice(["min(", "max("]), column, ")", tags={"representative"}), True
        return column, False

    def _having(self, inner):
        rng = self.queries.rng
        if rng.random() < 0.3:
            inner.clauses["having"] = ("HAVING ", [Node(s.BOOL, rng.choice(["(count(*) = 0)", "(count(*) < 2)", "(count(*) > 0)"]))], " AND ")

    def condition(self, outer, depth):
        rng = self.queries.rng
        source, conditions = self._inner(outer)
        kind = rng.choice(["exists", "in", "in", "any"])
        if kind == "exists":
            item, is_aggregate = self._item(source) if rng.random() < 0.3 else (s.INT4.literal("1"), False)
            inner = self.queries.clauses([item], source.node, conditions)
            if is_aggregate:
                self._having(inner)
            before, after = rng.choice([("EXISTS (", ")"), ("(NOT EXISTS (", "))")])
            return Node(s.BOOL, before, inner, after, tags={"subquery"})
        item, is_aggregate = self._item(source)
        inner = self.queries.clauses([item], source.node, conditions)
        if is_aggregate:
            self._having(inner)
        subject = outer.of(item.type, depth - 1)
        if kind == "in":
            return Node(s.BOOL, "(", subject, rng.choice([" IN (", " NOT IN ("]), inner, "))", tags={"subquery"})
        word = rng.choice([" = ANY (", " <> ALL (", " > ALL (", " < ANY (", " <> ANY (", " = ALL (", " >= ANY (", " <= ALL ("])
        return Node(s.BOOL, "(", subject, word, inner, "))", tags={"subquery"})

    def scalar(self, outer, type_):
        rng = self.queries.rng
        source, conditions = self._inner(outer)
        fitting = [c for c in source.columns if c.type.name == type_.name]
        if not fitting or type_.name in ("bool", "bytea"):
            return outer.leaf(type_)
        if rng.random() < 0.25:
            first = self.queries.clauses([rng.choice(fitting)], source.node, conditions)
            first.clauses["tail"] = ("", [Node(None, f"ORDER BY 1{rng.choice(['', ' DESC'])} LIMIT 1", tags={"representative"})], "")
            first.optional = tuple(name for name in first.optional if name != "tail")
            return Node(type_, "(", first, ")", tags={"subquery"})
        if type_.name == "int8" and rng.random() < 0.5:
            inner = self.queries.clauses([Node(type_, rng.choice(["count(*)", "(count(*) + 1)"]))], source.node, conditions)
        else:
            item = Node(type_, rng.choice(["min(", "max("]), rng.choice(fitting), ")", tags={"representative"})
            inner = self.queries.clauses([item], source.node, conditions)
        self._having(inner)
        return Node(type_, "(", inner, ")", tags={"subquery"})
