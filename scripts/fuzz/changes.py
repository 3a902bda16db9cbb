"""Random INSERT, UPDATE and DELETE; what they leave behind is compared by the whole table."""
import schema as s
from expressions import Expressions, Reference
from queries import Queries, references
from tree import Clauses, Literal, Node


class Changes:
    def __init__(self, rng, tables):
        self.rng, self.tables = rng, tables

    def change(self):
        """The statement and the table that it changes."""
        kinds = [self.insert, self.insert_select, self.update, self.update_from, self.delete, self.delete_using]
        while True:
            table = self.rng.choice(self.tables)
            statement = self.rng.choices(kinds, [6, 2, 6, 1, 4, 1])[0](table)
            # What differs by decision would stay in the table, where nothing explains it.
            if "blanks" not in statement.all_tags():
                return statement, table

    def value(self, column):
        """A value as a statement has it: of the column's type, of no type, or an expression."""
        rng = self.rng
        text = column.value(rng)
        if text is None:
            return Literal(column.type, "NULL")
        kind = rng.random()
        if kind < 0.6:
            return Literal(column.type, s.quoted(text), text)
        if kind < 0.8:
            return column.type.literal(text)
        return Expressions(rng, []).of(column.type, 2)

    def returning(self, table, alias=None):
        if self.rng.random() < 0.5:
            return []
        columns = references(table, alias)
        expressions = Expressions(self.rng, columns)
        items = [self.rng.choice(columns) if self.rng.random() < 0.7 else expressions.of(expressions.any_type(), 2) for _ in range(self.rng.randint(1, 3))]
        return [Node(None, item, f" AS c{number}") for number, item in enumerate(items)]

    def insert(self, table):
        rng = self.rng
        if rng.random() < 0.4:
            columns = table.columns
        else:
            must = [c for c in table.columns if c.not_null]
            columns = must + [c for c in table.columns if not c.not_null and rng.random() < 0.6]
            columns = rng.sample(columns or table.columns, len(columns or table.columns))
        rows = []
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            parts = ["("]
            for number, column in enumerate(columns):
                value = Node(None, "DEFAULT") if rng.random() < 0.05 and not column.not_null else self.value(column)
                parts += [", " if number else "", value]
            rows.append(Node(None, *parts, ")"))
        names = ", ".join(c.name for c in columns)
        named = f" ({names})" if columns is not table.columns or rng.random() < 0.5 else ""
        return Clauses({
            "into": ("", [Node(None, f"INSERT INTO {table.name}{named}")], ""),
            "values": ("VALUES ", rows, ", "),
            "conflict": ("", self.conflict(table), ""),
            "returning": ("RETURNING ", self.returning(table), ", "),
        }, optional=("conflict", "returning"))

    def conflict(self, table):
        rng = self.rng
        if not table.key or rng.random() < 0.4:
            return []
        if rng.random() < 0.35:
            target = rng.choice(["", f" ({', '.join(table.key)})"])
            return [Node(None, f"ON CONFLICT{target} DO NOTHING")]
        others = [c for c in table.columns if c.name not in table.key]
        if not others:
            return [Node(None, "ON CONFLICT DO NOTHING")]
        columns = [Reference(c.type, f"{table.name}.{c.name}", c.wild) for c in table.columns]
        excluded = [Reference(c.type, f"excluded.{c.name}", c.wild) for c in table.columns]
        expressions = Expressions(rng, columns + excluded)
        parts = [f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET "]
        for number, column in enumerate(rng.sample(others, rng.randint(1, min(2, len(others))))):
            value = Node(None, f"excluded.{column.name}") if rng.random() < 0.5 else expressions.of(column.type, 2)
            parts += [", " if number else "", f"{column.name} = ", value]
        where = [" WHERE ", expressions.condition(1)] if rng.random() < 0.3 else []
        return [Node(None, *parts, *where, simpler=[Node(None, *parts)] if where else [])]

    def insert_select(self, table):
        """Rows of a table (this one too) by other keys. Keys are columns: of constants it would be open which row stays."""
        rng = self.rng
        source = rng.choice(self.tables)
        columns = references(source, "x")
        expressions = Expressions(rng, columns)
        items = []
        for number, column in enumerate(table.columns):
            item = expressions.of(column.type, 1)
            if column.name in table.key:
                item = expressions.column(column.type) or expressions.constant(column.type)
            if column.name == "id":
                item = Node(column.type, "(", item, f" + CAST({rng.choice([0, 100, 1000])} AS {column.type.sql}))")
            items.append(Node(None, item, f" AS c{number}"))
        # The source's key, so that no two of its rows meet.
        apart = table.key == source.key == ["id"] and not table.unique and "x.id" in items[0].sql()
        return Clauses({
            "into": ("", [Node(None, f"INSERT INTO {table.name}")], ""),
            "verb": ("", [Node(None, "SELECT")], ""),
            "items": ("", items, ", "),
            "from": ("FROM ", [Node(None, f"{source.name} AS x")], ""),
            "where": ("WHERE ", [expressions.condition(2)] if rng.random() < 0.6 else [], ""),
            "conflict": ("", [Node(None, "ON CONFLICT DO NOTHING")] if apart and rng.random() < 0.5 else [], ""),
            "returning": ("RETURNING ", self.returning(table), ", "),
        }, optional=("where", "conflict", "returning"))

    def conditions(self, table, expressions):
        """None, by the key, or any."""
        rng = self.rng
        conditions = []
        if table.key and rng.random() < 0.5:
            by_name = {c.name: reference for c, reference in zip(table.columns, expressions.columns)}
            queries = Queries(rng, self.tables)
            conditions += [queries.bound(table, by_name[name], name) for name in table.key]
        if not conditions or rng.random() < 0.3:
            subqueries = Queries(rng, self.tables).subqueries(1) if rng.random() < 0.4 else None
            conditions.append(Expressions(rng, expressions.columns, subqueries).condition(2))
        return conditions

    def always(self, table):
        """That a row's key is one of the table's."""
        if not table.key:
            return None
        names = ", ".join(table.key)
        own = ", ".join(f"{table.name}.{name}" for name in table.key)
        return f"({own}) IN (SELECT {names} FROM {table.name})"

    def settings(self, table, expressions):
        others = [c for c in table.columns if c.name not in table.key and c.name not in table.unique]
        if not others:
            return None
        nodes = []
        for column in self.rng.sample(others, self.rng.randint(1, min(2, len(others)))):
            nodes.append(Node(None, f"{column.name} = ", expressions.of(column.type, 2) if self.rng.random() < 0.7 else self.value(column)))
        return nodes

    def update(self, table):
        columns = references(table)
        expressions = Expressions(self.rng, columns)
        settings = self.settings(table, expressions)
        if settings is None:
            return self.delete(table)
        return Clauses({
            "update": ("", [Node(None, f"UPDATE {table.name} SET")], ""),
            "set": ("", settings, ", "),
            "where": ("WHERE ", self.conditions(table, expressions) if self.rng.random() < 0.85 else [], " AND "),
            "returning": ("RETURNING ", self.returning(table), ", "),
        }, optional=("where", "returning"), always=self.always(table))

    def update_from(self, table):
        """The other side has at most one row a value: which row would win is not said."""
        rng = self.rng
        other = rng.choice(self.tables)
        pairs = [(a, b) for a in table.columns for b in other.columns if a.type.name == b.type.name and a.type.name not in ("bytea", "bool")]
        columns = references(table, table.name)
        settings = self.settings(table, Expressions(rng, columns))
        if not pairs or settings is None:
            return self.update(table)
        a, b = rng.choice(pairs)
        return Clauses({
            "update": ("", [Node(None, f"UPDATE {table.name} SET")], ""),
            "set": ("", settings, ", "),
            "from": ("FROM ", [Node(None, f"(SELECT DISTINCT {b.name} AS k FROM {other.name}) AS y")], ""),
            "where": ("WHERE ", [Node(s.BOOL, f"({table.name}.{a.name} = y.k)")], " AND "),
            "returning": ("RETURNING ", self.returning(table, table.name), ", "),
        }, optional=("returning",), always=self.always(table))

    def delete(self, table):
        expressions = Expressions(self.rng, references(table))
        return Clauses({
            "delete": ("", [Node(None, f"DELETE FROM {table.name}")], ""),
            "where": ("WHERE ", self.conditions(table, expressions), " AND "),
            "returning": ("RETURNING ", self.returning(table), ", "),
        }, optional=("where", "returning"), always=self.always(table))

    def delete_using(self, table):
        rng = self.rng
        other = rng.choice(self.tables)
        pairs = [(a, b) for a in table.columns for b in other.columns if a.type.name == b.type.name]
        if not pairs:
            return self.delete(table)
        a, b = rng.choice(pairs)
        return Clauses({
            "delete": ("", [Node(None, f"DELETE FROM {table.name}")], ""),
            "using": ("USING ", [Node(None, f"{other.name} AS y")], ""),
            "where": ("WHERE ", [Node(s.BOOL, f"({table.name}.{a.name} = y.{b.name})"), *([Expressions(rng, references(table, table.name)).condition(1)] if rng.random() < 0.4 else [])], " AND "),
        }, optional=(), always=self.always(table))
