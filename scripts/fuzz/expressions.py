"""Random expressions of a wanted type over the columns in scope.

What can fail on some rows only (overflow, division by zero, casts of text) is tagged `risky`: databases may evaluate it on different
rows. Other tags name what `differences` and `compare` have to know.
"""
import schema as s
from tree import Literal, Node

NUMBERS = [s.INT2, s.INT4, s.INT8, s.FLOAT4, s.FLOAT8, s.NUMERIC]
RANK = {t.name: rank for rank, t in enumerate([s.INT2, s.INT4, s.INT8, s.NUMERIC, s.FLOAT4, s.FLOAT8])}
EXACT = {"int2", "int4", "int8", "numeric"}
# Types whose values become the type beside one of it.
LOWER = {
    "int4": [s.INT2], "int8": [s.INT2, s.INT4], "numeric": [s.INT2, s.INT4, s.INT8], "float4": [s.INT2, s.INT4, s.INT8, s.NUMERIC],
    "float8": [s.INT2, s.INT4, s.INT8, s.NUMERIC, s.FLOAT4], "timestamp": [s.DATE], "timestamptz": [s.DATE, s.TIMESTAMP],
}
COMPARISONS = ["=", "=", "<>", "<", "<=", ">", ">="]


def common(a, b):
    """The type of arithmetic on two types of numbers, as PostgreSQL resolves it."""
    if a.name == b.name:
        return a if a.name != "numeric" else s.NUMERIC
    if {a.name, b.name} & {"float4", "float8"}:
        return s.FLOAT8
    return max(a, b, key=lambda t: RANK[t.name])


class Reference(Node):
    """A column in scope."""

    def __init__(self, type_, text, wild):
        super().__init__(type_, text, tags={"wide"} if type_.wide else ())
        self.wild = wild

    def with_child(self, old, new):
        raise AssertionError("a column has no parts")


