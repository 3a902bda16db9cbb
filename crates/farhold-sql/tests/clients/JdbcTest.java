import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.*;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;

/** PostgreSQL's JDBC driver. Run as `java -cp postgresql.jar JdbcTest.java`; prints one line per test and fails at the first error. */
class JdbcTest {
    private static String url() {
        return "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
    }

    private static Connection connect(String... settings) throws SQLException {
        Properties properties = new Properties();
        properties.put("user", System.getenv("PGUSER"));
        String password = System.getenv("PGPASSWORD");
        if (password != null) {
            properties.put("password", password);
        }
        for (int at = 0; at < settings.length; at += 2) {
            properties.put(settings[at], settings[at + 1]);
        }
        return DriverManager.getConnection(url(), properties);
    }

    private static void check(Object found, Object expected, String what) {
        boolean same = found instanceof byte[] bytes ? java.util.Arrays.equals(bytes, (byte[]) expected) : Objects.equals(found, expected);
        if (!same) {
            throw new AssertionError(what + ": found " + found + ", expected " + expected);
        }
    }

    private static void run(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private static Object single(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getObject(1);
        }
    }

    private static void types(Connection connection) throws SQLException {
        run(connection, "DROP TABLE IF EXISTS jd_types");
        run(connection, "CREATE TABLE jd_types (i int PRIMARY KEY, b boolean, s smallint, l bigint, r real, d double precision,"
            + " n numeric(12, 2), v varchar(10), t text, y bytea, a date, m timestamp, z timestamptz)");
        Object[] row = {7, true, -2, Long.MIN_VALUE, 1.5f, -0.1, new BigDecimal("-12345.67"), "abc", "zwölf", new byte[] {0, -1},
            LocalDate.of(2026, 2, 28), LocalDateTime.of(1999, 12, 31, 23, 59, 59, 123456000),
            OffsetDateTime.of(2026, 7, 15, 10, 0, 0, 5000, ZoneOffset.UTC)};
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jd_types VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")) {
            for (int at = 0; at < row.length; at++) {
                insert.setObject(at + 1, row[at]);
            }
            check(insert.executeUpdate(), 1, "inserted");
        }
        // The driver switches to a server-side statement and the binary format after some executions.
        try (PreparedStatement select = connection.prepareStatement("SELECT * FROM jd_types WHERE i = ?")) {
            for (int round = 0; round < 10; round++) {
                select.setInt(1, 7);
                try (ResultSet rows = select.executeQuery()) {
                    check(rows.next(), true, "a row in round " + round);
                    for (int at = 0; at < row.length; at++) {
                        Object found = switch (at) {
                            case 10 -> rows.getObject(at + 1, LocalDate.class);
                            case 11 -> rows.getObject(at + 1, LocalDateTime.class);
                            case 12 -> rows.getObject(at + 1, OffsetDateTime.class);
                            default -> rows.getObject(at + 1);
                        };
                        check(found, row[at], "column " + (at + 1) + " in round " + round);
                    }
                    check(rows.next(), false, "one row only");
                }
            }
        }
        try (PreparedStatement update = connection.prepareStatement("UPDATE jd_types SET t = ?, m = ?, n = ?, z = ? WHERE i = ?")) {
            update.setNull(1, Types.VARCHAR);
            update.setTimestamp(2, Timestamp.valueOf("2001-02-03 04:05:06.7"));
            update.setNull(3, Types.NUMERIC);
            update.setTimestamp(4, Timestamp.valueOf("2001-02-03 04:05:06.7"));
            update.setInt(5, 7);
            check(update.executeUpdate(), 1, "updated");
        }
        check(single(connection, "SELECT t FROM jd_types"), null, "a null");
        check(single(connection, "SELECT m FROM jd_types"), Timestamp.valueOf("2001-02-03 04:05:06.7"), "a timestamp");
        check(single(connection, "SELECT z FROM jd_types"), Timestamp.valueOf("2001-02-03 04:05:06.7"), "a timestamp with time zone");
    }

    private static void batches(Connection connection) throws SQLException {
        run(connection, "DROP TABLE IF EXISTS jd_batch");
        run(connection, "CREATE TABLE jd_batch (i int PRIMARY KEY, t text)");
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jd_batch VALUES (?, ?)")) {
            for (int number = 0; number < 1000; number++) {
                insert.setInt(1, number);
                insert.setString(2, "row " + number);
                insert.addBatch();
            }
            check(insert.executeBatch().length, 1000, "counts of a batch");
        }
        check(single(connection, "SELECT count(*) FROM jd_batch"), 1000L, "rows");
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jd_batch VALUES (?, ?) RETURNING i")) {
            insert.setInt(1, 5000);
            insert.setString(2, "x");
            try (ResultSet rows = insert.executeQuery()) {
                rows.next();
                check(rows.getInt(1), 5000, "RETURNING");
            }
        }
        run(connection, "DELETE FROM jd_batch WHERE i = 5000");
    }

    private static void fetchSize() throws SQLException {
        try (Connection connection = connect()) {
            connection.setAutoCommit(false);
            try (PreparedStatement select = connection.prepareStatement("SELECT i FROM jd_batch WHERE i >= ? ORDER BY i")) {
                select.setFetchSize(70);
                select.setInt(1, 100);
                try (ResultSet rows = select.executeQuery()) {
                    int expected = 100;
                    while (rows.next()) {
                        check(rows.getInt(1), expected++, "row in order");
                    }
                    check(expected, 1000, "all rows");
                }
            }
            connection.commit();
        }
    }

    private static void transactions() throws SQLException {
        try (Connection connection = connect()) {
            run(connection, "DROP TABLE IF EXISTS jd_blocks");
            run(connection, "CREATE TABLE jd_blocks (i int PRIMARY KEY)");
            connection.setAutoCommit(false);
            connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
            run(connection, "INSERT INTO jd_blocks VALUES (1)");
            Savepoint savepoint = connection.setSavepoint("here");
            try {
                run(connection, "INSERT INTO jd_blocks VALUES (1)");
                throw new AssertionError("a duplicate was taken");
            } catch (SQLException error) {
                check(error.getSQLState(), "23505", "state of a duplicate");
            }
            connection.rollback(savepoint);
            run(connection, "INSERT INTO jd_blocks VALUES (2)");
            connection.commit();
            run(connection, "DELETE FROM jd_blocks");
            connection.rollback();
            check(single(connection, "SELECT count(*) FROM jd_blocks"), 2L, "rows after a rollback");
        }
    }

    private static void copy(Connection connection) throws Exception {
        run(connection, "DROP TABLE IF EXISTS jd_copy");
        run(connection, "CREATE TABLE jd_copy (i int PRIMARY KEY, t text)");
        CopyManager manager = connection.unwrap(PGConnection.class).getCopyAPI();
        String lines = "1,one\n2,\n3,\"a \"\"quoted\"\" one\"\n";
        check(manager.copyIn("COPY jd_copy FROM STDIN WITH (FORMAT csv)", new StringReader(lines)), 3L, "copied in");
        StringWriter out = new StringWriter();
        check(manager.copyOut("COPY (SELECT * FROM jd_copy ORDER BY i) TO STDOUT WITH (FORMAT csv)", out), 3L, "copied out");
        check(out.toString(), lines, "the copy");
    }

    private static void metadata(Connection connection) throws SQLException {
        DatabaseMetaData metadata = connection.getMetaData();
        check(metadata.getDatabaseMajorVersion(), 15, "version");
        List<String> found = new ArrayList<>();
        try (ResultSet rows = metadata.getTables(null, "public", "jd_types", new String[] {"TABLE"})) {
            while (rows.next()) {
                found.add(rows.getString("TABLE_NAME"));
            }
        }
        check(found, List.of("jd_types"), "tables");
        found.clear();
        try (ResultSet rows = metadata.getColumns(null, "public", "jd_types", "%")) {
            while (rows.next()) {
                found.add(rows.getString("COLUMN_NAME") + " " + rows.getString("TYPE_NAME") + " " + rows.getInt("NULLABLE"));
            }
        }
        check(found.size(), 13, "columns");
        check(found.get(0), "i int4 0", "the key");
        check(found.get(7), "v varchar 1", "a varchar");
        found.clear();
        try (ResultSet rows = metadata.getPrimaryKeys(null, "public", "jd_types")) {
            while (rows.next()) {
                found.add(rows.getString("COLUMN_NAME") + " " + rows.getString("PK_NAME"));
            }
        }
        check(found, List.of("i jd_types_pkey"), "primary key");
        found.clear();
        try (ResultSet rows = metadata.getIndexInfo(null, "public", "jd_types", false, false)) {
            while (rows.next()) {
                found.add(rows.getString("INDEX_NAME"));
            }
        }
        check(found, List.of("jd_types_pkey"), "indexes");
        try (ResultSet rows = metadata.getSchemas()) {
            boolean seen = false;
            while (rows.next()) {
                seen |= rows.getString("TABLE_SCHEM").equals("public");
            }
            check(seen, true, "schema public");
        }
        try (PreparedStatement select = connection.prepareStatement("SELECT i, n, v FROM jd_types WHERE i = ?")) {
            ResultSetMetaData shape = select.getMetaData();
            check(shape.getColumnCount(), 3, "columns of a statement");
            check(shape.getPrecision(2) + "," + shape.getScale(2), "12,2", "precision of numeric(12, 2)");
            check(shape.getColumnTypeName(3), "varchar", "type of a varchar");
            check(select.getParameterMetaData().getParameterTypeName(1), "int4", "type of a parameter");
        }
    }

    private static void cancel(Connection connection) throws Exception {
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(1);
            statement.executeQuery(
                "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, generate_series(1, 100) c");
            throw new AssertionError("the query was not cancelled");
        } catch (SQLException error) {
            check(error.getSQLState(), "57014", "state of a cancelled statement");
        }
        check(single(connection, "SELECT 1"), 1, "the connection goes on");
    }

    public static void main(String[] arguments) throws Exception {
        for (String mode : new String[] {"extended", "simple"}) {
            try (Connection connection = connect("preferQueryMode", mode)) {
                types(connection);
                System.out.println("types, " + mode + ": ok");
                batches(connection);
                System.out.println("batches, " + mode + ": ok");
            }
        }
        fetchSize();
        System.out.println("fetch size: ok");
        transactions();
        System.out.println("transactions: ok");
        try (Connection connection = connect()) {
            copy(connection);
            System.out.println("copy: ok");
            metadata(connection);
            System.out.println("metadata: ok");
            cancel(connection);
            System.out.println("cancel: ok");
        }
    }
}
