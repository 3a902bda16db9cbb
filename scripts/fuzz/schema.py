"""Types, values and tables: random schemas over everything that Farhold stores."""
import random

from tree import Literal

POOL = 7
# Of sessions and of AT TIME ZONE: without changes, with one in March and one in October, and south of the equator.
ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata"]


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


class Type:
    """A type of both databases. `small` and `wild` are the texts of its values: those arithmetic can take, and the extremes. `constants`: extremes
    that a column of the type cannot hold here."""

    def __init__(self, name, sql, oid, small, wild, family, spelled=None, constants=()):
        self.name, self.sql, self.oid, self.small, self.wild, self.family, self.constants = name, sql, oid, small, wild, family, list(constants)
        self.spelled = spelled or name
        # Whether its values may be too long for a NUMERIC without a precision.
        self.wide = False

    def literal(self, text):
        """A value as a constant of an expression, of this very type."""
        if self.name == "int4" or self.name == "numeric" and "." in text:
            sql = f"({text})" if text.startswith("-") else text
            if self.name == "int4" and text == "-2147483648":
                sql = "(-2147483648)"
            return Literal(self, sql, text)
        if self.name == "bool":
            text = {"t": "true", "f": "false"}.get(text, text)
            return Literal(self, text, text)
        if self.name in ("text", "date", "timestamp", "timestamptz"):
            return Literal(self, f"{self.spelled} {quoted(text)}" if self.name != "text" else quoted(text), text)
        if self.name == "bpchar":
            text = text.ljust(self.length)
        return Literal(self, f"CAST({quoted(text)} AS {self.sql})", text)

    def simplest(self):
        return [Literal(self, f"CAST(NULL AS {self.sql})"), self.literal(self.small[0])]

    def __repr__(self):
        return self.sql


TEXTS = ["a", "", "b", "A", "ab", "z'q", "a b"]
WILD_TEXTS = [" a", "a ", "grün", "%", "_", "\\", "a\\b", '"', "it''s", "NULL", "0", "-1", "1.50", "日本", "a\tb", "  ", "pg_class regclass", "x" * 40, "\U0001F600"]

BOOL = Type("bool", "BOOLEAN", 16, ["true", "false"], ["true", "false"], "bool")
INT2 = Type("int2", "SMALLINT", 21, ["0", "1", "2", "3", "-1", "7"], ["32767", "-32768", "32766"], "number")
INT4 = Type("int4", "INT", 23, ["0", "1", "2", "3", "-1", "7", "10"], ["2147483647", "-2147483648", "65536", "1000000"], "number")
INT8 = Type("int8", "BIGINT", 20, ["0", "1", "2", "3", "-1", "7", "100"], ["9223372036854775807", "-9223372036854775808", "4294967296", "9007199254740993"], "number")
FLOAT4 = Type("float4", "REAL", 700, ["0", "1", "2.5", "-1.5", "3", "0.1"], ["NaN", "Infinity", "-Infinity", "-0", "3.4e38", "1e-40", "16777217"], "number")
FLOAT8 = Type("float8", "DOUBLE PRECISION", 701, ["0", "1", "2.5", "-1.5", "3", "0.1"], ["NaN", "Infinity", "-Infinity", "-0", "1e308", "1e-308", "5e-324", "9007199254740993", "1e-20"], "number", "double precision")
NUMERIC = Type("numeric", "NUMERIC", 1700, ["0", "1", "2.50", "-1.5", "3", "0.1"], ["1234567890.123", "-0.001", "99999.99", "0.1234567890123456", "-1234567890123456789012.1234567890123456"], "number",
               constants=["0.12345678901234567", "-12345678901.12345678901234567", "12345678901234567890123456789", "-123456789012345678901234567890.5", "99999999999999999999999999999999999999"])
