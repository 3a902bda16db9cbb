"""psycopg 3, which uses the extended protocol through libpq."""
import datetime
import decimal
import threading
import unittest

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus


class Psycopg(unittest.TestCase):
    def setUp(self):
        self.connection = psycopg.connect(autocommit=True)
        self.addCleanup(self.connection.close)

    def table(self, name, columns):
        self.connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(name)))
        self.connection.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(name), sql.SQL(columns)))

    ROW = (
        True, -2, 2**31 - 1, -(2**63), 1.5, -0.1, decimal.Decimal("-12345.67"), "abc", "zwölf", b"\x00\xff",
        datetime.date(2026, 2, 28), datetime.datetime(1999, 12, 31, 23, 59, 59, 123456),
        datetime.datetime(2026, 7, 15, 12, 0, 0, 5, datetime.timezone(datetime.timedelta(hours=5, minutes=30))),
    )

    def test_types_both_ways_in_both_formats(self):
        self.table("py_types", "b boolean, s smallint, i int PRIMARY KEY, l bigint, r real, d double precision,"
                               " n numeric(12, 2), v varchar(10), t text, y bytea, a date, m timestamp, z timestamptz")
        placeholder = {False: "%t", True: "%b"}
        for binary in (False, True):
            with self.subTest(binary=binary):
                cursor = self.connection.cursor(binary=binary)
                cursor.execute("DELETE FROM py_types")
                values = ", ".join([placeholder[binary]] * len(self.ROW))
                cursor.execute(f"INSERT INTO py_types VALUES ({values})", self.ROW)
                self.assertEqual(cursor.rowcount, 1)
                row = cursor.execute("SELECT * FROM py_types").fetchone()
                self.assertEqual(row, self.ROW)
                # By primary key: the direct path.
                row = cursor.execute(f"SELECT * FROM py_types WHERE i = {placeholder[binary]}", [self.ROW[2]]).fetchone()
                self.assertEqual(row, self.ROW)
                types = [column.type_code for column in cursor.description]
                self.assertEqual(types, [16, 21, 23, 20, 700, 701, 1700, 1043, 25, 17, 1082, 1114, 1184])

    def test_the_sessions_zone(self):
        self.table("py_zones", "i int PRIMARY KEY, z timestamptz DEFAULT now()")
        winter, summer = (datetime.datetime(2026, month, 15, 12, tzinfo=datetime.timezone.utc) for month in (1, 7))
        with psycopg.connect(options="-c TimeZone=Europe/Berlin", autocommit=True) as other:
            other.execute("INSERT INTO py_zones VALUES (1, %s), (2, '2026-07-15 14:00')", [winter])
            self.assertEqual(other.info.timezone.key, "Europe/Berlin")
            for binary in (False, True):
                rows = other.cursor(binary=binary).execute("SELECT z FROM py_zones ORDER BY i").fetchall()
                self.assertEqual(rows, [(winter,), (summer,)])
                self.assertEqual([z.utcoffset().total_seconds() for z, in rows], [3600, 7200])
            other.execute("SELECT set_config('TimeZone', 'Asia/Tokyo', false)")
            self.assertEqual(other.info.timezone.key, "Asia/Tokyo")
        self.assertEqual(self.connection.execute("SELECT i FROM py_zones WHERE z = %s", [summer]).fetchone(), (2,))

    def test_nulls(self):
        self.table("py_nulls", "i int PRIMARY KEY, b boolean, n numeric(5, 1), t text, y bytea, m timestamp")
        self.connection.execute("INSERT INTO py_nulls VALUES (%s, %s, %s, %s, %s, %s)", [1] + [None] * 5)
        for binary in (False, True):
            row = self.connection.cursor(binary=binary).execute("SELECT * FROM py_nulls").fetchone()
            self.assertEqual(row, (1,) + (None,) * 5)

    def test_text_that_is_hard_to_quote(self):
        for text in ("", "'", '"', "\\", "a\nb\tc", "💧", "%s", "$1"):
            self.assertEqual(self.connection.execute("SELECT %s::text", [text]).fetchone(), (text,))

    def test_expressions(self):
        row = self.connection.execute("SELECT 1 + 1, 'a' || 'b', 1.50::numeric(5, 2), true AND false, NULL").fetchone()
        self.assertEqual(row, (2, "ab", decimal.Decimal("1.50"), False, None))

    def test_prepared_statement_is_reused(self):
        self.table("py_prepared", "i int PRIMARY KEY, t text")
        for number in range(10):
            self.connection.execute("INSERT INTO py_prepared VALUES (%s, %s)", [number, str(number)], prepare=True)
        rows = [self.connection.execute("SELECT t FROM py_prepared WHERE i = %s", [n], prepare=True).fetchone() for n in range(10)]
        self.assertEqual(rows, [(str(n),) for n in range(10)])
        names = self.connection.execute("DEALLOCATE ALL")
        self.assertEqual(names.statusmessage, "DEALLOCATE ALL")

    def test_counts_and_tags(self):
        self.table("py_counts", "i int PRIMARY KEY, t text")
        cursor = self.connection.cursor()
        cursor.executemany("INSERT INTO py_counts VALUES (%s, %s)", [(n, "x") for n in range(100)])
        self.assertEqual(cursor.rowcount, 100)
        self.assertEqual(cursor.execute("UPDATE py_counts SET t = 'y' WHERE i < 10").rowcount, 10)
        self.assertEqual(cursor.statusmessage, "UPDATE 10")
        self.assertEqual(cursor.execute("DELETE FROM py_counts WHERE i >= 95").statusmessage, "DELETE 5")
        self.assertEqual(cursor.execute("SELECT count(*), min(i), max(i), sum(i) FROM py_counts").fetchone(), (95, 0, 94, 4465))

    def test_returning(self):
        self.table("py_returning", "i int PRIMARY KEY, t text")
        row = self.connection.execute("INSERT INTO py_returning VALUES (1, 'a') RETURNING i, t").fetchone()
        self.assertEqual(row, (1, "a"))

    def test_transaction_blocks(self):
        self.table("py_blocks", "i int PRIMARY KEY")
        with psycopg.connect() as connection:
            with connection.transaction():
                connection.execute("INSERT INTO py_blocks VALUES (1)")
                with self.assertRaises(psycopg.errors.UniqueViolation):
                    with connection.transaction():
                        connection.execute("INSERT INTO py_blocks VALUES (2)")
                        connection.execute("INSERT INTO py_blocks VALUES (1)")
                connection.execute("INSERT INTO py_blocks VALUES (3)")
            self.assertEqual(connection.info.transaction_status, TransactionStatus.IDLE)
            with self.assertRaises(ZeroDivisionError):
                with connection.transaction():
                    connection.execute("DELETE FROM py_blocks")
                    raise ZeroDivisionError
        self.assertEqual(self.connection.execute("SELECT i FROM py_blocks ORDER BY i").fetchall(), [(1,), (3,)])

    def test_a_failed_transaction_takes_nothing_but_its_end(self):
        with psycopg.connect() as connection:
            with self.assertRaises(psycopg.errors.UndefinedTable):
                connection.execute("SELECT * FROM nothing")
            self.assertEqual(connection.info.transaction_status, TransactionStatus.INERROR)
            with self.assertRaises(psycopg.errors.InFailedSqlTransaction):
                connection.execute("SELECT 1")
            connection.rollback()
            self.assertEqual(connection.execute("SELECT 1").fetchone(), (1,))

    def test_conflicts_are_retried(self):
        self.table("py_conflict", "i int PRIMARY KEY, n int")
        self.connection.execute("INSERT INTO py_conflict VALUES (1, 0)")
        rounds, conflicts = 50, []

        def count():
            with psycopg.connect() as connection:
                connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                done = 0
                while done < rounds:
                    try:
                        with connection.transaction():
                            value, = connection.execute("SELECT n FROM py_conflict WHERE i = 1").fetchone()
                            connection.execute("UPDATE py_conflict SET n = %s WHERE i = 1", [value + 1])
                        done += 1
                    except psycopg.errors.SerializationFailure as error:
                        conflicts.append(error.sqlstate)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.connection.execute("SELECT n FROM py_conflict WHERE i = 1").fetchone(), (4 * rounds,))
        self.assertLessEqual(set(conflicts), {"40001"})

    def test_write_skew_is_refused(self):
        self.table("py_skew", "i int PRIMARY KEY, n int")
        self.connection.execute("INSERT INTO py_skew VALUES (1, 1), (2, 1)")
        with psycopg.connect() as one, psycopg.connect() as two:
            for connection in (one, two):
                connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                connection.execute("SELECT sum(n) FROM py_skew").fetchone()
            refused = 0
            for connection, key in ((one, 1), (two, 2)):
                try:
                    connection.execute("UPDATE py_skew SET n = 0 WHERE i = %s", [key])
                    connection.commit()
                except psycopg.errors.SerializationFailure:
                    connection.rollback()
                    refused += 1
            self.assertEqual(refused, 1)

    def test_pipeline(self):
        self.table("py_pipeline", "i int PRIMARY KEY")
        with self.connection.pipeline() as pipeline:
            cursors = [self.connection.execute("SELECT %s::int * 2", [number]) for number in range(200)]
            pipeline.sync()
            self.assertEqual([cursor.fetchone()[0] for cursor in cursors], [2 * number for number in range(200)])
        # The statements up to a Sync are one transaction; those after an error are skipped.
        with self.assertRaises(psycopg.errors.UniqueViolation):
            with self.connection.pipeline():
                self.connection.execute("INSERT INTO py_pipeline VALUES (1)")
                self.connection.execute("INSERT INTO py_pipeline VALUES (1)")
                self.connection.execute("INSERT INTO py_pipeline VALUES (2)")
        self.assertEqual(self.connection.execute("SELECT count(*) FROM py_pipeline").fetchone(), (0,))
        self.assertEqual(self.connection.execute("SELECT 1").fetchone(), (1,))

    def test_server_side_cursor(self):
        self.table("py_cursor", "i int PRIMARY KEY")
        self.connection.cursor().executemany("INSERT INTO py_cursor VALUES (%s)", [(n,) for n in range(1000)])
        for binary in (False, True):
            with psycopg.connect() as connection, connection.cursor("a cursor", binary=binary) as cursor:
                cursor.execute("SELECT i FROM py_cursor WHERE i >= %s ORDER BY i", [10])
                self.assertEqual(cursor.fetchone(), (10,))
                self.assertEqual(cursor.fetchmany(3), [(11,), (12,), (13,)])
                cursor.itersize = 100
                self.assertEqual([row[0] for row in cursor], list(range(14, 1000)))
        with psycopg.connect() as connection, connection.cursor("held", withhold=True) as cursor:
            cursor.execute("SELECT i FROM py_cursor ORDER BY i")
            connection.commit()
            self.assertEqual(len(cursor.fetchall()), 1000)

    def test_a_cursor_that_is_asked_after_its_end(self):
        with self.connection.transaction():
            self.connection.execute("DECLARE c CURSOR FOR SELECT n % 2, count(*) FROM generate_series(1, 4) AS g(n) GROUP BY 1")
            self.assertEqual(sorted(self.connection.execute("FETCH 3 FROM c").fetchall()), [(0, 2), (1, 2)])
            for _ in range(2):
                self.assertEqual(self.connection.execute("FETCH ALL FROM c").fetchall(), [])

    def test_the_place_of_a_row_is_an_integer(self):
        cursor = self.connection.execute(
            "SELECT row_number() OVER (ORDER BY n), rank() OVER (ORDER BY n), dense_rank() OVER (ORDER BY n), ntile(2) OVER (ORDER BY n) "
            "FROM generate_series(1, 3) AS g(n) ORDER BY 1"
        )
        self.assertEqual([column.type_code for column in cursor.description], [20, 20, 20, 23])
        self.assertEqual([column.name for column in cursor.description], ["row_number", "rank", "dense_rank", "ntile"])
        self.assertEqual(cursor.fetchall(), [(1, 1, 1, 1), (2, 2, 2, 1), (3, 3, 3, 2)])

    def test_copy(self):
        self.table("py_copy", "i int PRIMARY KEY, t text, n numeric(8, 2)")
        rows = [(n, None if n % 3 == 0 else f"text\t{n}\\\n", decimal.Decimal(n) / 4) for n in range(1000)]
        cursor = self.connection.cursor()
        with cursor.copy("COPY py_copy (i, t, n) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        self.assertEqual(cursor.statusmessage, "COPY 1000")
        self.assertEqual(cursor.execute("SELECT * FROM py_copy ORDER BY i").fetchall(), rows)
        with cursor.copy("COPY (SELECT * FROM py_copy ORDER BY i) TO STDOUT") as copy:
            copy.set_types(["int4", "text", "numeric"])
            self.assertEqual(list(copy.rows()), rows)
        with self.assertRaises(ValueError):
            with cursor.copy("COPY py_copy FROM STDIN") as copy:
                copy.write_row((5000, "x", 1))
                raise ValueError("the client gives up")
        self.assertEqual(cursor.execute("SELECT count(*) FROM py_copy").fetchone(), (1000,))

    def test_cancel_and_timeout(self):
        slow = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, generate_series(1, 100) c"
        over = threading.Event()

        def cancel():
            # A request that arrives before the statement runs has no effect.
            while not over.wait(0.3):
                self.connection.cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        try:
            with self.assertRaises(psycopg.errors.QueryCanceled):
                self.connection.execute(slow)
        finally:
            over.set()
            canceller.join()
        self.connection.execute("SET statement_timeout = 200")
        with self.assertRaisesRegex(psycopg.errors.QueryCanceled, "statement timeout"):
            self.connection.execute(slow)
        self.connection.execute("RESET statement_timeout")
        self.assertEqual(self.connection.execute("SELECT 1").fetchone(), (1,))

    def test_a_client_that_vanishes_is_rolled_back(self):
        self.table("py_vanish", "i int PRIMARY KEY")
        connection = psycopg.connect()
        connection.execute("INSERT INTO py_vanish VALUES (1)")
        connection.pgconn.finish()
        # If the row were still reserved, this insert would conflict with it.
        self.connection.execute("INSERT INTO py_vanish VALUES (1)")
        self.assertEqual(self.connection.execute("SELECT count(*) FROM py_vanish").fetchone(), (1,))

    def test_errors_have_their_parts(self):
        self.table("py_errors", "i int PRIMARY KEY")
        self.connection.execute("INSERT INTO py_errors VALUES (1)")
        with self.assertRaises(psycopg.errors.UniqueViolation) as caught:
            self.connection.execute("INSERT INTO py_errors VALUES (1)")
        diagnosis = caught.exception.diag
        self.assertEqual(diagnosis.severity, "ERROR")
        self.assertEqual(diagnosis.message_primary, 'duplicate key value violates unique constraint "py_errors_pkey"')
        self.assertEqual(diagnosis.message_detail, "Key (i)=(1) already exists.")
        self.assertEqual((diagnosis.constraint_name, diagnosis.table_name), ("py_errors_pkey", "py_errors"))

    def test_what_the_server_says_of_itself(self):
        info = self.connection.info
        self.assertEqual(info.server_version // 10000, 15)
        self.assertEqual(info.encoding, "utf-8")
        self.assertEqual(info.parameter_status("integer_datetimes"), "on")
        self.assertEqual(info.parameter_status("standard_conforming_strings"), "on")
        with psycopg.connect(application_name="the test") as connection:
            self.assertEqual(connection.info.parameter_status("application_name"), "the test")
            connection.execute("SET application_name = 'another'")
            self.assertEqual(connection.info.parameter_status("application_name"), "another")


if __name__ == "__main__":
    unittest.main()
