"""The three servers with the same tables in them: statements are asked of them, differences found and made smaller."""
import copy
import time
from collections import Counter

import differences
from compare import compare
from link import Answer, Link, Lost
from processes import LIMIT_S
from tree import Node, variants
from ways import Way

TRIALS_MAX = 200
# Tags by which values that are the same may have other bytes.
FREEDOMS = {"approximate", "libm", "division", "representative"}
ROWS_QUERY = "SELECT * FROM {} AS t"


class Broken(Exception):
    """A server cannot take the schema, so that no statement can be compared."""


class Bench:
    """`servers`: what `Farhold` starts, by name. `corrupt` may change answers, to see whether it is noticed; `strict`: known mistakes are
    reported too."""

    def __init__(self, postgres_url, servers, strict):
        self.servers, self.strict, self.corrupt = servers, strict, None
        self.postgres = Link(postgres_url)
        self.farhold = {name: Link(server.url()) for name, server in servers.items()}
        self.postgres.simple("SET client_min_messages = error")
        self.asked, self.zone = 0, "UTC"
        # Queries of large tables, by whether their joins spill.
        self.spilled = Counter()
        self.names = set()

    def close(self):
        for link in [self.postgres, *self.farhold.values()]:
            link.close()

    def in_zone(self, zone):
        """All sessions are in a time zone from here on."""
        self.zone = zone
        for link in [self.postgres, *self.farhold.values()]:
            link.zone = zone
            self._all_take(link, [f"SET TIME ZONE '{zone}'"])

    # Tables

    def load(self, tables):
        """Puts the tables in the place of those that are there. Gives what Farhold would not take: (statement, answer)."""
        refused = []
        drops = [f"DROP TABLE IF EXISTS {name}" for name in sorted(self.names)]
        for statement in drops:
            self.postgres.simple(statement)
            for link in self.farhold.values():
                link.simple(statement)
        self.names = {table.name for table in tables}
        for table in tables:
            self._all_take(self.postgres, table.create(False))
            for link in self.farhold.values():
                self._all_take(link, table.create(True))
            refused += self._fill(table)
        for name, server in self.servers.items():
            if server.keeps_columns:
                self._make_segments(self.farhold[name], tables)
        return refused

    def _make_segments(self, link, tables):
        """The rows so far are in segments from here on, and what changes later is beside them."""
        # The first copy must be gone, or it stays as it is.
        for option, waits_for in (("none", "state = 'kept'"), ("all", "state <> 'kept' OR segments = 0 AND table_rows > 0")):
            self._all_take(link, [f"ALTER TABLE {table.name} SET (columns = '{option}')" for table in tables])
            until = time.monotonic() + LIMIT_S
            while (left := link.simple(f"SELECT relname, state FROM pg_catalog.farhold_columns WHERE {waits_for}")).rows or left.failed:
                if left.failed or time.monotonic() > until:
                    raise Broken(f"columns are not built: {left}")
                time.sleep(0.005)

    def _all_take(self, link, statements):
        for statement in statements:
            answer = link.simple(statement)
            if answer.failed:
                raise Broken(f"{statement}: {answer}")

    def _fill(self, table):
        """Rows that one of them refuses are left out everywhere."""
        refused = []
        whole = table.inserts()
        links = [self.postgres, *self.farhold.values()]
        if all(not link.simple(statement).failed for link in links for statement in whole):
            return []
        for link in links:
            self._all_take(link, [f"DELETE FROM {table.name}"])
        kept = []
        for row in table.rows:
            one = copy.copy(table)
            one.rows = [row]
            statement = one.inserts()[0]
            answers = [link.simple(statement) for link in links]
            if all(not answer.failed for answer in answers):
                kept.append(row)
                continue
            if len({answer.failed for answer in answers}) > 1:
                refused.append((statement, answers))
            for link, answer in zip(links, answers):
                if not answer.failed:
                    table.rows = kept
                    self._all_take(link, [f"DELETE FROM {table.name}", *table.inserts()])
        table.rows = kept
        return refused

    def rows_of(self, table):
        """What PostgreSQL has in the table now."""
        answer = self.postgres.simple(ROWS_QUERY.format(table.name))
        return [[None if v is None else v.decode() for v in row] for row in answer.rows]

    # Statements

    def expected(self, sql, tags):
        self.asked += 1
        return self.postgres.bounded(sql)

    def asked_of(self, way, node, seed):
        sql, parameters = way.rendered(node, seed)
        link = self.farhold[way.on]
        answer = way.ask(link, sql, parameters)
        if self.corrupt:
            answer = self.corrupt(answer)
        return answer

    def difference(self, node, ordered, way, seed, expected):
        """The finding, if there is one."""
        if way.form == "prepared":
            return self.difference_of_executions(node, ordered, way, seed)
        try:
            answer = self.asked_of(way, node, seed)
        except Lost as lost:
            said = self.recover(way.on)
            return compare(expected, Answer("lost", f"{lost} {said}"), False, node.sql(), node.all_tags(), way)
        sql, parameters = way.rendered(node, seed)
        # What explains a difference may be the type of a parameter.
        sql = f"{sql}  parameters {parameters}" if parameters else sql
        tags = node.all_tags()
        if way.form == "binary" and not answer.failed and not expected.failed:
            if tags & FREEDOMS or 1700 in expected.types or expected.types != answer.types:
                return None
            expected = self.postgres.extended(node.sql(), binary=True)
            tags = tags | {"bytes"}
        return compare(expected, answer, ordered and node.is_ordered() and not way.wrapped, sql, tags, way)

    def difference_of_executions(self, node, ordered, way, seed):
        """PostgreSQL executes the statement in the same way: what a parameter of no type is depends on it."""
        sql, parameters = way.rendered(node, seed)
        untyped = way.untyped(seed, len(parameters))
        oids = [0 if free else oid for (oid, _), free in zip(parameters, untyped)]
        executions = [[text for _, text in parameters], *way.values(node, seed)]
        shown = f"{sql}  parameters {oids} {executions}"
        tags = node.all_tags()
        if any(untyped):
            # Arithmetic may be that of NUMERIC then.
            tags = tags | {"division", "product"}
        expected = way.executed(self.postgres, sql, oids, executions)
        try:
            answers = way.executed(self.farhold[way.on], sql, oids, executions)
        except Lost as lost:
            said = self.recover(way.on)
            return compare(expected[0], Answer("lost", f"{lost} {said}"), False, shown, tags, way)
        if len(expected) != len(answers):
            return compare(expected[0], answers[0], False, shown, tags, way)
        for a, b in zip(expected, answers):
            b = self.corrupt(b) if self.corrupt else b
            finding = compare(a, b, ordered and node.is_ordered() and not way.wrapped, shown, tags, way)
            if finding:
                return finding
            if a.failed and way.block:
                break
        return None

    def recover(self, name):
        """A connection that is broken is opened anew, a server that has ended is started anew (and is empty then)."""
        self.farhold[name].close()
        said = self.servers[name].last_words()
        try:
            self.farhold[name] = Link(self.servers[name].url(), self.zone)
        except Lost:
            self.servers[name].again()
            self.farhold[name] = Link(self.servers[name].url(), self.zone)
        return said

    # Reducing

    def reduced(self, tables, node, ordered, way, seed, signature, changed=None):
        """The smallest tables and statement that still differ by the signature. `changed`: the table that the statement changes."""
        tables = [copy.copy(table) for table in tables]
        self.trials = 0

        def differs(tables, node):
            self.trials += 1
            try:
                self.load([copy.copy(table) for table in tables])
                expected = self.postgres.simple(node.sql())
                finding = self.difference(node, ordered, way, seed, expected)
                if finding is None and changed is not None:
                    finding = self.table_difference(next(t for t in tables if t.name == changed.name), way.on, node)
            except (Broken, Lost):
                return False
            return finding is not None and finding.signature() == signature and not differences.reason(finding, self.strict)

        if not differs(tables, node):
            return None
        progress = True
        while progress and self.trials < TRIALS_MAX:
            progress = False
            for candidate in variants(node):
                if self.trials >= TRIALS_MAX:
                    break
                if len(candidate.sql()) < len(node.sql()) and differs(tables, candidate):
                    node, progress = candidate, True
                    break
        for number in range(len(tables) - 1, -1, -1):
            rest = tables[:number] + tables[number + 1:]
            if f"{tables[number].name} " not in node.sql() + " " and f"{tables[number].name}(" not in node.sql() and differs(rest, node):
                tables = rest
        for number in range(len(tables)):
            tables[number] = self._fewer_rows(tables, number, node, differs)
            tables[number] = self._plainer(tables, number, node, differs)
        return tables, node

    def _fewer_rows(self, tables, number, node, differs):
        table = tables[number]
        size = max(1, len(table.rows) // 2)
        while size:
            at = 0
            while at < len(table.rows) and self.trials < 2 * TRIALS_MAX:
                smaller = copy.copy(table)
                smaller.rows = table.rows[:at] + table.rows[at + size:]
                if differs([*tables[:number], smaller, *tables[number + 1:]], node):
                    table = smaller
                else:
                    at += size
            size //= 2
        return table

    def _plainer(self, tables, number, node, differs):
        """Without what is no part of it: indexes, options, columns."""
        table = tables[number]
        for change in ({"indexes": []}, {"options": ""}, {"unique": []}, {"checks": []}, {"key": []}):
            smaller = copy.copy(table)
            smaller.__dict__.update(change)
            if smaller.__dict__ != table.__dict__ and differs([*tables[:number], smaller, *tables[number + 1:]], node):
                table = smaller
        for column in list(table.columns):
            used = {*table.key, *table.unique, *(name for names in table.indexes for name in names)}
            if column.name in used or len(table.columns) == 1:
                continue
            at = table.columns.index(column)
            smaller = copy.copy(table)
            smaller.columns = table.columns[:at] + table.columns[at + 1:]
            smaller.rows = [row[:at] + row[at + 1:] for row in table.rows]
            if differs([*tables[:number], smaller, *tables[number + 1:]], node):
                table = smaller
        return table

    def table_difference(self, table, on, change):
        """Whether a whole table is other than PostgreSQL's, after the statement `change`, by whose freedoms it is compared."""
        sql = ROWS_QUERY.format(table.name)
        expected = self.postgres.simple(sql)
        finding = self.difference(Node(None, sql, tags=change.all_tags()), False, Way(on, "simple"), 0, expected)
        if finding:
            finding.sql = change.sql()
        return finding
