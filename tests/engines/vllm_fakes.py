"""What the vLLM connector's halves see of an engine, made by hand, for tests of their rules."""

import hashlib
from types import SimpleNamespace

import prefixd
import torch
from prefixd_vllm.layout import Pages
from prefixd_vllm.scheduling import SchedulerSide
from prefixd_vllm.session import Link, Say, client_maker
from prefixd_vllm.settings import Settings
from prefixd_vllm.working import WorkerSide
from vllm.v1.kv_cache_interface import FullAttentionSpec

BLOCK = 32
LAYERS, HEADS, HEAD = 3, 2, 32
OWNER = prefixd.Owner("default", b"")


def spec(**changes):
    given = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": HEAD, "dtype": torch.float32}
    return FullAttentionSpec(**{**given, **changes})


def cache_config(n_blocks=64, one=None, order="LBHNC", groups=1):
    group = SimpleNamespace(layer_names=[f"layers.{i}" for i in range(LAYERS)], kv_cache_spec=one or spec())
    return SimpleNamespace(
        num_blocks=n_blocks, kv_cache_groups=[group] * groups, kv_cache_layout=order, hash_block_size=BLOCK
    )


def vllm_config(**changes):
    """A configuration that is supported; `changes` by dotted names with __ for the dot."""
    made = SimpleNamespace(
        model_config=SimpleNamespace(
            model="m", revision=None, dtype=torch.float32, quantization=None, is_encoder_decoder=False,
            hf_config=SimpleNamespace(to_dict=lambda: {"rope_theta": 10000.0}),
        ),
        load_config=SimpleNamespace(load_format="dummy"),
        cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256"),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        kv_transfer_config=SimpleNamespace(
            kv_load_failure_policy="recompute", is_kv_producer=True, is_kv_consumer=True,
            kv_connector_extra_config={"tenant": "default", "salt": "", "revision": "r1"},
        ),
        speculative_config=None, lora_config=None,
    )  # fmt: skip
    for name, value in changes.items():
        *path, last = name.split("__")
        owner = made
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)
    return made


def options(revision="r1", probe=b"p" * 32):
    return prefixd.Identity(
        model="m", revision=revision, dtype="float32", layout="LBHNC test", engine="vllm test", adapter="",
        tp_size=1, tp_rank=0, layers=LAYERS, kv_heads=HEADS, head_dim=HEAD, block_tokens=BLOCK,
    ).digests(32, probe)  # fmt: skip


def digests(name, n):
    return [hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(n)]


class Request:
    """A request of `n_tokens`; `name` decides its digests."""

    made = 0

    def __init__(self, name, n_tokens, **more):
        Request.made += 1
        self.request_id = f"{name}-{Request.made}"
        self.num_tokens = self.num_prompt_tokens = n_tokens
        self.num_computed_tokens = 0
        self.block_hashes = digests(name, n_tokens // BLOCK)
        self.skip_reading_prefix_cache = False
        self.status = SimpleNamespace(name="RUNNING")
        for key, value in more.items():
            setattr(self, key, value)


class Log:
    """Stands for a logger; `lines` is what was said."""

    def __init__(self):
        self.lines = []

    def log(self, level, text, *args, exc_info=False):
        self.lines.append(text % args)


def link(daemon, mapped, log, copies=True):
    return Link(client_maker(daemon.socket, "test", 0.5, copies), mapped, Say(log))


def scheduler(daemon, log, settings=None, namespaces=None, **roles):
    given = {"tenant": "default", "salt": "", "socket": daemon.socket, "lookup_deadline_ms": 500}
    made = Settings.of({**given, **(settings or {})})
    roles = {"loads": True, "saves": True, **roles}
    return SchedulerSide(
        made,
        link(daemon, "no", log),
        OWNER,
        namespaces or (lambda: [options()]),
        BLOCK,
        say=Say(log),
        **roles,
    )


def tensors(n_blocks=64, order="LBHNC", seed=None):
    """K/V tensors by layer, as the engine registers them: always seen as [block, head, token, content]."""
    sizes = {"L": LAYERS, "B": n_blocks, "H": HEADS, "N": BLOCK, "C": 2 * HEAD}
    generator = torch.Generator().manual_seed(seed or 0)
    shape = [sizes[letter] for letter in order]
    whole = torch.zeros(shape) if seed is None else torch.rand(shape, generator=generator)
    whole = whole.permute([order.index(letter) for letter in "LBHNC"])
    return {f"layers.{i}": whole[i] for i in range(LAYERS)}


def worker(daemon, log, kv, settings=None, writable=True, config=None):
    made = Settings.of({"tenant": "default", "salt": "", "socket": daemon.socket, **(settings or {})})
    pages = Pages.of(kv, config or cache_config(len(kv["layers.0"])))
    side = WorkerSide(
        made, link(daemon, "rw" if writable else "ro", log), OWNER, pages, 0, writable=writable, say=Say(log)
    )
    return side
