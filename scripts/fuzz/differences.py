"""What differs from PostgreSQL by decision: the mirror of the table "Differences from PostgreSQL" in docs/guide/sql.md.

Each has a name, which the guide has in its first column, and says of a finding whether it explains it. Every one must be met in a run
that is long enough, or it is reported as stale. What no statement of the fuzzer can meet is in `NEVER_MET`.
"""
import re
from collections import Counter

met = Counter()
# Messages of what is refused: a shape of statements that is refused always tests nothing.
refusals = Counter()


def unsupported(f):
    if f.kind not in ("error", "code") or f.got.state != "0A000":
        return False
    refusals[re.sub(r"\d+", "N", f.got.message)[:90]] += 1
    return True


NO_ROWS = ("SELECT 0", "INSERT 0 0", "UPDATE 0", "DELETE 0")


def evaluation_order(f):
    """Only where the statement can meet the value on one plan and not on another, or another error before it."""
    if f.kind == "code":
        return {f.expected.state[:2], f.got.state[:2]} <= {"21", "22", "23"}
    if f.kind not in ("error", "accepted") or "risky" not in f.tags:
        return False
    of = f.got if f.kind == "error" else f.expected
    # PostgreSQL computes constants also where there is no row, and beside a NULL.
    if f.kind == "accepted" and of.state[:2] == "22" and (f.got.tag in NO_ROWS or re.search(r"\bNULL\b", f.sql)):
        return True
    # A message of Arrow's is not about a row's value but about a type that cannot hold the values that it should.
    if any(word in of.message for word in ("Cannot cast", "Overflowing", "convert")):
        return False
    state = of.state
    # Here the order of a query in FROM is not computed.
    if f.kind == "accepted" and f.way.wrapped and state[:2] == "22" and " ORDER BY " in f.sql:
        return True
    return state[:2] == "22" and any(word in f.sql for word in (" WHERE ", " JOIN ", "CASE ", "coalesce(", " AND ", " OR ", "HAVING", "FILTER", " LIMIT ", "EXISTS", " ON CONFLICT ", "CUBE (", "ROLLUP (", "GROUPING SETS ("))


def memory(f):
    return f.got.state == "53200" and f.way.on == "spill"


# As text and in binary.
PLAIN_ZERO = {b"-0": b"0", b"\x80" + bytes(7): bytes(8), b"\x80" + bytes(3): bytes(4)}
# A sum of what is a BIGINT here is NUMERIC.
PLANNED_INTEGERS = {(21, 20), (23, 20), (21, 23), (20, 1700)}
PLANNED_TEXTS = {(1042, 25), (1043, 25), (1042, 1043), (1043, 1042)}


def types(*allowed):
    """Columns of other types, with the same values."""
    def explains(f):
        pairs = {(a, b) for a, b in zip(f.expected.types, f.got.types) if a != b}
        return f.kind == "types" and len(f.expected.types) == len(f.got.types) and pairs <= set().union(*allowed)
    return explains


def digits(f):
    # A quotient is another value to a set operation.
    is_set = any(word in f.sql for word in (" UNION ", " EXCEPT ", " INTERSECT "))
    return f.kind == "digits" or f.kind == "rows" and "division" in f.tags and is_set


# More digits than fit before the point of a NUMERIC without a precision.
WIDE_LITERAL = re.compile(r"\d{23}")
WIDE_DECIMAL = re.compile(r"is too (large|small) to store in a Decimal128 of precision 38|numeric out of range: more than 38 digits")
CAST_DECIMAL = re.compile(r"Cannot cast to Decimal128\(38, (\d+)\)\. Overflowing on -?(\d+)")


def is_wide(message):
    """Whether it says that a value has too many digits for so many decimals."""
    cast = CAST_DECIMAL.search(message)
    return WIDE_DECIMAL.search(message) is not None or cast is not None and int(cast[1]) + len(cast[2]) > 38


