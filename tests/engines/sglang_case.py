"""What the tests of SGLang share: a daemon for each case, a second process, token ranges."""

import json
import subprocess
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

import sglang_pools as pools  # noqa: E402
from daemon import Daemon  # noqa: E402

PAGE = pools.SPEC["page"]
POOLS = {"pool_blocks": 512, "pool_bytes": "512MiB"}
# Seconds beyond a deadline that a call may take on a machine that does much else: far less than for ever.
SLACK = 8


class Worker:
    """sglang_worker.py, started when first asked; one for all cases, since SGLang takes long to import."""

    def __init__(self):
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sglang_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def send(self, do, name, **order):
        if self.process is None:
            self.start()
        self.process.stdin.write(json.dumps({"do": do, "name": name, **order}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def ask(self, do, name, **order):
        self.send(do, name, **order)
        return self.answer()

    def stop(self):
        process, self.process = self.process, None
        if process is not None:
            process.stdin.close()
            process.stdout.close()
            process.wait(30)


WORKER = Worker()


def pages(first, n):
    """The token range of n pages whose hashes are those of no other test's."""
    return [first * 1_000_000, first * 1_000_000 + n * PAGE]


def tokens(*ranges):
    return [token for first, end in ranges for token in range(first, end)]


class Case(unittest.TestCase):
    """A daemon for each test, which has nothing left over when it ends."""

    options = POOLS

    def setUp(self):
        self.daemon = Daemon(**self.options)
        self.daemon.start()
        self.instances = []
        self.names = []

    def tearDown(self):
        if self.daemon.process.poll() is None:
            audit = self.daemon.ctl("audit", "--json")
            held = self.daemon.ctl("pins", "--json")
        else:
            audit = held = None
        for instance in self.instances:
            instance.close()
        for name in self.names:
            WORKER.ask("close", name)
        self.daemon.stop()
        if audit is not None:
            self.assertTrue(audit["clean"], audit)
            self.assertEqual(held["pins"], [])

    def extra(self, **changes):
        return pools.extra_config(self.daemon.socket, **changes)

    def here(self, extra=None, **spec):
        """An instance in this process."""
        instance = pools.Instance(extra=self.extra(**(extra or {})), **spec)
        self.instances.append(instance)
        return instance

    def there(self, name="B", extra=None, what="Instance", **spec):
        """The name of an instance, or of a tree, in the other process."""
        WORKER.ask("new", name, what=what, spec={"extra": self.extra(**(extra or {})), **spec})
        self.names.append(name)
        return name

    def keys(self, instance, *ranges):
        return pools.hashes(tokens(*ranges), instance.spec)

    def assert_hit(self, result, n):
        self.assertEqual((result["hit"], result["loaded"], result["right"]), (n, n, n), result)

    def assert_alive(self, *instances):
        for instance in instances:
            self.assertTrue(instance.threads_alive())

    def until(self, what, seconds=10.0):
        """Asks until it is so: a connection is tried once a second while no daemon answers."""
        end = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), end, "never came")
            time.sleep(0.1)
