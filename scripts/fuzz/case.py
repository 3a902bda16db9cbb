"""One case: a schema from a seed and the statements asked of it."""
import random
import re

import blocks
import copies
import differences
import large
import schema
import ways
from analytics import Analytics
from bench import Broken
from changes import Changes
from compare import compare
from link import Answer, Lost, TooManyRows
from tree import Node

STATEMENTS = 40
# Shares of the statements that are changes, whole transactions, and COPY.
CHANGES, BLOCKS, COPIES = 0.22, 0.04, 0.03
# One case in so many has tables that do not fit the memory of joins; it asks fewer statements.
LARGE_EVERY = 20
STATEMENTS_OF_LARGE = 8


def shape_of(sql):
    """The statement without its names and constants."""
    sql = re.sub(r"\b[qtc]\d+\b", "x", sql)
    sql = re.sub(r"'(?:[^']|'')*'|\b\d+(\.\d+)?\b", "?", sql)
    return re.sub(r"\s+", " ", sql)


def comment(text):
    return "\n".join(f"-- {line}" for line in str(text).splitlines())


class Report:
    """A difference as a file that can be replayed against both."""

    def __init__(self, bench, seed, number, finding, tables, node, way, way_seed):
        self.seed, self.number, self.finding, self.zone = seed, number, finding, bench.zone
        self.sql, self.parameters = way.rendered(node, way_seed)
        self.tables, self.node, self.way = tables, node, way

    def shape(self):
        """Two reports of one shape are probably one mistake."""
        return (self.finding.signature(), shape_of(self.node.sql()))

    def text(self):
        lines = [f"-- seed {self.seed}, statement {self.number}: {self.finding.kind}: {self.finding.detail}".replace("\n", " "), f"-- way: {self.way}"]
        lines.append(f"SET TIME ZONE '{self.zone}';")
        for table in self.tables:
            lines += [f"{statement};" for statement in [*table.create(True), *table.inserts()]]
        if self.finding.sql != self.node.sql():
            lines.append(comment(f"asked as: {self.finding.sql}"))
        lines.append(f"{self.node.sql() if not self.way.wrapped else self.sql};")
        lines += ["-- PostgreSQL:", comment(self.finding.expected), "-- Farhold:", comment(self.finding.got)]
        return "\n".join(lines) + "\n"


class BlockReport:
    """As `Report`, of a whole transaction."""

    def __init__(self, bench, seed, number, made, tables):
        self.seed, self.number, self.finding, self.said = seed, number, made.finding, made.said
        self.loaded = [f"SET TIME ZONE '{bench.zone}';"]
        self.loaded += [f"{statement};" for table in tables for statement in [*table.create(True), *table.inserts()]]

    def shape(self):
        return (self.finding.signature(), shape_of("; ".join(self.said)))

    def text(self):
        finding = self.finding
        lines = [f"-- seed {self.seed}, statement {self.number}: {finding.kind}: {finding.detail}".replace("\n", " "), f"-- way: {finding.way}"]
        lines += [*self.loaded, *(f"{sql};" for sql in self.said), comment(f"differs: {finding.sql}")]
        return "\n".join([*lines, "-- PostgreSQL:", comment(finding.expected), "-- Farhold:", comment(finding.got)]) + "\n"


def has_large_tables(seed):
    return seed % LARGE_EVERY == LARGE_EVERY - 1


def statements_of(seed, statements):
    return min(statements, STATEMENTS_OF_LARGE) if has_large_tables(seed) else statements


def run(bench, seed, reduce, statements=STATEMENTS, stop=False):
    """The reports of a case, and what was not loaded alike. `stop`: at the first report."""
    rng = random.Random(seed)
    is_large = has_large_tables(seed)
    statements = statements_of(seed, statements)
    tables = large.schema(rng) if is_large else schema.schema(rng)
    reports, refusals = [], []
    try:
        bench.in_zone(random.Random(f"{seed} zone").choice(schema.ZONES))
        refusals += bench.load(tables)
    except Broken as broken:
        return reports, [(str(broken), [])]
    for number in range(statements):
        # A seed for each statement: what one does, and how often it is tried, moves none of the others.
        own = random.Random(f"{seed} {number}")
        if is_large:
            report = query(bench, own, tables, seed, number, False, large.LargeQueries)
        elif (share := own.random()) < CHANGES:
            report = change(bench, own, tables, seed, number, reduce)
        elif share < CHANGES + BLOCKS:
            report = block(bench, own, tables, seed, number, reduce)
        elif share < CHANGES + BLOCKS + COPIES:
            report = (copy_in if own.random() < 0.5 else copy_out)(bench, own, tables, seed, number)
        else:
            report = query(bench, own, tables, seed, number, reduce)
        if report:
            reports.append(report)
            if stop:
                break
            if not is_large:
                bench.load(tables)
    return reports, refusals


def query(bench, rng, tables, seed, number, reduce, generator=Analytics):
    node, ordered = generator(rng, tables).query()
    try:
        expected = bench.expected(node.sql(), node.all_tags())
    except TooManyRows:
        bench.asked -= 1
        return None
    is_large = generator is large.LargeQueries
    if is_large:
        bench.spilled[spills(bench, node)] += 1
    for at, way in enumerate(ways.for_large(rng) if is_large else ways.for_query(rng)):
        way_seed = f"{seed} {number} {at}"
        finding = bench.difference(node, ordered, way, way_seed, expected)
        if finding and not counted(bench, finding):
            return reported(bench, tables, node, ordered, way, way_seed, finding, None, seed, number, reduce)
    return None


