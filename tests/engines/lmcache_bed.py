"""LMCache's real engine on a CPU, with prefixd loaded as its configuration file says.

Everything under test is LMCache's own: configuration from a YAML file, LMCacheEngine, StorageManager,
LocalCPUBackend with its allocator, RemoteBackend and the plug-in loader.  Two things stand in for what a
CPU does not have: :class:`Model` for the inference engine's paged K/V (LMCache ships a mock of it that
moves no bytes; this one writes bytes which follow from the tokens, and checks those that come back), and
two functions for broadcasts between ranks, which a single rank never calls.
"""
import asyncio
import hashlib
import os

import torch
import yaml
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata

CHUNK = 16
SHAPE = {"layers": 2, "heads": 2, "dim": 16}
REMOTE = "RemoteBackend-prefixd"


def prompt(seed, tokens):
    """Token ids that follow from a name; prompts of one name share their beginning."""
    return [int.from_bytes(hashlib.blake2b(f"{seed}/{n}".encode(), digest_size=2).digest(), "little") for n in range(tokens)]


def kv(tokens, variant, size):
    """The bytes of a chunk's K/V: they follow from all tokens up to its end and from whose K/V it is."""
    name = hashlib.blake2b(repr((tokens, variant)).encode(), digest_size=32).digest()
    return hashlib.shake_256(name).digest(size)


class Model(MockGPUConnector):
    """Stands in for the GPU: K/V is made from the tokens, and what is loaded is compared with that."""

    def __init__(self, kv_shape, variant):
        super().__init__(kv_shape)
        self.variant, self.wrong, self.loaded = variant, 0, 0

    def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
        for obj, end in zip(memory_objs, ends):
            data = kv(kwargs["prompt"][:end], self.variant, obj.get_size())
            obj.raw_data[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def batched_to_gpu(self, memory_objs, starts, ends, **kwargs):
        for obj, end in zip(memory_objs, ends):
            want = kv(kwargs["prompt"][:end], self.variant, obj.get_size())
            self.loaded += 1
            self.wrong += bytes(obj.byte_array) != want


def write_config(path, socket, options=None, **config):
    """A configuration file of LMCache that loads prefixd; `options`: settings of prefixd, None takes one out."""
    given = {"socket": socket, "tenant": "default", "salt": "", "revision": "r1", "adapter": ""}
    given.update(options or {})
    extra = {
        "remote_storage_plugin.prefixd.module_path": "prefixd_lmcache.remote",
        "remote_storage_plugin.prefixd.class_name": "PrefixdConnectorAdapter",
    }
    extra.update({f"remote_storage_plugin.prefixd.{key}": value for key, value in given.items() if value is not None})
    extra.update(config.pop("extra_config", {}))
    whole = {
        "chunk_size": CHUNK,
        "local_cpu": False,
        "max_local_cpu_size": 0.05,
        "remote_storage_plugins": ["prefixd"],
        "extra_config": extra,
        **config,
    }
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(whole, file)


def metadata(**changes):
    given = {"model": "tiny", "world_size": 1, "worker_id": 0, "dtype": "bfloat16", "chunk": CHUNK, **SHAPE, **changes}
    dtype = getattr(torch, given["dtype"])
    shape = (given["layers"], 2, given["chunk"], given["heads"], given["dim"])
    size, rank = given["world_size"], given["worker_id"]
    return LMCacheMetadata(given["model"], size, size, rank, rank, dtype, shape, chunk_size=given["chunk"])


class Bed:
    """One LMCache engine, made from a configuration file."""

    def __init__(self, path, name="engine", variant="", **changes):
        self.name = name
        self.config = LMCacheEngineConfig.from_file(path)
        self.config.validate()
        self.metadata = metadata(chunk=self.config.chunk_size, **changes)
        self.model = Model(self.metadata.kv_shape, variant)
        self.engine = LMCacheEngineBuilder.get_or_create(
            name, self.config, self.metadata, self.model, lambda tensor, rank: None, lambda obj, rank: obj
        )
        self.engine.post_init()
        self.manager = self.engine.storage_manager
        self.remote = self.manager.storage_backends.get(REMOTE)

    @property
    def connector(self):
        """PrefixdConnector, or None if LMCache could not make it."""
        return self.remote.connection.getWrappedConnector() if self.remote.connection else None

    def settle(self, seconds=30.0):
        """Waits until what was put is stored or given up."""

        async def nothing():
            pass

        asyncio.run_coroutine_threadsafe(nothing(), self.manager.loop).result(seconds)
        if self.connector:
            for lane in self.connector._lanes.values():
                lane.idle(seconds)

    def store(self, tokens, **kwargs):
        self.engine.store(tokens, prompt=tokens, **kwargs)
        self.settle()

    def lookup(self, tokens, **kwargs):
        return self.engine.lookup(tokens, **kwargs)

    def retrieve(self, tokens, **kwargs):
        """Tokens that came back; their bytes have been compared."""
        mask = torch.ones(len(tokens), dtype=torch.bool)
        return int(self.engine.retrieve(tokens, mask, prompt=tokens, **kwargs).sum())

    def held(self):
        """Bytes of LMCache's memory that somebody holds a reference to; 0 at rest, as its own cache is off."""
        allocator = self.manager.local_cpu_backend.memory_allocator
        return allocator.pin_allocator.address_manager.total_allocated_size

    def close(self):
        LMCacheEngineBuilder.destroy(self.name)


def hash_seed():
    return os.environ.get("PYTHONHASHSEED", "")
