"""LMCache's real engine on a CPU, with prefixd loaded as its configuration file says.

Everything under test is LMCache's own: configuration from a YAML file, LMCacheEngine, StorageManager,
LocalCPUBackend with its allocator, RemoteBackend and the plug-in loader.  Two things stand in for what a
CPU does not have: :class:`Model` for the inference engine's paged K/V (LMCache ships a mock of it that
moves no bytes; this one writes bytes which follow from the tokens, and checks those that come back), and
two functions for broadcasts between ranks, which a single rank never calls.
"""

import asyncio
import gc
import hashlib
import json
import logging
import os
import time

os.environ["LMCACHE_TRACK_USAGE"] = "false"  # tests tell nobody that they run

import torch
import yaml
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import parse_args
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.multiprocess.token_hasher import TokenHasher

CHUNK = 16
SHAPE = {"layers": 2, "heads": 2, "dim": 16}
REMOTE = "RemoteBackend-prefixd"


def prompt(seed, tokens):
    """Token ids that follow from a name; prompts of one name share their beginning."""
    return [
        int.from_bytes(hashlib.blake2b(f"{seed}/{n}".encode(), digest_size=2).digest(), "little")
        for n in range(tokens)
    ]


def kv(tokens, size):
    """The bytes of a chunk's K/V: they follow from all tokens up to its end."""
    name = hashlib.blake2b(repr(tokens).encode(), digest_size=32).digest()
    return hashlib.shake_256(name).digest(size)


class Complaints(logging.Handler):
    """What LMCache's memory says of references: it mends double frees and leaks by itself, with a warning."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []
        logging.getLogger("lmcache.v1.memory_management").addHandler(self)

    def emit(self, record):
        if "count" in record.getMessage():
            self.said.append(record.getMessage())

    def take(self):
        gc.collect()
        said, self.said = self.said, []
        return said


complaints = Complaints()


class Model(MockGPUConnector):
    """Stands in for the GPU: K/V is made from the tokens, and what is loaded is compared with that."""

    def __init__(self, kv_shape):
        super().__init__(kv_shape)
        self.wrong, self.loaded = 0, 0

    def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
        for obj, end in zip(memory_objs, ends):
            data = kv(kwargs["prompt"][:end], obj.get_size())
            obj.raw_data[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def batched_to_gpu(self, memory_objs, starts, ends, **kwargs):
        for obj, end in zip(memory_objs, ends):
            want = kv(kwargs["prompt"][:end], obj.get_size())
            self.loaded += 1
            self.wrong += bytes(obj.byte_array) != want


def write_config(path, socket, options=None, **config):
    """A file of LMCache that loads prefixd; `options`: settings of prefixd, None takes one out."""
    given = {"socket": socket, "tenant": "default", "salt": "", "revision": "r1", "adapter": ""}
    given.update(options or {})
    extra = {
        "remote_storage_plugin.prefixd.module_path": "prefixd_lmcache.remote",
        "remote_storage_plugin.prefixd.class_name": "PrefixdConnectorAdapter",
    }
    extra.update(
        {f"remote_storage_plugin.prefixd.{key}": value for key, value in given.items() if value is not None}
    )
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
    given = {
        "model": "tiny",
        "world_size": 1,
        "worker_id": 0,
        "dtype": "bfloat16",
        "chunk": CHUNK,
        **SHAPE,
        **changes,
    }
    dtype = getattr(torch, given["dtype"])
    shape = (given["layers"], 2, given["chunk"], given["heads"], given["dim"])
    size, rank = given["world_size"], given["worker_id"]
    return LMCacheMetadata(given["model"], size, size, rank, rank, dtype, shape, chunk_size=given["chunk"])


class Bed:
    """One LMCache engine, made from a configuration file."""

    def __init__(self, path, name="engine", **changes):
        self.name = name
        self.config = LMCacheEngineConfig.from_file(path)
        self.config.validate()
        self.metadata = metadata(chunk=self.config.chunk_size, **changes)
        self.model = Model(self.metadata.kv_shape)
        self.engine = LMCacheEngineBuilder.get_or_create(
            name, self.config, self.metadata, self.model, lambda tensor, rank: None, lambda obj, rank: obj
        )
        self.engine.post_init()
        self.manager = self.engine.storage_manager
        self.remote = self.manager.storage_backends.get(REMOTE)

    @property
    def connector(self):
        """PrefixdConnector, or None if LMCache could not make it."""
        made = self.remote.connection if self.remote else None
        return made.getWrappedConnector() if made else None

    def quiet(self, seconds=30.0):
        """Waits until no call of the connector is under way in LMCache's event loop."""

        async def others_are_over():
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.002)

        asyncio.run_coroutine_threadsafe(others_are_over(), self.manager.loop).result(seconds)

    def settle(self, seconds=30.0):
        """Waits until what was put is stored or given up, and both sides have let go of it."""
        self.quiet(seconds)
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
        """Bytes of LMCache's memory that somebody refers to; 0 at rest, as its own cache is off."""
        allocator = self.manager.local_cpu_backend.memory_allocator
        return allocator.pin_allocator.address_manager.total_allocated_size

    def close(self):
        LMCacheEngineBuilder.destroy(self.name)
        self.manager.thread.join(10)


