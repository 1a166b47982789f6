"""One vLLM engine on the CPU for test_vllm_tier.py: prompts as JSON in, tokens and counters out.

Reads one JSON object from stdin: `model` (folder with a config.json; weights are random, made from a
fixed seed), `extra` (kv_connector_extra_config, or null for an engine without a connector), `prompts`
(lists of token ids), `tokens` (to generate).  Writes one line "RESULT {...}" to stdout.
"""
import json
import os
import sys
import time


def main():
    job = json.load(sys.stdin)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", job.get("processes", "0"))
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    extra = job["extra"]
    connector = None if extra is None else KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra)
    llm = LLM(model=job["model"], skip_tokenizer_init=True, load_format=job.get("load_format", "auto"), enforce_eager=True, dtype="float32",
              max_model_len=1024, seed=0, block_size=32, max_num_seqs=8, kv_transfer_config=connector,
              disable_log_stats=False, enable_prefix_caching=True)
    params = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True, detokenize=False)
    outs, cached, times = [], [], []
    for prompt in job["prompts"]:
        start = time.monotonic()
        (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        times.append(time.monotonic() - start)
        outs.append(list(out.outputs[0].token_ids))
        cached.append(out.num_cached_tokens)
        time.sleep(job.get("pause", 0.0))
    result = {"outs": outs, "cached": cached, "times": times}
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if extra is not None and core is not None:
        tiers = core.scheduler.connector.connector_scheduler.manager.secondary_tiers
        result["counts"] = [getattr(tier, "counts", None) for tier in tiers]
    print("RESULT " + json.dumps(result), flush=True)
    shutdown = getattr(llm.llm_engine.engine_core, "shutdown", None)
    if shutdown is not None:
        shutdown()


if __name__ == "__main__":
    main()
