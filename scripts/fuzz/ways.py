"""The ways in which a statement may be asked: protocol, parameters, planner or not, block or not."""
import random

from schema import TEXT
from tree import Rendering


# How many of the literals become parameters.
PARAMETERS = 0.7


class Way:
    """`on`: memory or spill. `form`: simple, extended, binary (as extended, values in binary), pipelined, prepared (by name, executed several
    times with other values), string (of several statements) or cursor. `wrapped`: as a query in FROM, or a change with a condition that is
    always true, which only the planner answers."""

    def __init__(self, on, form, wrapped=False, block=False, parameters=False):
        self.on, self.form, self.wrapped, self.block, self.parameters = on, form, wrapped, block, parameters

    def __str__(self):
        words = [self.on, self.form]
        words += ["planned"] if self.wrapped else []
        words += ["in a block"] if self.block else []
        words += ["with parameters"] if self.parameters else []
        return ", ".join(words)

    def rendered(self, node, seed):
        """The text and its parameters; which literals become some is decided by the seed."""
        rng = random.Random(seed)
        rendering = Rendering((lambda literal: rng.random() < PARAMETERS) if self.parameters else (lambda literal: False))
        sql = self._form_of(node).render(rendering)
        return sql, [(_stated(literal), literal.text) for literal in rendering.parameters]

    def values(self, node, seed):
        """The values of further executions of a prepared statement: some of the first, some others of the same types."""
        rng = random.Random(f"{seed} values")
        chosen = random.Random(seed)
        rendering = Rendering(lambda literal: chosen.random() < PARAMETERS)
        self._form_of(node).render(rendering)
        other = lambda literal: rng.choice(literal.type.small) if rng.random() < 0.8 else rng.choice([None, *literal.type.wild])
        return [[literal.text if rng.random() < 0.4 else other(literal) for literal in rendering.parameters] for _ in range(rng.choice([1, 2]))]

    def _form_of(self, node):
        return node.planned() if self.wrapped else node

    def untyped(self, seed, count):
        """Which parameters have no type (0): the server says which."""
        rng = random.Random(f"{seed} types")
        share = rng.choice([0, 0, 0.3, 1])
        return [rng.random() < share for _ in range(count)]

    def ask(self, link, sql, parameters):
        """The answer; the connection is out of the block in the end."""
        if self.form == "string":
            answers = link.string(f"BEGIN; {sql}; COMMIT" if self.block else f"SELECT 1 AS one; {sql}")
            failed = [answer for answer in answers if answer.failed]
            if failed and self.block:
                link.simple("ROLLBACK")
            return failed[0] if failed else answers[1]
        if self.form == "pipelined":
            around = [("BEGIN", ())] if self.block else [("SELECT 1 AS one", ())]
            behind = [("COMMIT", ())] if self.block else []
            answers = link.pipelined([*around, (sql, parameters), *behind])
            failed = [answer for answer in answers if answer.failed]
            if failed and self.block:
                link.simple("ROLLBACK")
            return failed[0] if failed else answers[1]
        if self.form == "cursor":
            return self._fetched(link, sql)
        if self.block:
            link.simple("BEGIN")
        answer = link.simple(sql) if self.form == "simple" else link.extended(sql, parameters, self.form == "binary")
        if self.block:
            end = link.simple("ROLLBACK" if answer.failed else "COMMIT")
            answer = end if end.failed else answer
        return answer

    def executed(self, link, sql, oids, executions):
        """The answers to a named statement that is executed with each of the values; without any where it cannot be prepared."""
        if self.block:
            link.simple("BEGIN")
        answers = [link.prepare("p", sql, oids)]
        if not answers[0].failed:
            answers = [link.execute("p", values) for values in executions]
        if self.block:
            link.simple("ROLLBACK" if any(answer.failed for answer in answers) else "COMMIT")
        link.simple("DEALLOCATE ALL")
        return answers

    def _fetched(self, link, sql):
        """Through a cursor, in pieces."""
        link.simple("BEGIN")
        answer = link.simple(f"DECLARE c CURSOR FOR {sql}")
        if not answer.failed:
            answer = link.simple("FETCH 3 FROM c")
            rest = answer if answer.failed else link.simple("FETCH ALL FROM c")
            if rest.failed:
                answer = rest
            else:
                answer.rows = answer.rows + rest.rows
                answer.tag = f"SELECT {len(answer.rows)}"
        link.simple("ROLLBACK" if answer.failed else "COMMIT")
        return answer


def _stated(literal):
    """The type that the client states. PostgreSQL reads the statement with literals, where a bare text beside a CHAR is one too; as a
    parameter of type TEXT it is not, and blanks at its end count."""
    return 0 if literal.type is TEXT and literal.text is not None and literal.text.endswith(" ") else literal.type.oid


FIRST = Way("memory", "simple")
# What each statement of a sample goes through; which literals become parameters changes from one to the next.
ALL = [
    FIRST,
    Way("memory", "simple", wrapped=True),
    Way("memory", "simple", block=True),
    Way("spill", "simple"),
    Way("spill", "simple", wrapped=True),
    Way("memory", "extended", parameters=True),
    Way("memory", "pipelined", parameters=True),
    Way("memory", "prepared", parameters=True),
]
# One query in so many goes through all ways: all of them for every query would take three times as long, and in every fourth twice.
ALL_EVERY = 6


def for_query(rng):
    """All ways, or the first; and a random one."""
    ways = ALL if rng.random() < 1 / ALL_EVERY else [FIRST]
    return [*ways, random_way(rng)]


def for_large(rng):
    """Each on the server that spills."""
    return [FIRST, Way("spill", "simple"), random_way(rng)]


def random_way(rng):
    form = rng.choice(["simple", "extended", "extended", "binary", "pipelined", "prepared", "string", "cursor"])
    parameters = form == "prepared" or form in ("extended", "binary", "pipelined") and rng.random() < 0.8
    return Way(rng.choice(["memory", "spill"]), form, rng.random() < 0.35, rng.random() < 0.3, parameters)


def for_change(rng):
    """One way for each server: a change happens once."""
    ways = []
    for on in ("memory", "spill"):
        form = rng.choice(["simple", "simple", "extended", "extended", "pipelined", "string"])
        parameters = form in ("extended", "pipelined") and rng.random() < 0.8
        ways.append(Way(on, form, rng.random() < 0.3, rng.random() < 0.3, parameters))
    return ways


def inside_block(rng, on, is_query):
    """A statement of a block that others have begun. Where PostgreSQL is asked in binary too, a change would happen twice."""
    form = rng.choice(["simple", "simple", "extended", "pipelined", "binary" if is_query else "extended"])
    return Way(on, form, rng.random() < 0.3, False, form != "simple" and rng.random() < 0.8)