class Expressions:
    """A generator over `columns` (references). `subquery(rng, columns, type)` makes a scalar subquery, or is None."""

    def __init__(self, rng, columns, subqueries=None):
        self.rng, self.columns, self.subqueries = rng, columns, subqueries

    def constant(self, type_, wild=0.1):
        if self.rng.random() < 0.06:
            return Literal(type_, f"CAST(NULL AS {type_.sql})")
        pool = type_.wild + type_.constants if type_.wild and self.rng.random() < wild else type_.small
        return type_.literal(self.rng.choice(pool))

    def column(self, type_, tame=False):
        fitting = [c for c in self.columns if c.type.name == type_.name and not (tame and c.wild)]
        return self.rng.choice(fitting) if fitting else None

    def of(self, type_, depth=2):
        """An expression of the type."""
        rng = self.rng
        if depth <= 0 or rng.random() < 0.3:
            return self.leaf(type_)
        if rng.random() < 0.12:
            return self.choice(type_, depth)
        if type_.name == "bool":
            return self.condition(depth)
        if type_.family == "number":
            return self.number(type_, depth)
        maker = {"text": self.text, "date": self.date, "timestamp": self.timestamp, "timestamptz": self.timestamptz}.get(type_.name)
        return maker(depth) if maker else self.leaf(type_)

    def leaf(self, type_, tame=False):
        column = self.column(type_, tame) if self.rng.random() < 0.75 else None
        return column or self.constant(type_, 0 if tame else 0.1)

    def any_type(self):
        """A type, the more often the more columns have it."""
        if self.columns and self.rng.random() < 0.8:
            return self.rng.choice(self.columns).type
        return self.rng.choice(s.EXPRESSION_TYPES)

    def choice(self, type_, depth):
        """CASE, COALESCE and their like have the common type of their parts."""
        rng = self.rng
        lower = LOWER.get(type_.name) if rng.random() < 0.3 else None

        def parts_of(count):
            """One of the type at least; the others become it."""
            types = [type_, *(rng.choice(lower) if lower else type_ for _ in range(count - 1))]
            rng.shuffle(types)
            return [self.of(of, depth - 1) for of in types]

        kind = rng.choice(["case", "case", "simple", "coalesce", "nullif", "greatest"])
        if type_.name == "bool" and kind == "greatest":
            kind = "case"
        if kind == "case":
            whens = rng.choice([1, 1, 2])
            results = parts_of(whens + (rng.random() < 0.7))
            parts = ["CASE"]
            for result in results[:whens]:
                parts += [" WHEN ", self.of(s.BOOL, depth - 1), " THEN ", result]
            parts += [" ELSE ", results[whens]] if len(results) > whens else []
            return Node(type_, *parts, " END", tags={"guards"})
        one, other = parts_of(2)
        if kind == "simple":
            of = self.any_type()
            parts = ["CASE ", self.of(of, depth - 1), " WHEN ", self.of(of, 0), " THEN ", one, " ELSE ", other, " END"]
            return Node(type_, *parts, tags={"guards"})
        if kind == "coalesce":
            return Node(type_, "coalesce(", one, ", ", other, ")", tags={"guards"})
        if kind == "nullif":
            return Node(type_, "nullif(", self.of(type_, depth - 1), ", ", self.of(type_, 0), ")")
        return Node(type_, rng.choice(["greatest(", "least("]), one, ", ", other, ")", tags={"representative"})

    # Conditions

    def limits(self):
        """Conditions of one column and few constants, at either side: what a planner puts together."""
        rng = self.rng
        column = self.leaf(self.any_type())
        constants = [self.constant(column.type, 0.2) for _ in range(rng.choice([1, 1, 2]))]
        word = rng.choice([" AND ", " AND ", " OR "])
        parts = []
        for number in range(rng.choice([2, 2, 3])):
            sides = [column, rng.choice(constants)]
            rng.shuffle(sides)
            operator = rng.choice([" = ", " = ", " < ", " <= ", " > ", " >= ", " <> "])
            parts += [word if number else "", Node(s.BOOL, "(", sides[0], operator, sides[1], ")")]
        return Node(s.BOOL, "(", *parts, ")", tags={"guards"})

    def condition(self, depth=2):
        rng = self.rng
        if depth <= 0:
            return self.comparison(0)
        kind = rng.choices(
            ["compare", "limits", "null", "and", "not", "between", "in", "like", "distinct", "is", "row", "subquery", "column"],
            [8, 2, 3, 5, 2, 2, 3, 2, 2, 1, 1, 2 if self.subqueries else 0, 1],
        )[0]
        if kind == "compare":
            return self.comparison(depth - 1)
        if kind == "limits":
            return self.limits()
        if kind == "null":
            return Node(s.BOOL, "(", self.of(self.any_type(), depth - 1), rng.choice([" IS NULL)", " IS NOT NULL)"]))
        if kind == "and":
            return Node(s.BOOL, "(", self.of(s.BOOL, depth - 1), rng.choice([" AND ", " OR "]), self.of(s.BOOL, depth - 1), ")", tags={"guards"})
        if kind == "not":
            return Node(s.BOOL, "(NOT ", self.of(s.BOOL, depth - 1), ")")
        if kind == "between":
            type_ = self.any_type()
            word = rng.choice([" BETWEEN ", " NOT BETWEEN "])
            return Node(s.BOOL, "(", self.of(type_, depth - 1), word, self.of(type_, 0), " AND ", self.of(type_, 0), ")")
        if kind == "in":
            type_ = self.any_type()
            items = []
            for number in range(rng.randint(1, 4)):
                item = self.of(type_, 1) if rng.random() < 0.2 else self.constant(type_, 0.2)
                items += [", " if number else "", item]
            if type_.family == "number" and rng.random() < 0.3:
                word = rng.choice([" = ANY", " <> ALL", " < ANY", " >= ALL", " <> ANY"])
                return Node(s.BOOL, "(", self.of(type_, depth - 1), f"{word} (ARRAY[", *items, "]))")
            return Node(s.BOOL, "(", self.of(type_, depth - 1), rng.choice([" IN (", " NOT IN ("]), *items, "))")
        if kind == "like":
            pattern = Literal(s.TEXT, s.quoted(text := rng.choice(["a%", "%b", "_", "%", "", "%'%", "a\\%", "\\_", "A_%", "%ü%"])), text)
            type_ = self.text_type()
            # A parameter may be a pattern that ends in the middle of an escape.
            tags = {"risky"} | ({"blanks"} if type_.name == "bpchar" else set())
            return Node(s.BOOL, "(", self.of(type_, depth - 1), rng.choice([" LIKE ", " NOT LIKE ", " ILIKE "]), pattern, ")", tags=tags)
        if kind == "distinct":
            type_ = self.any_type()
            word = rng.choice([" IS DISTINCT FROM ", " IS NOT DISTINCT FROM "])
            return Node(s.BOOL, "(", self.of(type_, depth - 1), word, self.of(type_, depth - 1), ")")
        if kind == "is":
            word = rng.choice(["TRUE", "FALSE", "UNKNOWN", "NOT TRUE", "NOT FALSE", "NOT UNKNOWN"])
            return Node(s.BOOL, "(", self.of(s.BOOL, depth - 1), f" IS {word})")
        if kind == "row":
            a, b = self.any_type(), self.any_type()
            word = rng.choice([" = ", " <> ", " < ", " >= "])
            return Node(s.BOOL, "((", self.of(a, 0), ", ", self.of(b, 0), ")", word, "(", self.of(a, 0), ", ", self.of(b, 0), "))", tags={"row"})
        if kind == "subquery":
            return self.subqueries.condition(self, depth)
        return self.leaf(s.BOOL)

    def text_type(self):
        present = [c.type for c in self.columns if c.type.family == "text"]
        return self.rng.choice(present) if present and self.rng.random() < 0.8 else s.TEXT

    def comparison(self, depth):
        rng = self.rng
        a = self.any_type()
        b = a
        if a.family == "number" and rng.random() < 0.3:
            b = rng.choice(NUMBERS)
        elif a.family == "text" and rng.random() < 0.3:
            b = self.text_type()
        elif a.name in ("date", "timestamp", "timestamptz") and rng.random() < 0.2:
            b = rng.choice([s.DATE, s.TIMESTAMP, s.TIMESTAMPTZ])
        left, right = self.of(a, depth), self.of(b, depth)
        return Node(s.BOOL, "(", left, f" {rng.choice(COMPARISONS)} ", right, ")")

    # Values

    def number(self, type_, depth):
        rng = self.rng
        kind = rng.choices(["arithmetic", "negate", "function", "cast", "measure", "subquery"], [8, 1, 2, 2, 2, 1 if self.subqueries else 0])[0]
        if kind == "subquery":
            return self.subqueries.scalar(self, type_)
        if kind == "measure" and type_.name in ("int4", "int8"):
            inner = self.measure(depth)
            return inner if type_.name == "int4" else Node(type_, "CAST(", inner, " AS BIGINT)")
        if kind == "negate":
            return Node(type_, "(- ", self.tame(type_, depth - 1), ")", tags={"risky"})
        if kind == "function":
            if type_.name == "numeric":
                name = rng.choice(["abs", "round", "trunc", "ceil", "floor", "round2"])
                if name == "round2":
                    return Node(type_, "round(", self.tame(type_, depth - 1), f", {rng.choice([0, 1, 2])})")
                return Node(type_, f"{name}(", self.tame(type_, depth - 1), ")")
            if type_.name == "float8":
                name = rng.choice(["abs", "floor", "ceil", "trunc", "round", "sqrt", "exp"])
                tags = {"risky", "libm", "floats"} if name in ("sqrt", "exp") else ()
                return Node(type_, f"{name}(", self.tame(type_, depth - 1), ")", tags=tags)
            return Node(type_, "abs(", self.tame(type_, depth - 1), ")", tags={"risky"})
        if kind == "cast":
            source = rng.choice([t for t in NUMBERS if t.name != type_.name])
            return Node(type_, "CAST(", self.tame(source, depth - 1), f" AS {type_.sql})", tags={"risky", "cast"} | ({"division"} if type_.name == "numeric" and source.name in ("float4", "float8") else set()))
        op = rng.choice(["+", "-", "*", "+", "-", "*", "/", "%"])
        if op == "%" and type_.name in ("float4", "float8"):
            op = "/"
        left = type_
        right = type_
        if type_.name == "int8" and rng.random() < 0.3:
            right = s.INT4
        elif type_.name == "numeric" and rng.random() < 0.4:
            right = rng.choice([s.INT4, s.INT8])
        elif type_.name == "float8" and rng.random() < 0.4:
            right = rng.choice([s.INT4, s.NUMERIC, s.FLOAT4])
        a, b = self.tame(left, depth - 1), self.tame(right, depth - 1)
        if rng.random() < 0.5:
            a, b = b, a
        if op == "%" and type_.name == "numeric" and "division" in a.all_tags() | b.all_tags():
            # What is left of other digits is another number.
            op = "+"
        tags = {"risky"} | ({"division"} if op == "/" and type_.name == "numeric" else set())
        tags |= {"product"} if op == "*" and type_.name == "numeric" else set()
        tags |= {"floats"} if type_.name in ("float4", "float8") else set()
        return Node(type_, "(", a, f" {op} ", b, ")", tags=tags)

    def tame(self, type_, depth):
        """Mostly of small values, so that arithmetic mostly succeeds."""
        if depth > 0 and self.rng.random() < 0.4:
            return self.of(type_, depth)
        return self.leaf(type_, tame=self.rng.random() < 0.9)

    def measure(self, depth):
        """What is an int of something else."""
        rng = self.rng
        kind = rng.choice(["length", "days", "strpos", "octets", "ascii"])
        if kind == "days":
            return Node(s.INT4, "(", self.of(s.DATE, 0), " - ", self.of(s.DATE, 0), ")", tags={"risky"})
        if kind == "strpos":
            return Node(s.INT4, "strpos(", self.of(s.TEXT, depth - 1), ", ", self.of(s.TEXT, 0), ")")
        name = {"length": rng.choice(["length", "char_length"]), "octets": "octet_length", "ascii": "ascii"}[kind]
        type_ = self.text_type()
        tags = {"blanks"} if type_.name == "bpchar" and kind == "octets" else ()
        return Node(s.INT4, f"{name}(", self.of(type_, depth - 1), ")", tags=tags)

    def text(self, depth):
        rng = self.rng
        inner = lambda: self.of(self.text_type(), depth - 1)
        count = lambda: str(rng.choice([0, 1, 2, 3, 5]))
        kind = rng.choice(["concat", "concat", "case", "substr", "trim", "replace", "cast", "pad", "left", "repeat", "reverse", "concat_call"])
        if kind == "concat":
            return Node(s.TEXT, "(", self.of(s.TEXT, depth - 1), " || ", inner(), ")")
        if kind == "case":
            return Node(s.TEXT, rng.choice(["lower(", "upper("]), inner(), ")")
        if kind == "substr":
            return Node(s.TEXT, "substr(", inner(), f", {rng.choice([1, 2, 3])}, {count()})")
        if kind == "trim":
            return Node(s.TEXT, rng.choice(["btrim(", "ltrim(", "rtrim("]), inner(), ")")
        if kind == "replace":
            return Node(s.TEXT, "replace(", inner(), ", ", self.constant(s.TEXT), ", ", self.constant(s.TEXT), ")")
        if kind == "cast":
            source = rng.choice([s.INT2, s.INT4, s.INT8, s.FLOAT8, s.FLOAT4, s.DATE, s.TIMESTAMP, s.TIMESTAMPTZ, s.BOOL])
            return Node(s.TEXT, "CAST(", self.of(source, depth - 1), " AS TEXT)", tags={"as_text"})
        if kind == "pad":
            return Node(s.TEXT, rng.choice(["lpad(", "rpad("]), inner(), f", {count()}, '-+')")
        if kind == "left":
            return Node(s.TEXT, rng.choice(["left(", "right("]), inner(), f", {count()})")
        if kind == "repeat":
            return Node(s.TEXT, "repeat(", inner(), f", {count()})")
        if kind == "reverse":
            return Node(s.TEXT, "reverse(", inner(), ")")
        parts = [inner(), inner()]
        tags = {"blanks"} if any(part.type.name == "bpchar" for part in parts) else ()
        return Node(s.TEXT, "concat(", parts[0], ", ", parts[1], ")", tags=tags)

    def date(self, depth):
        if self.rng.random() < 0.7:
            return Node(s.DATE, "(", self.of(s.DATE, depth - 1), self.rng.choice([" + ", " - "]), str(self.rng.choice([0, 1, 30, 365])), ")", tags={"risky"})
        return Node(s.DATE, "CAST(", self.of(self.rng.choice([s.TIMESTAMP, s.TIMESTAMPTZ]), depth - 1), " AS DATE)")

    def timestamp(self, depth):
        if self.rng.random() < 0.5:
            unit = self.rng.choice(["day", "month", "year", "hour"])
            return Node(s.TIMESTAMP, f"date_trunc('{unit}', ", self.of(s.TIMESTAMP, depth - 1), ")")
        if self.rng.random() < 0.3:
            return Node(s.TIMESTAMP, "(", self.of(s.TIMESTAMPTZ, depth - 1), f" AT TIME ZONE '{self.rng.choice(s.ZONES)}')", tags={"risky"})
        return Node(s.TIMESTAMP, "CAST(", self.of(s.DATE, depth - 1), " AS TIMESTAMP)", tags={"risky"})

    def timestamptz(self, depth):
        rng = self.rng
        kind = rng.choice(["trunc", "trunc", "sum", "zone", "cast"])
        if kind == "trunc":
            # The hours of a day, and the days of a month, are those of a zone.
            unit, zone = rng.choice(["day", "month", "year", "hour"]), rng.choice(["", f", '{rng.choice(s.ZONES)}'"])
            return Node(s.TIMESTAMPTZ, f"date_trunc('{unit}', ", self.of(s.TIMESTAMPTZ, depth - 1), f"{zone})", tags={"risky"})
        if kind == "sum":
            interval = rng.choice(["1 day", "24 hours", "1 month", "1 month -1 day 02:30", "90 minutes"])
            return Node(s.TIMESTAMPTZ, "(", self.of(s.TIMESTAMPTZ, depth - 1), f"{rng.choice([' + ', ' - '])}INTERVAL '{interval}')", tags={"risky"})
        if kind == "zone":
            return Node(s.TIMESTAMPTZ, "(", self.of(s.TIMESTAMP, depth - 1), f" AT TIME ZONE '{rng.choice(s.ZONES)}')", tags={"risky"})
        source = rng.choice([s.DATE, s.TIMESTAMP])
        return Node(s.TIMESTAMPTZ, "CAST(", self.of(source, depth - 1), " AS TIMESTAMP WITH TIME ZONE)", tags={"risky"})
