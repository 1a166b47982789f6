"""vllm_driver.py as an object: an engine in a process of its own, asked by method calls."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]


class Child:
    """Starts at once; `ready()` waits for it.  `log` is a file that gets what the engine prints."""

    def __init__(self, log, model, connector=None, env=None, **config):
        self.log = log
        config.update(model=model, connector=connector)
        environment = dict(os.environ, **(env or {}))
        paths = [
            str(TREE / "clients/python/src"),
            str(TREE / "clients/vllm/src"),
            environment.get("PYTHONPATH", ""),
        ]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with open(log, "ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "vllm_driver.py"), json.dumps(config)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, env=environment, text=True,
            )  # fmt: skip
        self.started = False

    def ready(self):
        if not self.started:
            first = self._read()
            if "ready" not in first:
                raise RuntimeError(f"the engine did not start: {first}\n{self.text()[-3000:]}")
            self.started = True
        return self

    def text(self):
        return Path(self.log).read_text(errors="replace")

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended, status {self.process.wait()}\n{self.text()[-3000:]}")
        return json.loads(line)

    def begin(self, op, **arguments):
        self.ready()
        self.process.stdin.write(json.dumps(dict(arguments, op=op)) + "\n")
        self.process.stdin.flush()

    def end(self):
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{self.text()[-3000:]}")
        return answer

    def ask(self, op, **arguments):
        self.begin(op, **arguments)
        return self.end()

    def stop(self):
        """Waits for a clean end, and kills what does not come to one; True: it was clean."""
        timer = threading.Timer(30, self.process.kill)
        timer.start()
        try:
            if self.process.poll() is None and self.started:
                self.process.stdin.write('{"op": "quit"}\n')
                self.process.stdin.close()
                self.process.stdout.read()
            elif self.process.poll() is None:
                self.process.kill()
            code = self.process.wait()
        except OSError:
            self.process.kill()
            code = self.process.wait()
        finally:
            timer.cancel()
            self.process.stdout.close()
        return code == 0
