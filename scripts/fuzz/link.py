"""A connection, as libpq has it: statements go out in each form of the protocol, answers come back as text, and nothing waits for ever."""
import select
import time

from psycopg import pq

ANSWER_S = 60
# Rows of an answer that are compared: a cross join of three tables may have millions, which take minutes and gigabytes here.
ROWS_MAX = 200_000


class Lost(Exception):
    """The connection broke, or an answer did not come in time."""


class TooManyRows(Exception):
    """An answer has more rows than are compared."""


class Answer:
    """Rows with their types, or a number of rows changed, or an error."""

    def __init__(self, state=None, message="", types=(), rows=(), tag=""):
        self.state, self.message, self.types, self.rows, self.tag = state, message, types, rows, tag

    @property
    def failed(self):
        return self.state is not None

    def __str__(self):
        if self.failed:
            return f"ERROR {self.state}: {self.message}"
        shown = [" | ".join("NULL" if v is None else v.decode("utf8", "replace") for v in row) for row in self.rows[:30]]
        more = [f"... {len(self.rows)} rows"] if len(self.rows) > 30 else []
        return "\n".join([f"{self.tag}, types {list(self.types)}", *shown, *more])


def answer_of(result):
    if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        if state is None:
            raise Lost(result.error_message.decode("utf8", "replace"))
        return Answer(state.decode(), (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf8", "replace"))
    if result.status == pq.ExecStatus.PIPELINE_ABORTED:
        return Answer("aborted", "an earlier statement of the pipeline failed")
    columns = range(result.nfields)
    rows = [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]
    return Answer(types=tuple(result.ftype(c) for c in columns), rows=rows, tag=(result.command_status or b"").decode())


class Link:
    def __init__(self, url, zone="UTC"):
        self.url, self.zone = url, zone
        self.open()

    def open(self):
        self.connection = pq.PGconn.connect(self.url.encode())
        if self.connection.status != pq.ConnStatus.OK:
            raise Lost(self.connection.error_message.decode("utf8", "replace"))
        self.connection.nonblocking = 1
        self.simple(f"SET statement_timeout = {ANSWER_S * 500}")
        self.simple(f"SET TIME ZONE '{self.zone}'")

    def close(self):
        self.connection.finish()

    def _wait(self):
        """The next result, or None at the end of a statement's."""
        connection = self.connection
        deadline = time.monotonic() + ANSWER_S
        try:
            while connection.flush():
                select.select([connection.socket], [connection.socket], [], 1)
                connection.consume_input()
            while connection.is_busy():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Lost(f"no answer in {ANSWER_S} s")
                select.select([connection.socket], [], [], left)
                connection.consume_input()
            return connection.get_result()
        except Exception as error:
            if isinstance(error, Lost):
                raise
            raise Lost("the connection broke") from error

    def _answers(self):
        answers = []
        while (result := self._wait()) is not None:
            answers.append(answer_of(result))
        return answers

    def _send(self, how, *arguments):
        try:
            how(*arguments)
        except Exception as error:
            raise Lost(str(error)) from error

    def simple(self, sql):
        """The simple protocol: the last answer of the string."""
        self._send(self.connection.send_query, sql.encode())
        return self._answers()[-1]

    def bounded(self, sql):
        """As simple, of a query: one row at a time, so that an answer of too many rows is never here as a whole."""
        self._send(self.connection.send_query, sql.encode())
        self.connection.set_single_row_mode()
        rows, answer = [], None
        while (result := self._wait()) is not None:
            answer = answer_of(result)
            rows += answer.rows
            if len(rows) > ROWS_MAX:
                self.connection.get_cancel().cancel()
                while self._wait() is not None:
                    pass
                raise TooManyRows(sql)
        answer.rows = rows
        return answer

    def string(self, sql):
        """The answers to all statements of a string."""
        self._send(self.connection.send_query, sql.encode())
        return self._answers()

    def extended(self, sql, parameters=(), binary=False):
        """Parse, Bind, Execute; parameters are (type's number, text or None)."""
        self._send(self._send_parameters, sql, parameters, binary)
        return self._answers()[-1]

    def _send_parameters(self, sql, parameters, binary=False):
        values = [None if text is None else text.encode() for _, text in parameters]
        self.connection.send_query_params(sql.encode(), values, [oid for oid, _ in parameters], None, int(binary))

    def prepare(self, name, sql, oids):
        self._send(self.connection.send_prepare, name.encode(), sql.encode(), list(oids))
        return self._answers()[-1]

    def execute(self, name, values):
        """Bind and Execute of a statement that is prepared."""
        self._send(self.connection.send_query_prepared, name.encode(), [None if text is None else text.encode() for text in values])
        return self._answers()[-1]

    def copy_out(self, sql):
        """The answer to a COPY TO STDOUT, and what has come out."""
        self._send(self.connection.send_query, sql.encode())
        result, data = self._wait(), b""
        if result.status == pq.ExecStatus.COPY_OUT:
            data = self._copied()
            result = self._wait()
        answer = answer_of(result)
        self._answers()
        return answer, data

    def _copied(self):
        data = b""
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                size, piece = self.connection.get_copy_data(1)
            except Exception as error:
                # What ends it is told by the next result.
                if self.connection.status != pq.ConnStatus.OK:
                    raise Lost("the connection broke") from error
                return data
            if size < 0:
                return data
            data += bytes(piece)
            if size == 0:
                select.select([self.connection.socket], [], [], 1)
                self.connection.consume_input()
                if time.monotonic() > deadline:
                    raise Lost(f"no answer in {ANSWER_S} s")

    def copy_in(self, sql, data):
        """The answer to a COPY FROM STDIN of the file `data`, which goes out in two pieces."""
        self._send(self.connection.send_query, sql.encode())
        result = self._wait()
        if result.status == pq.ExecStatus.COPY_IN:
            self.connection.nonblocking = 0
            half = len(data) // 2
            for piece in (data[:half], data[half:]):
                self._send(self.connection.put_copy_data, piece)
            self._send(self.connection.put_copy_end)
            self.connection.nonblocking = 1
            result = self._wait()
        answer = answer_of(result)
        self._answers()
        return answer

    def pipelined(self, statements):
        """Statements behind one another, with one Sync at the end: one transaction."""
        self.connection.enter_pipeline_mode()
        answers = []
        for sql, parameters in statements:
            self._send(self._send_parameters, sql, parameters)
        self._send(self.connection.pipeline_sync)
        for _ in statements:
            answers.append(self._answers()[-1])
        while (result := self._wait()) is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            pass
        self.connection.exit_pipeline_mode()
        return answers
