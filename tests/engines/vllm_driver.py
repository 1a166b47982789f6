"""A vLLM engine as a child process of a test: requests by JSON lines.

    vllm_driver.py '{"model": DIR, "connector": {...} or null, ...}'

Reads one object a line from stdin and answers with one a line on stdout; all that the engine prints goes
to stderr.  Figures are the engine's own: cached tokens as its request outputs tell them, counters as its
metrics do.  The engine runs inside this process, so that its K/V cache can be looked at too.
"""

import hashlib
import json
import os
import sys
import time


def environment():
    """Offline, on the processor, small, and repeatable.  Before vLLM is imported."""
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    for key, value in defaults.items():
        os.environ.setdefault(key, value)


class Engine:
    def __init__(self, config):
        from vllm import LLM

        extra = {}
        if config.get("connector") is not None:
            extra["kv_transfer_config"] = {
                "kv_connector": "PrefixdConnector",
                "kv_connector_module_path": "prefixd_vllm.connector",
                "kv_role": config.get("role", "kv_both"),
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": config["connector"],
            }
        extra.update(config.get("engine", {}))
        self.llm = LLM(
            model=config["model"], skip_tokenizer_init=True, enforce_eager=True, seed=0,
            dtype="float32", max_model_len=2048, max_num_seqs=8, block_size=32, disable_log_stats=False,
            **extra,
        )  # fmt: skip

    @property
    def core(self):
        return self.llm.llm_engine.engine_core.engine_core

    def generate(self, prompts, max_tokens=16, salts=None):
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        for one, salt in zip(inputs, salts or []):
            if salt:
                one["cache_salt"] = salt
        outputs = self.llm.generate(inputs, sampling, use_tqdm=False)
        return {
            "tokens": [list(one.outputs[0].token_ids) for one in outputs],
            "reasons": [one.outputs[0].finish_reason for one in outputs],
            "cached": [one.num_cached_tokens for one in outputs],
        }

    def metrics(self):
        found = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if value is None:
                value = getattr(metric, "sum", None)
            if value is not None:
                found[metric.name] = found.get(metric.name, 0) + value
        return {"metrics": found}

    def forget(self):
        """Empties the engine's own prefix cache, not the connector's."""
        return {"done": bool(self.llm.reset_prefix_cache())}

    def blocks(self, prompt):
        """Digests of the K/V of a prompt's blocks, as far as the engine's own cache has them."""
        scheduler = self.core.scheduler
        from vllm import SamplingParams
        from vllm.v1.request import Request

        request = Request(
            "look", prompt, SamplingParams(max_tokens=1), None, block_hasher=self.core.request_block_hasher
        )
        worker = self.core.model_executor.driver_worker
        worker = getattr(worker, "worker", worker)
        digests = []
        for block_hash in request.block_hashes:
            found = scheduler.kv_cache_manager.block_pool.get_cached_block(block_hash, [0])
            if not found:
                break
            digest = hashlib.sha256()
            for layer in worker.model_runner.kv_caches:
                digest.update(layer[found[0].block_id].contiguous().numpy().tobytes())
            digests.append(digest.hexdigest())
        return {"blocks": digests}

    def idle(self, seconds=20):
        """Steps without requests: what ends behind the last request ends here."""
        if not hasattr(self.llm.llm_engine.engine_core, "engine_core"):
            time.sleep(0.01)  # it steps by itself in a process of its own
            return {}
        until = time.monotonic() + seconds
        while self.core.scheduler.has_requests() and time.monotonic() < until:
            self.llm.llm_engine.step()
        return {
            "free": self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "busy": self.core.scheduler.has_requests(),
        }

    def abort(self, prompts, steps):
        """Requests that are aborted after so many steps: in mid-load, in mid-prefill, in mid-answer."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, detokenize=False)
        engine = self.llm.llm_engine
        names = [f"aborted-{steps}-{i}" for i in range(len(prompts))]
        for name, ids in zip(names, prompts):
            engine.add_request(name, {"prompt_token_ids": ids}, sampling)
        for _ in range(steps):
            engine.step()
        unfinished = engine.get_num_unfinished_requests()
        engine.abort_request(names)
        return dict(self.idle(), unfinished=unfinished)


def main():
    environment()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(what):
        out.write(json.dumps(what) + "\n")
        out.flush()

    try:
        engine = Engine(json.loads(sys.argv[1]))
    except Exception as error:
        answer({"refused": f"{type(error).__name__}: {error}"})
        raise
    answer({"ready": True})
    for line in sys.stdin:  # one request at a time
        request = json.loads(line)
        op = request.pop("op")
        if op == "quit":
            break
        try:
            answer(getattr(engine, op)(**request))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
            raise
    engine.llm.llm_engine.engine_core.shutdown()
    engine = None
    answer({"ended": True})


if __name__ == "__main__":
    main()
