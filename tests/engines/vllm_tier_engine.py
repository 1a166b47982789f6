"""One vLLM engine on the CPU for test_vllm_tier.py: prompts as JSON lines in, tokens as JSON lines out.

First line of stdin: `model` (a folder) and `extra` (kv_connector_extra_config, or null for an engine
without a connector).  Every further line is a prompt: `ids` and `tokens` (to generate).  Each is answered
by a line "OUT {...}", so that a test can do things to the daemon between two prompts; the first line of
the answers is "READY", the last one, after the end of stdin, "END {...}" with the tier's counters.
"""

import json
import os
import sys
import time


def main():
    job = json.loads(sys.stdin.readline())
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if job.get("processes") else "0"
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    extra = job["extra"]
    connector = (
        None
        if extra is None
        else KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
    )
    llm = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=1024,
        seed=0,
        block_size=32,
        max_num_seqs=8,
        kv_transfer_config=connector,
        enable_prefix_caching=True,
    )
    print("READY", flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        params = SamplingParams(temperature=0.0, max_tokens=ask["tokens"], ignore_eos=True, detokenize=False)
        start = time.monotonic()
        (out,) = llm.generate([{"prompt_token_ids": ask["ids"]}], params, use_tqdm=False)
        answer = {
            "ids": list(out.outputs[0].token_ids),
            "cached": out.num_cached_tokens,
            "seconds": time.monotonic() - start,
        }
        print("OUT " + json.dumps(answer), flush=True)
    end = {}
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if extra is not None and core is not None:
        (tier,) = core.scheduler.connector.connector_scheduler.manager.secondary_tiers
        end = tier.counts
    llm.llm_engine.engine_core.shutdown()
    print("END " + json.dumps(end), flush=True)


if __name__ == "__main__":
    main()
