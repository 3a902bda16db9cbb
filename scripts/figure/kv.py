"""09-kv: gets and puts of far rows, beside a Redis of its own, if there is one on this machine."""
import shutil
import socket
import subprocess
import tempfile

from .crates import crate_bench


def kv(args):
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        redis = shutil.which("redis-server")
        if not redis:
            return crate_bench("kv", args)
        serving = subprocess.Popen([redis, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                                    "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            while serving.poll() is None and subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True).returncode:
                pass
            crate_bench("kv", args, "--redis-port", str(port), "--seconds", "1")
        finally:
            serving.terminate()
            serving.wait()