def wide_decimals(f):
    """Decimals of several scales meet in a type of 38 digits, which a value does not fit: the message names it, or the statement has such values."""
    if f.kind not in ("error", "code") or f.got.state != "22003":
        return False
    has_wide = "wide" in f.tags or WIDE_LITERAL.search(f.sql) is not None
    return is_wide(f.got.message) or f.got.message in ("numeric field overflow", "numeric out of range") and has_wide


def wide_integers(f):
    """What overflows an int there is a bigint here."""
    return f.kind == "accepted" and f.expected.state == "22003" and f.expected.message in ("integer out of range", "smallint out of range")


def blanks(f):
    """Other rows, or an error of a number that is made of such a length."""
    return "blanks" in f.tags and (f.kind == "rows" or f.kind == "error" and f.got.state[:2] == "22")


# The statement is executed with a parameter of no type (0).
UNTYPED_PARAMETER = re.compile(r"parameters \[(\d+, )*0[,\]]")
UNDECIDED = {"0A000", "42P08", "42P18", "42725", "42883", "42804", "42846"}


# PostgreSQL's parameter beside an interval is an interval, a type that no parameter has here.
BESIDE_INTERVAL = re.compile(r"\$\d+ [+-] INTERVAL|INTERVAL '[^']*' [+-] \$\d+")


def untyped_parameters(f):
    """A type is found where PostgreSQL finds none, or several; and none for an interval."""
    if f.kind == "code" and f.expected.state == "22007" and f.got.state == "42883" and BESIDE_INTERVAL.search(f.sql):
        return UNTYPED_PARAMETER.search(f.sql) is not None
    return f.kind in ("accepted", "code") and f.expected.state in UNDECIDED and UNTYPED_PARAMETER.search(f.sql) is not None


def zeros(f):
    """A -0 of PostgreSQL's is 0 here, and never the other way about; the rows are the same otherwise."""
    if f.kind != "rows":
        return False
    plain = lambda rows: Counter(tuple(PLAIN_ZERO.get(value, value) for value in row) for row in rows)
    negative = lambda rows: sum(value in PLAIN_ZERO for row in rows for value in row)
    return plain(f.expected.rows) == plain(f.got.rows) and negative(f.got.rows) < negative(f.expected.rows)


# The statement is executed with a parameter of the type bpchar.
BPCHAR_PARAMETER = re.compile(r"parameters \[.*\b1042\b", re.DOTALL)


def bpchar_blanks(f):
    """A CHAR without a length is shown without the blanks at its end; the rows are the same otherwise."""
    if f.kind != "rows" or not BPCHAR_PARAMETER.search(f.sql):
        return False
    is_char = [data_type == 1042 for data_type in f.expected.types]
    cut = lambda rows: Counter(tuple(value.rstrip(b" ") if value is not None and char else value for value, char in zip(row, is_char)) for row in rows)
    return cut(f.expected.rows) == cut(f.got.rows)


def any_of(*explain):
    return lambda f: any(explains(f) for explains in explain)


DIFFERENCES = {
    "refused statements": unsupported,
    "evaluation order": evaluation_order,
    "memory limits": memory,
    "digits of computed numbers": digits,
    "decimals of several scales": wide_decimals,
    "integers of planned queries": any_of(types(PLANNED_INTEGERS), wide_integers),
    "texts of planned queries": any_of(types(PLANNED_TEXTS, PLANNED_INTEGERS), bpchar_blanks),
    "blanks of CHAR in patterns": blanks,
    "parameters without a type": untyped_parameters,
    "zeros of keys": zeros,
}

# Rows of the table that explain nothing here, as no statement has such a thing.
NEVER_MET = {"long literals", "VARCHAR without a length", "aggregates of CHAR", "`X'1F'`"}

# Mistakes that are known and not mended: a name and what explains a finding; `--strict` reports them. An entry goes when its mistake does.
DEFECTS = {
    "dates beyond timestamps": lambda f: f.kind in ("error", "code") and f.got.state == "22008" and f.got.message == "timestamp out of range",
}


def reason(finding, strict=False):
    """The name of what explains it, or None."""
    known = DIFFERENCES if strict else DIFFERENCES | DEFECTS
    return next((name for name, explains in known.items() if explains(finding)), None)
