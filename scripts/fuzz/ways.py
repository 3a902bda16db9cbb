"""The ways in which a statement may be asked: protocol, parameters, planner or not, block or not."""
import random

from tree import Rendering


class Way:
    """`on`: memory or spill. `form`: simple, extended, binary (as extended, values in binary), pipelined, string (of several
    statements) or cursor. `wrapped`: as a query in FROM, which only the planner answers."""

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
        rendering = Rendering((lambda literal: rng.random() < 0.7) if self.parameters else (lambda literal: False))
        sql = node.render(rendering)
        if self.wrapped:
            sql = f"SELECT * FROM ({sql}) AS w"
        return sql, [(literal.type.oid, literal.text) for literal in rendering.parameters]

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


FIRST = Way("memory", "simple")


def for_query(rng):
    """The first way, and one or two others."""
    ways = [FIRST]
    for _ in range(rng.choice([1, 1, 2])):
        form = rng.choice(["simple", "extended", "extended", "binary", "pipelined", "string", "cursor"])
        parameters = form in ("extended", "binary", "pipelined") and rng.random() < 0.8
        ways.append(Way(rng.choice(["memory", "spill"]), form, rng.random() < 0.35, rng.random() < 0.3, parameters))
    return ways


def for_change(rng):
    """One way for each server: a change happens once."""
    ways = []
    for on in ("memory", "spill"):
        form = rng.choice(["simple", "simple", "extended", "extended", "pipelined", "string"])
        parameters = form in ("extended", "pipelined") and rng.random() < 0.8
        ways.append(Way(on, form, False, rng.random() < 0.3, parameters))
    return ways
