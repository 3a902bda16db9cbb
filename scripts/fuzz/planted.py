"""Mistakes planted in Farhold's answers: the fuzzer must notice each kind."""
import copy

FLOATS = (700, 701)


def lost_row(answer):
    if len(answer.rows) > 1:
        answer.rows = answer.rows[:-1]
    return answer


def row_twice(answer):
    if answer.rows:
        answer.rows = answer.rows + answer.rows[-1:]
    return answer


def null_for_value(answer):
    return _first(answer, lambda value, oid: None if value is not None else value)


def value_for_null(answer):
    return _first(answer, lambda value, oid: b"0" if value is None else value)


def rounded(answer):
    def last_digit(value, oid):
        if value is None or oid not in (*FLOATS, 1700) or not value[-1:].isdigit():
            return value
        return value[:-1] + (b"1" if value[-1:] == b"0" else b"0")

    return _first(answer, last_digit)


def other_type(answer):
    answer.types = tuple(25 if oid in (16, 20, 1082) else oid for oid in answer.types)
    return answer


def no_error(answer):
    if answer.failed:
        answer.state, answer.tag = None, "SELECT 0"
    return answer


def other_error(answer):
    if answer.failed:
        answer.state = "XX000"
    return answer


def _first(answer, change):
    rows = []
    done = False
    for row in answer.rows:
        new = []
        for value, oid in zip(row, answer.types):
            changed = value if done else change(value, oid)
            done = done or changed != value
            new.append(changed)
        rows.append(tuple(new))
    answer.rows = rows
    return answer


KINDS = {f.__name__.replace("_", "-"): f for f in (lost_row, row_twice, null_for_value, value_for_null, rounded, other_type, no_error, other_error)}


def corrupting(kind):
    return lambda answer: KINDS[kind](copy.copy(answer))
