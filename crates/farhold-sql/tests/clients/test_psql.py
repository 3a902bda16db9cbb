"""psql: statements that users type, and the catalog queries of the backslash commands."""
import os
import subprocess
import tempfile
import unittest


def psql(*arguments, script=None, ok=True):
    """Runs psql with `script` as its standard input and returns its output."""
    done = subprocess.run(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", *arguments],
        input=script, capture_output=True, text=True, timeout=300,
    )
    if ok and done.returncode != 0:
        raise AssertionError(f"psql failed: {done.stderr}")
    return done.stdout if ok else done.stderr


class Psql(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        psql(script="""
            DROP TABLE IF EXISTS orders; DROP TABLE IF EXISTS people;
            CREATE TABLE people (id int PRIMARY KEY, name varchar(20) NOT NULL, born date, balance numeric(10, 2), note text);
            CREATE INDEX people_name ON people (name);
            CREATE TABLE orders (customer int, number int, item char(4) DEFAULT 'none', PRIMARY KEY (customer, number),
                CHECK (number > 0), CONSTRAINT known CHECK (item <> 'all' OR number < 9));
            ALTER TABLE orders ADD CONSTRAINT later CHECK (customer > 0) NOT VALID;
            INSERT INTO people VALUES (1, 'Ann', '1990-02-03', 12.50, NULL), (2, 'Bob', NULL, -0.05, 'a "note", with a comma');
        """)

    def test_select(self):
        self.assertEqual(
            psql("-A", "-t", "-c", "SELECT * FROM people ORDER BY id"),
            '1|Ann|1990-02-03|12.50|\n2|Bob||-0.05|a "note", with a comma\n',
        )

    def test_aligned_table(self):
        self.assertEqual(
            psql("-c", "SELECT id, name FROM people ORDER BY id"),
            " id | name \n----+------\n  1 | Ann\n  2 | Bob\n(2 rows)\n\n",
        )

    def test_list_of_tables(self):
        listed = psql("-c", "\\dt")
        for name in ("people", "orders"):
            self.assertRegex(listed, rf"public +\| +{name} +\| +table")
        self.assertRegex(psql("-c", "\\d"), r"public +\| +people +\| +table")
        self.assertRegex(psql("-c", "\\dt peop*"), r"people")
        self.assertNotIn("orders", psql("-c", "\\dt peop*"))
        self.assertRegex(psql("-c", "\\dt+"), r"public +\| +people +\| +table")

    def test_describe_table(self):
        described = psql("-c", "\\d people")
        for line in (
            r'Table "public.people"',
            r"id +\| integer +\| +\| not null",
            r"name +\| character varying\(20\) +\| +\| not null",
            r"born +\| date",
            r"balance +\| numeric\(10,2\)",
            r"note +\| text",
            r'"people_pkey" PRIMARY KEY, btree \(id\)',
            r'"people_name" btree \(name\)',
        ):
            self.assertRegex(described, line)
        described = psql("-c", "\\d orders")
        self.assertRegex(described, r"item +\| character\(4\) +\| +\| +\| 'none'")
        self.assertRegex(described, r'"orders_pkey" PRIMARY KEY, btree \(customer, number\)')
        self.assertIn('''Check constraints:
    "known" CHECK (item <> 'all' OR number < 9)
    "later" CHECK (customer > 0) NOT VALID
    "orders_number_check" CHECK (number > 0)
''', described)
        self.assertRegex(psql("-c", "\\d+ people"), r'Table "public.people"')

    def test_other_lists(self):
        self.assertRegex(psql("-c", "\\l"), r"Name")
        self.assertRegex(psql("-c", "\\di"), r"people_name")
        self.assertRegex(psql("-c", "\\dn"), r"public")
        self.assertRegex(psql("-c", "\\du"), r"Role name")
        for command in ("\\dv", "\\ds", "\\dT", "\\df nothing", "\\dp", "\\dx", "\\dm", "\\db"):
            with self.subTest(command=command):
                psql("-c", command)

    def test_timing_and_conninfo(self):
        self.assertRegex(psql(script="\\timing on\nSELECT 1;\n"), r"Time: [0-9.]+ ms")
        self.assertIn("You are connected to database", psql("-c", "\\conninfo"))

    def test_gdesc(self):
        described = psql("-A", "-t", script="SELECT id, balance FROM people \\gdesc\n")
        self.assertEqual(described, "id|integer\nbalance|numeric(10,2)\n")

    def test_copy_both_ways(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "people.csv")
            psql("-c", f"\\copy (SELECT * FROM people ORDER BY id) TO '{path}' WITH (FORMAT csv, HEADER)")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(
                text,
                'id,name,born,balance,note\n1,Ann,1990-02-03,12.50,\n2,Bob,,-0.05,"a ""note"", with a comma"\n',
            )
            psql(script="DROP TABLE IF EXISTS people2; CREATE TABLE people2 (id int PRIMARY KEY, name varchar(20), born date,"
                        " balance numeric(10, 2), note text);")
            psql("-c", f"\\copy people2 FROM '{path}' WITH (FORMAT csv, HEADER)")
            self.assertEqual(
                psql("-A", "-t", "-c", "SELECT * FROM people2 ORDER BY id"),
                psql("-A", "-t", "-c", "SELECT * FROM people ORDER BY id"),
            )

    def test_copy_from_standard_input(self):
        psql(script="DROP TABLE IF EXISTS copied; CREATE TABLE copied (a int PRIMARY KEY, b text);\n"
                    "COPY copied FROM STDIN;\n1\tone\n2\t\\N\n3\ttab\\there\n\\.\n")
        self.assertEqual(psql("-A", "-t", "-c", "SELECT a, b FROM copied ORDER BY a"), "1|one\n2|\n3|tab\there\n")
        self.assertEqual(psql("-c", "COPY copied TO STDOUT"), "1\tone\n2\t\\N\n3\ttab\\there\n")
        # A bad line fails the whole COPY, and the session stays usable.
        refused = psql("-v", "ON_ERROR_STOP=0", script="COPY copied FROM STDIN;\n4\tfour\nfive\tx\n\\.\nSELECT 1;\n", ok=False)
        self.assertIn("invalid input syntax for type integer", refused)
        self.assertEqual(psql("-A", "-t", "-c", "SELECT count(*) FROM copied"), "3\n")

    def test_errors(self):
        cases = [
            ("SELECT * FROM nothing", "42P01"),
            ("SELECT nothing FROM people", "42703"),
            ("SELEC 1", "42601"),
            ("INSERT INTO people VALUES (1, 'again')", "23505"),
            ("INSERT INTO people (id) VALUES (9)", "23502"),
            ("INSERT INTO people (id, name) VALUES (9, 'a name of more than twenty characters')", "22001"),
            ("SELECT 1 / 0", "22012"),
            ("SELECT 'x'::int", "22P02"),
            ("CREATE TABLE people (id int)", "42P07"),
        ]
        for sql, state in cases:
            with self.subTest(sql=sql):
                self.assertIn(f"ERROR:  {state}: ", psql("-v", "VERBOSITY=verbose", "-c", sql, ok=False))

    def test_several_statements_are_one_transaction(self):
        refused = psql("-c", "INSERT INTO orders VALUES (1, 1, 'a'); INSERT INTO orders VALUES (1, 1, 'b')", ok=False)
        self.assertIn("duplicate key", refused)
        self.assertEqual(psql("-A", "-t", "-c", "SELECT count(*) FROM orders"), "0\n")

    def test_transactions(self):
        shown = psql("-A", "-t", script="""
            BEGIN; INSERT INTO orders VALUES (7, 1, 'a'); SELECT count(*) FROM orders; ROLLBACK;
            SELECT count(*) FROM orders;
            BEGIN; INSERT INTO orders VALUES (7, 1, 'a');
            SAVEPOINT s; INSERT INTO orders VALUES (7, 2, 'b'); ROLLBACK TO s; COMMIT;
            SELECT customer, number, item FROM orders;
            DELETE FROM orders;
        """)
        self.assertEqual(shown, "1\n0\n7|1|a   \n")

    def test_settings(self):
        self.assertEqual(psql("-A", "-t", script="SET statement_timeout = '5s'; SHOW statement_timeout;"), "5s\n")
        self.assertEqual(psql("-A", "-t", "-c", "SHOW server_encoding"), "UTF8\n")
        self.assertRegex(psql("-A", "-t", "-c", "SELECT version()"), r"PostgreSQL 15")
        self.assertRegex(psql("-A", "-t", "-c", "SELECT current_database(), current_user"), r"\|")

    def test_cursor(self):
        shown = psql("-A", "-t", script="BEGIN; DECLARE c CURSOR FOR SELECT id FROM people ORDER BY id; FETCH 1 FROM c;"
                                        " FETCH ALL FROM c; CLOSE c; COMMIT;")
        self.assertEqual(shown, "1\n2\n")

    def test_prepare(self):
        shown = psql("-A", "-t", script="PREPARE p (int) AS SELECT name FROM people WHERE id = $1;"
                                        " EXECUTE p (2); EXECUTE p (1); DEALLOCATE p;")
        self.assertEqual(shown, "Bob\nAnn\n")


if __name__ == "__main__":
    unittest.main()
