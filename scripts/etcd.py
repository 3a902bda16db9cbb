"""An etcd of a test's own, which may stand still, and a way to it that may be slow."""
import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from skipped import skipped


def free_ports(count):
    """Ports that nobody listens at: all at once, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def has_etcd():
    """Whether etcd is installed. Without it a test is skipped, except under CI, where it must be there."""
    found = shutil.which("etcd") is not None
    assert found or "CI" not in os.environ, "no etcd here: scripts/install-deps test"
    if not found:
        skipped("no etcd on this machine; scripts/install-deps test installs it")
    return found


class Etcd:
    """Use it in a `with`. Whoever asks it before it answers asks again."""

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.port, peer = free_ports(2)
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        self.process = subprocess.Popen(
            ["etcd", "--name", "one", "--data-dir", self.directory.name, "--unsafe-no-fsync",
             "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()

    def stand_still(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


class SlowWay:
    """Passes connections on to a port; every byte takes `delay_s` longer each way. Use it in a `with`."""

    def __init__(self, to):
        self.to, self.delay_s = to, 0.0

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                if self.listener.fileno() < 0:
                    return
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                under_way = queue.Queue()
                threading.Thread(target=self.take, args=(source, under_way), daemon=True).start()
                threading.Thread(target=self.give, args=(sink, under_way), daemon=True).start()

    def take(self, source, under_way):
        while True:
            try:
                some = source.recv(65536)
            except OSError:
                some = b""
            under_way.put((time.monotonic() + self.delay_s, some))
            if not some:
                return

    @staticmethod
    def give(sink, under_way):
        while True:
            due, some = under_way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not some:
                    return sink.shutdown(socket.SHUT_WR)
                sink.sendall(some)
            except OSError:
                return
