"""The two examples of clients/python/examples against real workers: hit ratio and time saved, as they print them."""
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/lib"))
from daemon import Daemon  # noqa: E402
from llama_worker import Worker, missing  # noqa: E402

LIGHT = bool(os.environ.get("PREFIXD_ENGINES_LIGHT"))


@unittest.skipIf(missing(), missing())
class Examples(unittest.TestCase):
    def example(self, name, *words):
        """Runs an example; returns what it said about (hit ratio, share of the time saved, lines)."""
        done = subprocess.run([sys.executable, str(TREE / "clients/python/examples" / name), *words], capture_output=True,
                              text=True, timeout=1500, check=False)
        print(done.stdout, done.stderr, file=sys.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        hit = re.search(r"hit ratio: ([0-9.]+)%", done.stdout)
        saved = re.search(r"time saved: (-?[0-9.]+) s of ([0-9.]+) s", done.stdout)
        self.assertTrue(hit and saved, done.stdout)
        lines = [line for line in done.stdout.splitlines() if re.match(r"\s*\d+ |turn ", line)]
        return float(hit[1]), float(saved[1]) / float(saved[2]), lines

    def test_rag(self):
        questions = 12 if LIGHT else 100
        with Daemon(pool_blocks=8192) as daemon, Worker(socket=daemon.socket, threads=2, ctx=4096, slots=1) as worker:
            hit, saved, lines = self.example("rag.py", "--url", f"http://127.0.0.1:{worker.port}", "--questions",
                                             str(questions), "--max-tokens", "8")
            self.assertEqual(len(lines), questions)
            # The retriever's prompts share most of their tokens; the first ones have nothing to find.
            self.assertGreater(hit, 10.0 if LIGHT else 50.0)
            self.assertGreater(saved, 0)
            self.assertTrue(daemon.ctl("audit", "--json")["clean"])

    def test_chat(self):
        with Daemon(pool_blocks=4096) as daemon, Worker(socket=daemon.socket, threads=2, ctx=4096, slots=1) as first, \
                Worker(socket=daemon.socket, threads=2, ctx=4096, slots=1) as second:
            hit, saved, lines = self.example("chat.py", "--url", f"http://127.0.0.1:{first.port}", "--other",
                                             f"http://127.0.0.1:{second.port}", "--turns", "3" if LIGHT else "6")
            self.assertTrue(lines)
            self.assertGreater(hit, 40.0)
            self.assertGreater(saved, 0)
            self.assertTrue(daemon.ctl("audit", "--json")["clean"])


if __name__ == "__main__":
    unittest.main()
