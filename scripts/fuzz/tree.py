"""Statements as trees: what is generated, rendered as SQL, and made smaller.

A node is a type (of its value; None where it is no expression) and parts: texts and nodes. A `Literal` can be rendered as a parameter.
A node never changes: `variants` gives copies that are smaller, which is all that reducing needs to know of SQL.
"""


class Rendering:
    """One way to write a tree: literals stay in the text, or those that `chosen` picks become `$1`, `$2`, and so on."""

    def __init__(self, chosen=lambda literal: False):
        self.chosen = chosen
        self.parameters = []

    def literal(self, literal):
        if not literal.fixed and self.chosen(literal):
            self.parameters.append(literal)
            return f"${len(self.parameters)}"
        return literal.sql


class Node:
    """`simpler`: nodes that may stand in its place, smallest first."""

    def __init__(self, type_, *parts, simpler=(), tags=()):
        self.type, self.parts, self.simpler, self.tags = type_, parts, tuple(simpler), frozenset(tags)

    def render(self, rendering):
        return "".join(part if isinstance(part, str) else part.render(rendering) for part in self.parts)

    def children(self):
        return [part for part in self.parts if isinstance(part, Node)]

    def with_child(self, old, new):
        return Node(self.type, *(new if part is old else part for part in self.parts), simpler=self.simpler, tags=self.tags)

    def smaller(self):
        """What may stand in this node's place."""
        yield from self.simpler
        if self.type is not None:
            for child in self.children():
                if child.type is not None and child.type.name == self.type.name:
                    yield child
            if self.children():
                yield from self.type.simplest()

    def is_ordered(self):
        """Whether what it was generated with, ORDER BY, is still there: reducing takes it out as well."""
        return False

    def planned(self):
        """The statement in a form that only the planner answers: a query in FROM."""
        return Node(None, "SELECT * FROM (", self, ") AS w")

    def all_tags(self):
        return self.tags.union(*(child.all_tags() for child in self.children()))

    def sql(self):
        return self.render(Rendering())


class Literal(Node):
    """A value. `text` is its text form as a parameter, None of NULL. `fixed`: it must stay in the statement."""

    def __init__(self, type_, sql, text=None, fixed=False):
        super().__init__(type_, sql)
        self.text, self.fixed = text, fixed
        self._sql = sql

    def render(self, rendering):
        return rendering.literal(self)

    @property
    def sql(self):
        return self._sql

    def smaller(self):
        return ()


class Clauses(Node):
    """A statement of clauses in a fixed order; each has a name, and those that `optional` names may go.

    A clause is a node, or a list of nodes with what separates them: (before, [nodes], separator). `always`: a condition of a change that is true
    of each of its rows.
    """

    def __init__(self, clauses, optional=(), simpler=(), tags=(), type_=None, always=None):
        super().__init__(type_, simpler=simpler, tags=tags)
        self.clauses, self.optional, self.always = clauses, optional, always

    def render(self, rendering):
        parts = []
        for before, nodes, separator in self.clauses.values():
            if nodes:
                parts.append(before + separator.join(node.render(rendering) for node in nodes))
        return " ".join(parts)

    def children(self):
        return [node for _, nodes, _ in self.clauses.values() for node in nodes]

    def _replaced(self, name, nodes):
        before, _, separator = self.clauses[name]
        clauses = {**self.clauses, name: (before, nodes, separator)}
        return Clauses(clauses, self.optional, self.simpler, self.tags, self.type, self.always)

    def with_child(self, old, new):
        for name, (_, nodes, _) in self.clauses.items():
            if any(node is old for node in nodes):
                return self._replaced(name, [new if node is old else node for node in nodes])
        raise AssertionError("no such child")

    def planned(self):
        if not self.clauses.keys() & {"into", "update", "delete"}:
            return super().planned()
        if self.always is None:
            return self
        return self._replaced("where", [*self.clauses["where"][1], Node(None, self.always)])

    def is_ordered(self):
        return "tail" in self.clauses and bool(self.clauses["tail"][1])

    def smaller(self):
        yield from self.simpler
        for name in self.optional:
            if self.clauses[name][1]:
                yield self._replaced(name, [])
        for name, (_, nodes, _) in self.clauses.items():
            if len(nodes) > 1:
                for node in nodes:
                    yield self._replaced(name, [other for other in nodes if other is not node])


def variants(node):
    """Every tree that is `node` with one part of it smaller; the changes nearest the root first."""
    level = [(node, lambda new: new)]
    while level:
        below = []
        for current, rebuilt in level:
            for candidate in current.smaller():
                yield rebuilt(candidate)
            for child in current.children():
                below.append((child, lambda new, current=current, child=child, rebuilt=rebuilt: rebuilt(current.with_child(child, new))))
        level = below
