"""Whether two answers are the same: rows in any order or in order, types, errors."""
from collections import Counter
from decimal import Decimal

FLOATS = {700: 1e-5, 701: 1e-9}
# So many rows that differ are looked at pair by pair, for whether they are close.
PAIRED_MAX = 2_000
# A long product has twenty decimals, some of which a sum or another product takes.
PRODUCT = Decimal("1e-17")
NUMERIC, BYTES, CHAR, TEXTS = 1700, 17, 1042, {25, 1042, 1043}


class Finding:
    """A difference: what kind, and all that a predicate of `differences` may ask."""

    def __init__(self, kind, detail, expected, got, sql, tags, way):
        self.kind, self.detail, self.expected, self.got, self.sql, self.tags, self.way = kind, detail, expected, got, sql, tags, way

    def signature(self):
        """What must stay when a statement is made smaller."""
        return (self.kind, self.expected.state, self.got.state)


class Freedoms:
    """How far values of a column may be apart. `tags` of the statement say which freedom they have."""

    def __init__(self, types, tags, strict):
        self.types = [BYTES] * len(types) if "bytes" in tags else types
        self.rounding = not strict and bool(tags & {"approximate", "libm", "division"})
        self.division = self.rounding and "division" in tags
        self.product = not strict and "product" in tags
        self.zeros = not strict
        self.representative = not strict and "representative" in tags

    def value(self, text, oid):
        """A value of which equals are equal."""
        if text is None:
            return (1, "")
        if oid in FLOATS:
            number = float(text)
            if number == 0 and self.representative:
                number = 0.0
            return (0, f"{number:.{4 if oid == 700 else 8}g}" if self.rounding else repr(number))
        if oid == NUMERIC and text not in (b"NaN", b"Infinity", b"-Infinity"):
            number = Decimal(text.decode())
            if self.division:
                return (0, f"{number:.5g}" if number else "0")
            return (0, str(number.normalize() if number else 0) if self.zeros else str(number))
        shown = text.decode("utf8", "backslashreplace")
        return (0, shown.rstrip(" ") if self.representative and oid in TEXTS else shown)

    def row(self, row):
        return tuple(self.value(value, oid) for value, oid in zip(row, self.types))

    def close(self, a, b):
        """Whether two rows differ by no more than rounding."""
        return all(self._close(x, y, oid) for x, y, oid in zip(a, b, self.types))

    def are_ties(self, expected, got):
        """Whether rows may have changed places because they are ordered by what is rounded: in each place the floats are the same but for that."""
        floats = [n for n, oid in enumerate(self.types) if oid in FLOATS]
        return self.rounding and bool(floats) and all(self._close(a[n], b[n], self.types[n]) for a, b in zip(expected, got) for n in floats)

    def _close(self, x, y, oid):
        if self.value(x, oid) == self.value(y, oid):
            return True
        if oid == NUMERIC and self.product and None not in (x, y) and b"NaN" not in (x, y) and abs(Decimal(x.decode()) - Decimal(y.decode())) < PRODUCT:
            return True
        if x is None or y is None or not (self.rounding and oid in FLOATS or self.division and oid == NUMERIC):
            return False
        p, q = float(x), float(y)
        return abs(p - q) <= FLOATS.get(oid, 1e-5) * max(abs(p), abs(q), 1e-9 if self.division else 0)


def same_rows(expected, got, ordered, freedoms):
    """None, or what differs."""
    if len(expected) != len(got):
        return f"{len(expected)} rows, got {len(got)}"
    a, b = [freedoms.row(row) for row in expected], [freedoms.row(row) for row in got]
    if ordered:
        at = next((n for n in range(len(a)) if a[n] != b[n] and not freedoms.close(expected[n], got[n])), None)
        if at is None or freedoms.are_ties(expected, got) and same_rows(expected, got, False, freedoms) is None:
            return None
        return f"row {at + 1} differs"
    only_a, only_b = Counter(a) - Counter(b), Counter(b) - Counter(a)
    if sum(only_b.values()) > PAIRED_MAX:
        return f"{sum(only_b.values())} rows differ"
    rest = [row for row, canonical in zip(got, b) if canonical in only_b]
    for row in [row for row, canonical in zip(expected, a) if canonical in only_a]:
        match = next((other for other in rest if freedoms.close(row, other)), None)
        if match is None:
            shown = lambda rows: [tuple("NULL" if null else text for null, text in row) for row in list(rows)[:3]]
            return f"missing {shown(only_a)}, unexpected {shown(only_b)}"
        rest.remove(match)
    return None


def as_texts(expected, got):
    """The rows expected. A CHAR that is TEXT in the answer has lost its blanks, as in any conversion; that the types differ is told by itself."""
    lost = [a == CHAR and b in TEXTS and a != b for a, b in zip(expected.types, got.types)]
    if not any(lost):
        return expected.rows
    return [tuple(value.rstrip(b" ") if blank and value is not None else value for value, blank in zip(row, lost)) for row in expected.rows]


def compare(expected, got, ordered, sql, tags, way):
    """The difference between PostgreSQL's answer and Farhold's, or None."""
    def finding(kind, detail):
        return Finding(kind, detail, expected, got, sql, tags, way)

    if expected.failed and got.failed:
        return None if expected.state[:2] == got.state[:2] else finding("code", f"{expected.state} expected, got {got.state}")
    if expected.failed:
        return finding("accepted", f"{expected.state} expected: {expected.message}")
    if got.failed:
        return finding("error", f"{got.state}: {got.message}")
    if expected.tag.split()[:1] == ["SELECT"] or expected.types:
        if len(expected.types) != len(got.types):
            return finding("types", f"{expected.types} expected, got {got.types}")
        rows = as_texts(expected, got)
        detail = same_rows(rows, got.rows, ordered, Freedoms(expected.types, tags, False))
        if detail:
            return finding("rows", detail)
        strict = same_rows(rows, got.rows, ordered, Freedoms(expected.types, tags, True))
        if strict:
            return finding("digits", strict)
        if expected.types != got.types:
            return finding("types", f"{expected.types} expected, got {got.types}")
    if expected.tag != got.tag:
        return finding("rows", f"{expected.tag} expected, got {got.tag}")
    return None
