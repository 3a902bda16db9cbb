"""COPY TO and FROM, as text and CSV: what goes out is compared field by field, what goes in by the whole table."""
from link import Answer

TEXT = 25


class Format:
    """The options of one COPY, and files in it."""

    def __init__(self, rng):
        self.csv = rng.random() < 0.5
        self.delimiter = rng.choice([",", ",", ";", "|", "\t"]) if self.csv else rng.choice(["\t", "\t", "|", ","])
        self.null = rng.choice(["", "", "NULL", "\\N"]) if self.csv else rng.choice(["\\N", "\\N", "NULL", ""])
        self.header = rng.random() < 0.3
        self.quote = rng.choice(['"', '"', "'"]) if self.csv else None

    def sql(self):
        """Those that are so anyway are left out."""
        parts = [f"FORMAT {'csv' if self.csv else 'text'}"]
        if self.delimiter != ("," if self.csv else "\t"):
            parts.append("DELIMITER E'\\t'" if self.delimiter == "\t" else f"DELIMITER '{self.delimiter}'")
        if self.null != ("" if self.csv else "\\N"):
            parts.append(f"NULL '{self.null}'")
        if self.header:
            parts.append("HEADER")
        if self.quote == "'":
            parts.append("QUOTE ''''")
        return f"({', '.join(parts)})"

    def field(self, value):
        """A value as a file has it; CSV's quotes stand where they must, and at some where they need not."""
        if value is None:
            return self.null
        if not self.csv:
            escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", self.delimiter: "\\t" if self.delimiter == "\t" else f"\\{self.delimiter}"}
            return "".join(escapes.get(c, c) for c in value)
        if value in (self.null, "\\.") or any(c in value for c in (self.delimiter, self.quote, "\n", "\r")) or len(value) % 5 == 1:
            return self.quote + value.replace(self.quote, self.quote * 2) + self.quote
        return value

    def file(self, names, rows):
        lines = [names, *([self.field(value) for value in row] for row in rows)]
        return "".join(f"{self.delimiter.join(line)}\n" for line in lines[not self.header:])

    def fields(self, data):
        """What has come out, as rows of texts and None; those of a text stay escaped. A field in quotes is never NULL."""
        text = data.decode()
        if not self.csv:
            return [[None if field == self.null else field for field in line.split(self.delimiter)] for line in text.split("\n")[:-1]]
        rows, row, field, quoted, inside = [], [], "", False, False
        for c in text:
            # Two quotes within quotes end them and begin them anew: one stays.
            if c == self.quote:
                field += c if quoted and not inside else ""
                inside, quoted = not inside, True
            elif inside or c not in (self.delimiter, "\n"):
                field += c
            else:
                row.append(None if field == self.null and not quoted else field)
                field, quoted = "", False
                if c == "\n":
                    rows.append(row)
                    row = []
        return rows


def spoiled(rng, text):
    """A file with a mistake: a line without a field, one field too many, an end in the midst, bytes that are no UTF-8."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    kind = rng.choice(["cut", "more", "end", "bytes", "escape"])
    if kind == "bytes":
        return text.encode() + b"\xff\xfe\n"
    if kind == "end":
        return text.encode()[:-2]
    lines[at] = {"cut": lines[at][:len(lines[at]) // 2], "more": lines[at] + ",\t|;1", "escape": lines[at] + "\\"}[kind]
    return "\n".join(lines).encode()


def out(link, sql, format_, types):
    """The answer as a query's would be; the tag counts rows."""
    answer, data = link.copy_out(sql)
    if answer.failed:
        return answer
    rows = format_.fields(data)
    header = rows.pop(0) if format_.header else None
    if any(len(row) != len(types) for row in rows):
        return Answer(types=(TEXT,), rows=[(line,) for line in data.splitlines()], tag=answer.tag)
    shown = [tuple(None if value is None else value.encode() for value in row) for row in rows]
    return Answer(types=types, rows=shown, tag=f"{answer.tag} {header}")
