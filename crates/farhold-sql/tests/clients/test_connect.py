"""Connecting: passwords, TLS, limits, shutdown. Each test starts a server of its own."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import unittest

import asyncpg
import psycopg

FARHOLD = os.environ["FARHOLD"]
LIMIT_S = 300
# The verifier that PostgreSQL 15 stores for the password `pencil`.
STORED = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)


class Server:
    """A server with these flags, which runs until the end of the test."""

    def __init__(self, test, *flags, listen="127.0.0.1:0"):
        self.process = subprocess.Popen(
            [FARHOLD, "serve", "--json", "--listen", listen, "--memory", "256M", *map(str, flags)],
            stdout=subprocess.PIPE, text=True,
        )
        test.addCleanup(self.stop)
        for line in self.process.stdout:
            if '"listening"' in line:
                self.host, port = json.loads(line)["listen"].rsplit(":", 1)
                self.port = int(port)
                return
        raise AssertionError("the server did not start")

    def connect(self, **more):
        more = {"user": "ann", "dbname": "farhold", "connect_timeout": 60, **more}
        return psycopg.connect(host=more.pop("host", self.host), port=self.port, **more)

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(LIMIT_S)
        self.process.stdout.close()


class Connect(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def users(self):
        path = self.folder / "users"
        path.write_text(f"# who may connect\nann:{STORED}\nbob:a:b c\n")
        return path

    def certificate(self):
        certificate, key = self.folder / "certificate.pem", self.folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )
        return certificate, key

    def refused(self, pattern, connect):
        with self.assertRaisesRegex(psycopg.OperationalError, pattern):
            connect().close()

    def test_passwords(self):
        server = Server(self, "--password-file", self.users())
        for user, password in (("ann", "pencil"), ("bob", "a:b c")):
            with server.connect(user=user, password=password) as connection:
                self.assertEqual(connection.execute("SELECT current_user").fetchone(), (user,))
        self.refused('password authentication failed for user "ann"', lambda: server.connect(password="pen"))
        self.refused('password authentication failed for user "eve"', lambda: server.connect(user="eve", password="pencil"))
        self.refused("no password supplied", lambda: server.connect())

    def test_open_to_others_needs_passwords(self):
        done = subprocess.run(
            [FARHOLD, "serve", "--listen", "0.0.0.0:0", "--memory", "256M"], capture_output=True, text=True, timeout=LIMIT_S
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("without passwords", done.stderr)

    def test_tls(self):
        certificate, key = self.certificate()
        server = Server(self, "--tls-cert", certificate, "--tls-key", key, "--password-file", self.users())
        secure = {"sslmode": "verify-full", "sslrootcert": str(certificate), "host": "localhost", "password": "pencil"}
        with server.connect(**secure) as connection:
            self.assertTrue(connection.pgconn.ssl_in_use)
            self.assertEqual(connection.execute("SELECT 1").fetchone(), (1,))
            rows = connection.execute("SELECT * FROM generate_series(1, 100000)").fetchall()
            self.assertEqual(len(rows), 100000)
        # Also without TLS, which is optional.
        with server.connect(sslmode="disable", password="pencil") as connection:
            self.assertFalse(connection.pgconn.ssl_in_use)

        async def over_tls():
            connection = await asyncpg.connect(
                host="localhost", port=server.port, user="ann", password="pencil", database="farhold", ssl="require")
            self.assertEqual(await connection.fetchval("SELECT 1"), 1)
            await connection.close()

        import asyncio
        asyncio.run(over_tls())

    def test_no_tls_is_said_at_once(self):
        server = Server(self)
        self.refused("server does not support SSL", lambda: server.connect(sslmode="require"))
        with server.connect(sslmode="prefer") as connection:
            self.assertFalse(connection.pgconn.ssl_in_use)

    def test_shutdown_tells_its_clients(self):
        server = Server(self)
        with server.connect(autocommit=True) as connection:
            connection.execute("SELECT 1")
            server.stop()
            with self.assertRaises(psycopg.OperationalError) as caught:
                connection.execute("SELECT 1")
            self.assertIn("terminating connection due to administrator command", str(caught.exception))
        self.assertEqual(server.process.returncode, 0)

    def test_garbage_harms_nobody_else(self):
        server = Server(self)
        with server.connect(autocommit=True) as connection:
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)), b"\x16\x03\x01\x02\x00\x01", b"\x00" * 64, b"\x00\x00\x00\x08"):
                with socket.create_connection((server.host, server.port), timeout=60) as peer:
                    peer.sendall(garbage)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(4096):
                        pass
            self.assertEqual(connection.execute("SELECT 1").fetchone(), (1,))


if __name__ == "__main__":
    unittest.main()
