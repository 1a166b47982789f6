"""A real prefixd for tests in Python: its own directory, its own sockets, stopped by its process id.

    with Daemon(pool="64M") as daemon:
        client = prefixd.Client(daemon.socket)

The binary is $PREFIXD_BIN, else build/daemon/prefixd of this tree.  ctl() asks prefixctl, which lies
beside it ($PREFIXCTL_BIN).
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]


def binary():
    return os.environ.get("PREFIXD_BIN") or str(TREE / "build/daemon/prefixd")


def ctl_binary():
    return os.environ.get("PREFIXCTL_BIN") or str(TREE / "build/clients/ctl/prefixctl")


def answers(path):
    """Does somebody listen there?  A socket file is there a moment before its listener is."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


class Daemon:
    """`options` are prefixd's own, with _ for -: Daemon(pool_bytes="64M", redis="...")."""

    def __init__(self, **options):
        self.dir = tempfile.mkdtemp(prefix="prefixd-test-")
        self.socket = os.path.join(self.dir, "prefixd.sock")
        self.admin = os.path.join(self.dir, "admin.sock")
        self.options = options
        self.process = None

    def start(self):
        args = [binary(), "--socket", self.socket, "--admin-socket", self.admin]
        for key, value in self.options.items():
            args.append("--" + key.replace("_", "-"))
            if value is not True:
                args.append(str(value))
        self.log = open(os.path.join(self.dir, "log"), "ab")
        env = {"PREFIXD_KEEP": "none", **os.environ}  # nothing survives its test, unless it says keep=
        self.process = subprocess.Popen(args, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env=env)
        until = time.monotonic() + 20
        while not answers(self.socket):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"prefixd did not start: {self.text()}")
            time.sleep(0.01)
        return self

    def text(self):
        with open(os.path.join(self.dir, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def kill(self):
        """SIGKILL: what a crash looks like.  start() brings the next life up on the same sockets."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()
        # A killed daemon leaves its socket files: without them start() can tell when the next one listens.
        for path in (self.socket, self.admin):
            if os.path.exists(path):
                os.unlink(path)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def ctl(self, *words):
        """prefixctl's answer as an object, with --json where it knows it."""
        out = subprocess.run([ctl_binary(), "--admin-socket", self.admin, *words], check=False, capture_output=True, timeout=30)
        if out.returncode:
            raise RuntimeError(f"prefixctl {' '.join(words)}: {out.stderr.decode()} {out.stdout.decode()}")
        return json.loads(out.stdout) if "--json" in words else out.stdout.decode()

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        self.stop()
        if kind is not None:
            sys.stderr.write(self.text())
        shutil.rmtree(self.dir, ignore_errors=True)