def spills(bench, node):
    """Whether the joins of the query spill on the server that should; None: it has failed, of memory perhaps."""
    try:
        spilled = large.spilled_bytes(bench.farhold["spill"], node.sql())
    except Lost:
        bench.recover("spill")
        return None
    return spilled and spilled > 0


def change(bench, rng, tables, seed, number, reduce):
    node, table = Changes(rng, tables).change()
    expected = bench.expected(node.sql(), node.all_tags())
    differs = False
    for at, way in enumerate(ways.for_change(rng)):
        way_seed = f"{seed} {number} {at}"
        finding = bench.difference(node, False, way, way_seed, expected)
        decided = finding and counted(bench, finding)
        if not finding or decided:
            # One may have changed the table and the other not, as decided.
            left = bench.table_difference(table, way.on, node)
            differs = differs or left is not None
            finding = None if left is None or decided or counted(bench, left) else left
        if finding:
            return reported(bench, tables, node, False, way, way_seed, finding, table, seed, number, reduce)
    table.rows = bench.rows_of(table)
    if differs:
        bench.load(tables)
    return None


def block(bench, rng, tables, seed, number, reduce):
    steps, end = blocks.steps(rng, tables)
    decided = lambda finding: counted(bench, finding)
    made = blocks.Block(bench, tables, decided)
    if made.run(steps, end) is None:
        for table in tables:
            table.rows = bench.rows_of(table)
        if made.differs:
            bench.load(tables)
        return None
    if reduce:
        again = blocks.replay(bench, tables, steps, end, decided)
        if again.finding and again.finding.signature() == made.finding.signature():
            made = blocks.reduced(bench, tables, steps, end, again, decided)
    return BlockReport(bench, seed, number, made, tables)


def copy_out(bench, rng, tables, seed, number):
    """A table or a query. Servers show values of columns whose types differ differently, so each says its types before."""
    if rng.random() < 0.5:
        table = rng.choice(tables)
        columns = rng.sample(table.columns, rng.randint(1, len(table.columns)))
        names = ", ".join(column.name for column in columns)
        node, ordered, what = Node(None, f"SELECT {names} FROM {table.name}"), False, f"{table.name} ({names})"
    else:
        node, ordered = Analytics(rng, tables).query()
        what = f"({node.sql()})"
    format_ = copies.Format(rng)
    sql = f"COPY {what} TO STDOUT WITH {format_.sql()}"
    answers = []
    for name in (None, *bench.farhold):
        answers.append(asked(bench, name, lambda link: copies.out(link, sql, format_, link.simple(node.sql()).types)))
    bench.asked += 1
    for name, answer in zip(bench.farhold, answers[1:]):
        answer = bench.corrupt(answer) if bench.corrupt else answer
        way = ways.Way(name, "simple")
        finding = compare(answers[0], answer, ordered, sql, node.all_tags(), way)
        if finding and not counted(bench, finding):
            return Report(bench, seed, number, finding, tables, Node(None, sql), way, 0)
    return None


def asked(bench, name, how):
    """The answer of PostgreSQL (None) or another; of one that is lost, that."""
    try:
        return how(bench.farhold[name] if name else bench.postgres)
    except Lost as lost:
        if name is None:
            raise
        return Answer("lost", f"{lost} {bench.recover(name)}")


def copy_in(bench, rng, tables, seed, number):
    """New rows, some of keys that are there, some files with a mistake."""
    table = rng.choice(tables)
    columns = table.columns if rng.random() < 0.5 else rng.sample(table.columns, rng.randint(1, len(table.columns)))
    rows = [[column.value(rng) for column in columns] for _ in range(rng.choice([0, 1, 1, 2, 5]))]
    format_ = copies.Format(rng)
    names = [column.name for column in columns]
    file = format_.file(names, rows)
    data = copies.spoiled(rng, file) if rng.random() < 0.2 else file.encode()
    sql = f"COPY {table.name} ({', '.join(names)}) FROM STDIN WITH {format_.sql()}"
    expected = bench.postgres.copy_in(sql, data)
    bench.asked += 1
    node, shown, differs = Node(None, sql), f"{sql}  file {data!r}", False
    for name in bench.farhold:
        way = ways.Way(name, "simple")
        answer = asked(bench, name, lambda link: link.copy_in(sql, data))
        finding = compare(expected, bench.corrupt(answer) if bench.corrupt else answer, False, shown, frozenset(), way)
        decided = finding and counted(bench, finding)
        if not finding or decided:
            left = bench.table_difference(table, name, node)
            differs = differs or left is not None
            finding = None if left is None or decided or counted(bench, left) else left
        if finding:
            finding.sql = shown
            return Report(bench, seed, number, finding, tables, node, way, 0)
    table.rows = bench.rows_of(table)
    if differs:
        bench.load(tables)
    return None


def counted(bench, finding):
    name = differences.reason(finding, bench.strict)
    if name:
        differences.met[name] += 1
    return name


def reported(bench, tables, node, ordered, way, way_seed, finding, changed, seed, number, reduce):
    if reduce:
        try:
            smaller = bench.reduced(tables, node, ordered, way, way_seed, finding.signature(), changed)
            if smaller:
                small_tables, small = smaller
                bench.load([*small_tables])
                expected = bench.postgres.simple(small.sql())
                again = bench.difference(small, ordered, way, way_seed, expected)
                if again is None and changed is not None:
                    again = bench.table_difference(changed, way.on, small)
                if again:
                    return Report(bench, seed, number, again, small_tables, small, way, way_seed)
        except Lost as lost:
            finding.detail += f" (while reducing: {lost})"
    return Report(bench, seed, number, finding, tables, node, way, way_seed)
