"""vLLM 0.32.0 with LMCache 0.5.6's server behind each engine, and prefixd behind the servers.

Nothing stands in for anything: engine A computes a prompt, its LMCache server puts the chunks into prefixd,
engine B's server finds them there, and B answers with the same tokens without computing the prompt.  Runs in
vLLM's environment, where LMCache is there too; LMCache without vLLM is tested by test_lmcache*.py.
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path.insert(0, str(TREE / "tests/lib"))

import vllm_model
from daemon import Daemon
from vllm_child import Child


def missing():
    """The first package that is not there, or ''."""
    for name in ("vllm", "lmcache", "aiofile", "sortedcontainers", "opentelemetry.exporter.prometheus"):
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ImportError:
            return name
    return ""


MISSING = missing()

CHUNK = 64
TOKENS = 600  # 9 chunks and a rest


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`lmcache server` as an operator starts it."""

    def __init__(self, folder, name, daemon, model):
        self.port, self.log = free_port(), os.path.join(folder, name + ".log")
        params = {
            "socket": daemon.socket,
            "tenant": "default",
            "salt": "",
            "hash_algorithm": "blake3",
            "chunk_size": CHUNK,
            "deadline": 5.0,
            "lookup_deadline": 2.0,
            "models": {model: {"revision": "r1", "adapter": ""}},
        }
        adapter = {"type": "plugin", "module_path": "prefixd_lmcache.l2", "class_name": "PrefixdL2Adapter"}
        command = [
            sys.executable,
            "-m",
            "lmcache.cli.main",
            "server",
            "--supported-transfer-mode",
            "engine_driven",
        ]
        command += ["--port", str(self.port), "--http-port", str(free_port()), "--l1-size-gb", "0.1"]
        command += ["--no-l1-use-lazy", "--eviction-policy", "LRU", "--chunk-size", str(CHUNK)]
        command += [
            "--hash-algorithm",
            "blake3",
            "--l2-adapter",
            json.dumps({**adapter, "adapter_params": params}),
        ]
        paths = [
            str(TREE / "clients/python/src"),
            str(TREE / "clients/lmcache/src"),
            os.environ.get("PYTHONPATH", ""),
        ]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in paths if path))
        env.update(LMCACHE_TRACK_USAGE="false", LMCACHE_DISABLE_BANNER="1")
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def ready(self, seconds=180):
        until = time.monotonic() + seconds
        while "cache server is running" not in self.text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"lmcache server did not start: {self.text()[-3000:]}")
            time.sleep(0.2)
        return self

    def text(self):
        return Path(self.log).read_text(errors="replace")

    def stop(self):
        """True: it ended by itself when it was asked to."""
        self.process.terminate()
        try:
            return self.process.wait(60) == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False


@unittest.skipIf(MISSING, f"{MISSING} is not installed in this environment")
class TwoEnginesTwoServers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="prefixd-lmcache-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        model = vllm_model.make(os.path.join(cls.folder, "model"))
        cls.daemon = Daemon(pool_blocks=256).start()
        cls.addClassCleanup(cls.daemon.stop)
        cls.plain = Child(os.path.join(cls.folder, "plain.log"), model)
        cls.addClassCleanup(cls.plain.stop)
        cls.servers, cls.engines = [], []
        for name in "AB":
            cls.servers.append(Server(cls.folder, f"server-{name}", cls.daemon, str(model)))
            cls.addClassCleanup(cls.servers[-1].stop)
        for name, server in zip("AB", cls.servers):
            extra = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": server.ready().port}
            transfer = {
                "kv_connector": "LMCacheMPConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": extra,
            }
            # vLLM looks through all that is imported before its worker starts, and stumbles over llvmlite,
            # which LMCache needs: in a process of its own the worker starts before LMCache is imported.
            env = {"LMCACHE_TRACK_USAGE": "false", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
            engine = Child(
                os.path.join(cls.folder, f"{name}.log"),
                model,
                env=env,
                engine={"kv_transfer_config": transfer},
            )
            cls.engines.append(engine)
            cls.addClassCleanup(engine.stop)
        for child in (cls.plain, *cls.engines):
            child.ready()

    @staticmethod
    def prompt(seed):
        return [(i * 7919 + seed * 104729) % 700 + 10 for i in range(TOKENS)]

    def stored(self):
        return self.daemon.ctl("status", "--json")["slots"]["ready"]

    def wait_for_stored(self, blocks):
        until = time.monotonic() + 30
        while self.stored() < blocks and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(self.stored(), blocks)

    def generate(self, engine, prompt):
        answer = engine.ask("generate", prompts=[prompt])
        return answer["tokens"][0], answer["cached"][0]

    def test_1_one_engine_computes_the_other_loads(self):
        one, two = self.engines
        prompt, full = self.prompt(1), TOKENS // CHUNK
        wanted, cached = self.generate(self.plain, prompt)
        self.assertEqual(cached, 0)
        before = self.stored()
        self.assertEqual(self.generate(one, prompt), (wanted, 0))
        self.wait_for_stored(before + full)
        self.assertEqual(self.generate(two, prompt), (wanted, full * CHUNK))
        # And the other way round.
        back = self.prompt(2)
        wanted, _ = self.generate(self.plain, back)
        self.assertEqual(self.generate(two, back), (wanted, 0))
        self.wait_for_stored(before + 2 * full)
        self.assertEqual(self.generate(one, back), (wanted, full * CHUNK))
        self.assertIn("clean", self.daemon.ctl("audit"))
        self.assertIn("nothing is pinned", self.daemon.ctl("pins"))

    def test_2_daemon_stopped_killed_and_back(self):
        one, two = self.engines
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            prompt = self.prompt(3)
            self.assertEqual(self.generate(one, prompt), (self.generate(self.plain, prompt)[0], 0))
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.daemon.kill()
        try:
            prompt = self.prompt(4)
            self.assertEqual(self.generate(one, prompt), (self.generate(self.plain, prompt)[0], 0))
        finally:
            self.daemon.start()
        time.sleep(1.5)  # the client asks once a second whether the daemon is there again
        prompt = self.prompt(5)
        wanted, _ = self.generate(self.plain, prompt)
        self.assertEqual(self.generate(one, prompt), (wanted, 0))
        self.wait_for_stored(TOKENS // CHUNK)
        self.assertEqual(self.generate(two, prompt), (wanted, TOKENS // CHUNK * CHUNK))
        for server in self.servers:
            self.assertIsNone(server.process.poll())
        self.assertIn("clean", self.daemon.ctl("audit"))
        self.assertIn("nothing is pinned", self.daemon.ctl("pins"))


if __name__ == "__main__":
    unittest.main()
