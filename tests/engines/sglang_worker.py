#!/usr/bin/env python3
"""A second process with SGLang controllers: one JSON object a line in, one a line out.

    {"do": "new", "name": "B", "what": "Instance", "spec": {...}}     or "Tree"
    {"do": METHOD, "name": "B", ...arguments}    its result; tokens as [[first, end], ...]
    {"do": "close", "name": "B"}

What the code under test prints goes to stderr.  An exception is answered as {"error": text} and ends nothing.
"""

import json
import os
import sys

# SGLang and what it loads may print: the answers get a descriptor of their own.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import sglang_pools  # noqa: E402


def main():
    instances = {}
    print(json.dumps({"answer": "ready"}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        do, name = order.pop("do"), order.pop("name")
        for key in ("tokens", "prior"):
            if key in order:
                order[key] = [token for first, end in order[key] for token in range(first, end)]
        try:
            if do == "new":
                if order["what"] == "Tree":
                    import sglang_tree

                    instances[name] = sglang_tree.Tree(**order["spec"])
                else:
                    instances[name] = sglang_pools.Instance(**order["spec"])
                result = None
            elif do == "close":
                result = instances.pop(name).close()
            else:
                result, seconds = sglang_pools.timed(getattr(instances[name], do), **order)
                result = {"result": result, "seconds": seconds, "alive": instances[name].threads_alive()}
            answer = {"answer": result}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=ANSWERS, flush=True)


main()
