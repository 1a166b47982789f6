#!/usr/bin/env python3
"""One LMCache in a process of its own, for tests: commands in, answers out, a JSON object a line.

    lmcache_worker.py OUT engine CONFIG.yaml       an engine's LMCache, prefixd as remote storage
    lmcache_worker.py OUT server PARAMS.json       the storage of LMCache's server, prefixd as L2

OUT is the number of a descriptor for answers: LMCache writes its log to the usual ones.  :class:`Worker`
is the other end.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path


class Worker:
    """The parent's end: ask() waits for the answer, at most `seconds`, and raises what the worker raised."""

    def __init__(self, kind, path, seconds=120.0):
        out, in_ = os.pipe()
        command = [sys.executable, str(Path(__file__).resolve()), str(in_), kind, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, pass_fds=(in_,), text=True)
        os.close(in_)
        self.answers = os.fdopen(out, encoding="utf-8")
        self.read(seconds)

    def read(self, seconds):
        # A worker that hangs is ended, which ends the line that is waited for.
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        line = self.answers.readline()
        timer.cancel()
        if not line:
            raise RuntimeError(f"the worker ended or gave no answer within {seconds:.0f} s")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in the worker: {answer['error']}")
        return answer["value"]

    def ask(self, what, *args, seconds=120.0, **kwargs):
        self.process.stdin.write(json.dumps([what, args, kwargs]) + "\n")
        self.process.stdin.flush()
        return self.read(seconds)

    def close(self):
        try:
            self.ask("close", seconds=30.0)
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.answers.close()


def serve(out, kind, path):
    import lmcache_bed

    if kind == "engine":
        bed = lmcache_bed.Bed(path)
    else:
        bed = lmcache_bed.ServerBed(json.loads(Path(path).read_text()))
    own = {
        "complaints": lmcache_bed.complaints.take,
        "stats": lambda: bed.connector.stats(),
        "verdict": lambda: [bed.model.loaded, bed.model.wrong],
        "status": lambda: bed.adapter.report_status(),
    }
    print(json.dumps({"value": None}), file=out, flush=True)
    for line in sys.stdin:
        what, args, kwargs = json.loads(line)
        try:
            value = {"value": (own.get(what) or getattr(bed, what))(*args, **kwargs)}
        except Exception as error:
            value = {"error": repr(error)}
        print(json.dumps(value), file=out, flush=True)
        if what == "close":
            return


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        serve(answers, *sys.argv[2:])
        answers.flush()
    os._exit(0)