TEXT = Type("text", "TEXT", 25, TEXTS, WILD_TEXTS, "text")
BYTEA = Type("bytea", "BYTEA", 17, ["\\x", "\\x00", "\\x61", "\\x6162"], ["\\xff00ff", "\\x5c78", "\\x" + "00" * 9], "bytea")
DATE = Type("date", "DATE", 1082, ["2024-02-29", "2023-12-31", "2024-03-01", "2000-01-01", "1999-12-31"], ["0001-01-01", "9999-12-31", "1582-10-15", "1969-12-31", "0044-03-15 BC", "infinity", "-infinity", "4714-11-24 BC", "5874897-12-31"], "date")
TIMESTAMP = Type("timestamp", "TIMESTAMP", 1114, ["2024-02-29 12:34:56.789", "2023-12-31 23:59:59.999999", "2024-03-01 00:00:00", "2000-01-01 00:00:00"], ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00.000001", "infinity", "-infinity", "0044-03-15 12:34:56 BC", "4713-01-01 00:00:00 BC", "294246-12-31 23:59:59.999999"], "timestamp")

# Its texts have a zone, or mean the session's. Moments around changes of the clocks in `ZONES`.
TIMESTAMPTZ = Type("timestamptz", "TIMESTAMP WITH TIME ZONE", 1184, ["2024-02-29 12:34:56.789+00", "2024-03-31 01:30:00+00", "2024-10-27 00:30:00+00", "2024-10-27 02:30:00", "2024-03-10 02:30:00", "2000-01-01 00:00:00"], ["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999+00", "1890-01-01 00:00:00", "infinity", "-infinity", "0044-03-15 12:34:56 BC", "4713-01-01 00:00:00 BC", "294246-12-30 23:59:59.999999+00"], "timestamptz", "timestamptz")


def numeric_of(precision, scale):
    most = "9" * (precision - scale) + ("." + "9" * scale if scale else "")
    least = "0." + "0" * (scale - 1) + "1"
    if precision == scale:
        small = [least, f"{0.5:.{scale}f}", f"{0:.{scale}f}", "-" + least]
    else:
        small = [f"{n:.{scale}f}" for n in (0, 1, 2, 3, -1)] + ([f"{2.5:.{scale}f}", least] if scale else ["7"])
    made = Type("numeric", f"NUMERIC({precision},{scale})", 1700, small, [most, "-" + most], "number")
    made.wide = precision - scale > 22
    return made


def char_of(length):
    fit = [t for t in TEXTS if len(t) <= length]
    made = Type("bpchar", f"CHAR({length})", 1042, fit, [t for t in WILD_TEXTS if len(t) <= length], "text")
    made.length = length
    return made


def varchar_of(length):
    fit = [t for t in TEXTS if len(t) <= length]
    return Type("varchar", f"VARCHAR({length})", 1043, fit, [t for t in WILD_TEXTS if len(t) <= length], "text")


EXPRESSION_TYPES = [BOOL, INT2, INT4, INT8, FLOAT4, FLOAT8, NUMERIC, TEXT, BYTEA, DATE, TIMESTAMP, TIMESTAMPTZ]


def column_type(rng):
    kind = rng.choice(["bool", "int2", "int4", "int4", "int8", "int8", "float4", "float8", "float8", "numeric", "numeric", "char", "varchar", "text", "text", "bytea", "date", "timestamp", "timestamptz"])
    if kind == "numeric":
        precision, scale = rng.choice([(5, 0), (6, 2), (12, 3), (18, 6), (10, 10), (30, 4), (38, 0)])
        return numeric_of(precision, scale)
    if kind == "char":
        return char_of(rng.choice([1, 3, 8]))
    if kind == "varchar":
        return varchar_of(rng.choice([3, 12]))
    return {t.name: t for t in EXPRESSION_TYPES}[kind]


class Column:
    def __init__(self, name, type_, wild, not_null, default=None):
        self.name, self.type, self.wild, self.not_null, self.default = name, type_, wild, not_null, default

    def sql(self):
        parts = [self.name, self.type.sql]
        if self.default is not None:
            parts.append(f"DEFAULT {quoted(self.default)}")
        if self.not_null:
            parts.append("NOT NULL")
        return " ".join(parts)

    def value(self, rng, nulls=0.15):
        """The text of a value, or None."""
        if not self.not_null and rng.random() < nulls:
            return None
        if self.wild and self.type.wild and rng.random() < 0.4:
            return rng.choice(self.type.wild)
        return rng.choice(self.type.small)


class Check:
    """A CHECK constraint: its condition, the column that it reads, and whether a text of it passes; NULL does."""

    def __init__(self, sql, name, passes):
        self.sql, self.name, self.passes = sql, name, passes

    def holds(self, row, at):
        value = row[at[self.name]]
        return value is None or self.passes(value)


def check(rng, column):
    """A check that most values of the column's type pass; None of a type without one."""
    name = column.name
    if column.type.family == "number":
        # What is greater than all numbers in both databases is NaN.
        value = lambda text: float("inf") if text == "NaN" else float(text)
        number = rng.choice([2, 3, 7])
        return rng.choice([
            Check(f"{name} <> {number}", name, lambda text: value(text) != number),
            Check(f"{name} > -1 OR {name} < -1.5", name, lambda text: value(text) > -1 or value(text) < -1.5),
            Check(f"NOT {name} BETWEEN 3 AND 5", name, lambda text: not 3 <= value(text) <= 5),
            Check(f"{name} NOT IN (1, {number})", name, lambda text: value(text) not in (1, number)),
        ])
    if column.type.family == "text":
        return rng.choice([
            Check(f"{name} <> 'b'", name, lambda text: text.rstrip(" ") != "b"),
            Check(f"length({name}) < 30", name, lambda text: len(text.rstrip(" ")) < 30),
            Check(f"{name} NOT LIKE 'z%'", name, lambda text: not text.startswith("z")),
            Check(f"coalesce({name}, 'a') IN ('a', '') OR upper({name}) <> 'A B'", name, lambda text: text.upper().rstrip(" ") != "A B"),
        ])
    if column.type.name == "date":
        return Check(f"{name} <> DATE '2000-01-01'", name, lambda text: text != "2000-01-01")
    return None


class Table:
    """`key`: names of the primary key's columns, or none. `rows`: lists of texts and None."""

    def __init__(self, name, columns, key, unique, indexes, options, rows, checks=()):
        self.name, self.columns, self.key, self.unique, self.indexes, self.options, self.rows = name, columns, key, unique, indexes, options, rows
        self.checks = list(checks)

    def create(self, for_farhold):
        lines = [column.sql() for column in self.columns]
        if self.key:
            lines.append(f"PRIMARY KEY ({', '.join(self.key)})")
        if self.unique:
            lines.append(f"UNIQUE ({', '.join(self.unique)})")
        lines += [f"CHECK ({check.sql})" for check in self.checks]
        with_ = f" WITH ({self.options})" if for_farhold and self.options else ""
        statements = [f"CREATE TABLE {self.name} ({', '.join(lines)}){with_}"]
        for number, columns in enumerate(self.indexes):
            statements.append(f"CREATE INDEX {self.name}_i{number} ON {self.name} ({', '.join(columns)})")
        return statements

    def inserts(self):
        """Rows go in by literals of no type, as an assignment to the column reads them."""
        rows = [f"({', '.join('NULL' if v is None else quoted(v) for v in row)})" for row in self.rows]
        return [f"INSERT INTO {self.name} VALUES {', '.join(rows[at:at + 100])}" for at in range(0, len(rows), 100)]

    def fill(self, rng, count):
        """Up to `count` rows whose keys differ; the key of a value is what the type says is equal."""
        taken, taken_unique = set(), set()
        at = {column.name: number for number, column in enumerate(self.columns)}
        for _ in range(count):
            row = [column.value(rng) for column in self.columns]
            if not all(check.holds(row, at) for check in self.checks):
                continue
            key = self._key_of(row, self.key)
            unique = self._key_of(row, self.unique)
            if (self.key and key in taken) or (self.unique and None not in unique and unique in taken_unique):
                continue
            taken.add(key)
            taken_unique.add(unique)
            self.rows.append(row)

    def _key_of(self, row, names):
        # Blanks, and the sign of a zero: what CHAR and floats take for one value.
        at = {column.name: number for number, column in enumerate(self.columns)}
        return tuple(None if row[at[n]] is None else row[at[n]].rstrip(" ").replace("-0", "0") for n in names)


def table(rng, name, rows):
    columns = []
    if rng.random() < 0.75:
        columns.append(Column("id", rng.choice([INT4, INT4, INT8, INT2]), False, True))
        columns[0].type = Type(columns[0].type.name, columns[0].type.sql, columns[0].type.oid, [str(n) for n in range(1, 60)], [], "number", columns[0].type.spelled)
        key = ["id"]
    else:
        key = []
    for number in range(rng.randint(2, 5)):
        wild = rng.random() < 0.4
        type_ = column_type(rng)
        default = rng.choice(type_.small) if rng.random() < 0.15 else None
        columns.append(Column(f"c{number}", type_, wild, rng.random() < 0.15, default))
    others = [column for column in columns if column.name != "id"]
    if not key and rng.random() < 0.7:
        for column in rng.sample(others, min(len(others), rng.choice([1, 2, 2]))):
            column.not_null = True
            key.append(column.name)
    unique = [rng.choice(others).name] if rng.random() < 0.15 else []
    indexes = [[c.name for c in rng.sample(others, rng.randint(1, min(2, len(others))))] for _ in range(rng.choice([0, 0, 1, 1, 2]))]
    options = rng.choice(["", "", "", "hash = false", "placement = 'replicated'"])
    # By numbers of their own: what else a seed makes stays as it was before there were checks.
    state = rng.getstate()[1]
    own = random.Random(f"{name} {state[:2]} {state[-1]}")
    checks = [check(own, column) for column in own.sample(others, min(len(others), own.choice([0, 0, 0, 1, 2])))]
    made = Table(name, columns, key, unique, indexes, options, [], [one for one in checks if one])
    made.fill(rng, rows)
    return made


def schema(rng):
    """Two or three tables; some are empty, some have but one row."""
    return [table(rng, f"t{number}", rng.choice([0, 1, 5, 12, 12, 30, 60])) for number in range(rng.choice([2, 3, 3]))]
