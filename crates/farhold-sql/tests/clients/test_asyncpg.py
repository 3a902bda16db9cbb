"""asyncpg, which has its own implementation of the extended protocol and prefers the binary format."""
import asyncio
import datetime
import decimal
import unittest

import asyncpg


class Asyncpg(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.connection = await asyncpg.connect()
        self.addAsyncCleanup(self.connection.close)

    async def table(self, name, columns):
        await self.connection.execute(f"DROP TABLE IF EXISTS {name}")
        await self.connection.execute(f"CREATE TABLE {name} ({columns})")

    ROW = (
        7, True, -2, -(2**63), 1.5, -0.1, decimal.Decimal("-12345.67"), "abc", "ab  ", "zwölf", b"\x00\xff",
        datetime.date(2026, 2, 28), datetime.datetime(1999, 12, 31, 23, 59, 59, 123456),
        datetime.datetime(2026, 7, 15, 12, 0, 0, 5, datetime.timezone(datetime.timedelta(hours=5, minutes=30))),
    )

    async def test_types_both_ways(self):
        await self.table("as_types", "i int PRIMARY KEY, b boolean, s smallint, l bigint, r real, d double precision,"
                                     " n numeric(12, 2), v varchar(10), c char(4), t text, y bytea, a date, m timestamp, z timestamptz")
        values = ", ".join(f"${index + 1}" for index in range(len(self.ROW)))
        await self.connection.execute(f"INSERT INTO as_types VALUES ({values})", *self.ROW)
        self.assertEqual(tuple(await self.connection.fetchrow("SELECT * FROM as_types")), self.ROW)
        self.assertEqual(tuple(await self.connection.fetchrow("SELECT * FROM as_types WHERE i = $1", 7)), self.ROW)
        await self.connection.execute("UPDATE as_types SET t = $2, n = $3 WHERE i = $1", 7, None, decimal.Decimal("0.05"))
        row = await self.connection.fetchrow("SELECT t, n FROM as_types WHERE i = 7")
        self.assertEqual(tuple(row), (None, decimal.Decimal("0.05")))

    async def test_parameters_learn_their_types_from_the_statement(self):
        await self.table("as_learn", "i bigint PRIMARY KEY, n numeric(10, 3), t text")
        statement = await self.connection.prepare("INSERT INTO as_learn VALUES ($1, $2, $3)")
        self.assertEqual([kind.name for kind in statement.get_parameters()], ["int8", "numeric", "text"])
        statement = await self.connection.prepare("SELECT t, i FROM as_learn WHERE i > $1 AND t LIKE $2")
        self.assertEqual([kind.name for kind in statement.get_parameters()], ["int8", "text"])
        self.assertEqual([(column.name, column.type.name) for column in statement.get_attributes()], [("t", "text"), ("i", "int8")])

    async def test_prepared_many(self):
        await self.table("as_many", "i int PRIMARY KEY, t text")
        await self.connection.executemany("INSERT INTO as_many VALUES ($1, $2)", [(n, str(n)) for n in range(500)])
        statement = await self.connection.prepare("SELECT t FROM as_many WHERE i = $1")
        for number in (0, 250, 499):
            self.assertEqual(await statement.fetchval(number), str(number))
        self.assertIsNone(await statement.fetchval(500))
        self.assertEqual(await self.connection.fetchval("SELECT sum(i) FROM as_many"), 124750)
        # A batch is atomic.
        with self.assertRaises(asyncpg.UniqueViolationError):
            await self.connection.executemany("INSERT INTO as_many VALUES ($1, $2)", [(1000, "a"), (1000, "b")])
        self.assertEqual(await self.connection.fetchval("SELECT count(*) FROM as_many"), 500)

    async def test_transactions(self):
        await self.table("as_blocks", "i int PRIMARY KEY")
        async with self.connection.transaction(isolation="serializable"):
            await self.connection.execute("INSERT INTO as_blocks VALUES (1)")
            with self.assertRaises(asyncpg.UniqueViolationError):
                async with self.connection.transaction():
                    await self.connection.execute("INSERT INTO as_blocks VALUES (1)")
            await self.connection.execute("INSERT INTO as_blocks VALUES (2)")
        transaction = self.connection.transaction()
        await transaction.start()
        await self.connection.execute("DELETE FROM as_blocks")
        await transaction.rollback()
        self.assertEqual(await self.connection.fetchval("SELECT count(*) FROM as_blocks"), 2)

    async def test_cursors(self):
        await self.table("as_cursor", "i int PRIMARY KEY")
        await self.connection.executemany("INSERT INTO as_cursor VALUES ($1)", [(n,) for n in range(300)])
        async with self.connection.transaction():
            seen = [row["i"] async for row in self.connection.cursor("SELECT i FROM as_cursor ORDER BY i", prefetch=40)]
            self.assertEqual(seen, list(range(300)))
            cursor = await self.connection.cursor("SELECT i FROM as_cursor WHERE i >= $1 ORDER BY i", 100)
            self.assertEqual([row["i"] for row in await cursor.fetch(5)], [100, 101, 102, 103, 104])
            self.assertEqual((await cursor.fetchrow())["i"], 105)

    async def test_copy(self):
        await self.table("as_copy", "i int PRIMARY KEY, t text")
        lines = b"".join(b"%d,text %d\n" % (n, n) for n in range(100))

        async def chunks():
            for start in range(0, len(lines), 37):
                yield lines[start:start + 37]

        done = await self.connection.copy_to_table("as_copy", source=chunks(), format="csv")
        self.assertEqual(done, "COPY 100")
        gathered = bytearray()

        async def gather(data):
            gathered.extend(data)

        await self.connection.copy_from_query("SELECT * FROM as_copy ORDER BY i", output=gather, format="csv")
        self.assertEqual(bytes(gathered), lines)

    async def test_errors_and_going_on(self):
        for sql, error in (
            ("SELECT * FROM nothing", asyncpg.UndefinedTableError),
            ("SELEC", asyncpg.PostgresSyntaxError),
            ("SELECT 1 / 0", asyncpg.DivisionByZeroError),
        ):
            with self.assertRaises(error):
                await self.connection.fetch(sql)
        self.assertEqual(await self.connection.fetchval("SELECT 1"), 1)

    async def test_timeout_cancels(self):
        slow = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, generate_series(1, 100) c"
        with self.assertRaises(asyncio.TimeoutError):
            await self.connection.fetch(slow, timeout=0.3)
        self.assertEqual(await self.connection.fetchval("SELECT 1"), 1)

    async def test_pool(self):
        await self.table("as_pool", "i int PRIMARY KEY")
        async with asyncpg.create_pool(min_size=2, max_size=8) as pool:
            await asyncio.gather(*(pool.execute("INSERT INTO as_pool VALUES ($1)", n) for n in range(100)))
            counts = await asyncio.gather(*(pool.fetchval("SELECT count(*) FROM as_pool") for _ in range(20)))
        self.assertEqual(set(counts), {100})

    async def test_settings_are_told(self):
        self.assertEqual(self.connection.get_server_version()[0], 15)
        self.assertEqual(self.connection.get_settings().server_encoding, "UTF8")


if __name__ == "__main__":
    unittest.main()