class ServerBed:
    """The storage of LMCache's server, L1 memory and controllers, made from a command line."""

    def __init__(self, params):
        loading = {"type": "plugin", "module_path": "prefixd_lmcache.l2", "class_name": "PrefixdL2Adapter"}
        line = ["--l1-size-gb", "0.05", "--no-l1-use-lazy", "--eviction-policy", "LRU"]
        self.config = parse_args([*line, "--l2-adapter", json.dumps({**loading, "adapter_params": params})])
        # LMCache names its shared memory after the process, where tests have several managers.
        for l1 in self.config.l1_manager_configs:
            l1.memory_config.shm_name = ""
        self.manager = StorageManager(self.config)
        self.adapter = self.manager.l2_adapters()[0][1]

    @staticmethod
    def keys(tokens, model="tiny", world_size=1, rank=0, group=0, salt=""):
        """Keys of the full chunks of a prompt, by the server's own hash."""
        hasher = TokenHasher(CHUNK, "blake3")
        kv_rank = ObjectKey.ComputeKVRank(world_size, rank, world_size, rank)
        return [
            ObjectKey(digest, model, kv_rank, group, salt) for digest in hasher.compute_chunk_hashes(tokens)
        ]

    @staticmethod
    def layout(dtype="bfloat16", layers=2, width=32):
        return MemoryLayoutDesc([torch.Size([2, layers, CHUNK, width])], [getattr(torch, dtype)])

    def store(self, tokens, seconds=30.0, dtype="bfloat16", **of):
        """Writes a prompt's chunks to L1, and waits until the server has offered them to prefixd."""
        keys = self.keys(tokens, **of)
        objects = self.manager.reserve_write(keys, self.layout(dtype))
        for n, key in enumerate(keys):
            if key in objects:
                data = kv(tokens[: (n + 1) * CHUNK], objects[key].get_size())
                objects[key].raw_data[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        before = self.offered()
        self.manager.finish_write(list(objects))
        until = time.monotonic() + seconds
        while self.offered() < before + len(objects) and time.monotonic() < until:
            time.sleep(0.01)
        return len(objects)

    def offered(self):
        counts = self.adapter.report_status()["counts"]
        return sum(counts.get(name, 0) for name in ("stored", "not_stored", "dropped_pending"))

    def forget(self):
        """L1 lets go of everything, so that what comes back comes from prefixd."""
        self.manager.clear(force=True)

    def retrieve(self, tokens, seconds=30.0, dtype="bfloat16", **of):
        """(chunks that came from prefixd, chunks whose bytes are wrong) of a prompt's leading chunks."""
        keys = self.keys(tokens, **of)
        group = GroupedObjectKeys(keys, of.get("group", 0), self.layout(dtype))
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([group]))
        if not self.manager.wait_prefetch_status(handle, seconds):
            raise TimeoutError("the prefetch did not end")
        result = self.manager.query_prefetch_status(handle)
        there, wrong = [key for n, key in enumerate(keys) if result.hit_cells[0].test(n)], 0
        if there:
            with self.manager.read_prefetched_results(there, result.l1_owners or None) as objects:
                for n, obj in enumerate(objects):
                    wrong += bytes(obj.byte_array) != kv(tokens[: (n + 1) * CHUNK], obj.get_size())
            self.manager.finish_read_prefetched(there, l1_owners=result.l1_owners or None)
        return result.l2_hit_count, wrong

    def close(self):
        self.manager.close()
