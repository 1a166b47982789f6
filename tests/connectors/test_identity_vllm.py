"""vLLM's identity code on plain objects: the connector's and the secondary tier's; no engine is needed."""

import sys
import unittest
from pathlib import Path
from types import SimpleNamespace as Made

sys.path.insert(0, str(Path(__file__).resolve().parent))

from conformance import IdentityConformance, StoreWorker  # noqa: E402

import prefixd  # noqa: E402
from prefixd_vllm.identity import identity_of  # noqa: E402
from prefixd_vllm.settings import Settings  # noqa: E402
from prefixd_vllm.tier_identity import tier_identity  # noqa: E402
from prefixd_vllm.tier_options import TierOptions  # noqa: E402

LAYERS = [f"layers.{i}" for i in range(2)]


def owner_of(settings):
    """As the connectors do it: a text of the user's configuration, as bytes."""
    salt = settings.salt
    return prefixd.Owner(settings.tenant, salt if isinstance(salt, bytes) else salt.encode())


def said(**options):
    """A user's dictionary: what was not said is not in it."""
    return {key: value for key, value in options.items() if value is not None}


class ConnectorIdentity(IdentityConformance, unittest.TestCase):
    FIELDS = {
        **IdentityConformance.FIELDS,
        "layout": "LBHNC",
        "adapter": "lora 0",
        "salt": "",
        "version": "0.32.0",
        "machine": "cpu AVX512",
        "config": {"rope_theta": 1e4},
        "quantization": None,
        "layers": LAYERS,
        "block": 16,
    }
    CHANGES = {
        **IdentityConformance.CHANGES,
        "layout": ({"layout": "LBNHC"},),
        "salt": ({"salt": "secret"}, {"salt": "another"}),
        "engine": ({"version": "0.33.0"}, {"machine": "cpu AVX2"}),
        "effective configuration": ({"config": {"rope_theta": 1e6}}, {"quantization": "fp8"}),
        "geometry": ({"layers": [*LAYERS, "layers.2"]}, {"block": 32}),
    }
    REFUSED = ("model", "revision", "dtype", "layout", "adapter", "tenant", "salt", "tp_size", "tp_rank")
    CANNOT = {
        ("layout", "empty"): "vLLM settles the order before any connector is made, to one of its own words",
        ("layout", "auto"): "likewise",
    }

    def make(
        self,
        *,
        model,
        revision,
        dtype,
        layout,
        adapter,
        salt,
        tenant,
        tp_size,
        tp_rank,
        version,
        machine,
        config,
        quantization,
        layers,
        block,
    ):
        settings = Settings.of(said(tenant=tenant, salt=salt, revision=revision, adapter=adapter))
        spec = Made(dtype=dtype and f"torch.{dtype}", num_kv_heads=2, head_size=16, block_size=block)
        vllm_config = Made(
            model_config=Made(
                model=model,
                revision="main",
                hf_config=Made(to_dict=lambda: config),
                quantization=quantization,
                dtype="torch.bfloat16",
            ),
            load_config=Made(load_format="dummy"),
            parallel_config=Made(tensor_parallel_size=tp_size),
            lora_config=object(),
        )
        kv_cache_config = Made(
            kv_cache_groups=[Made(layer_names=layers, kv_cache_spec=spec)], kv_cache_layout=layout
        )
        identity = identity_of(
            vllm_config,
            kv_cache_config,
            tp_rank=tp_rank,
            version=version,
            machine=machine,
            model=settings.model,
            revision=settings.revision,
            adapter=settings.adapter,
        )
        return StoreWorker(self.daemon.socket, identity.digests(32, b"probe"), owner_of(settings))


class TierIdentity(IdentityConformance, unittest.TestCase):
    FIELDS = {
        **IdentityConformance.FIELDS,
        "layout": "NHD",
        "salt": "",
        "engine": "vllm 0.32.0 cpu",
        "layers": LAYERS,
        "world": 1,
    }
    CHANGES = {
        **IdentityConformance.CHANGES,
        "layout": ({"layout": "HND"}, {"layers": ["layers.0", "layers.5"]}),
        "salt": ({"salt": "secret"}, {"salt": "another"}),
        "engine": ({"engine": "vllm 0.33.0 cpu"},),
        # A row holds the bytes of all ranks side by side: there is no rank to tell apart.
        "tp_shape": ({"tp_size": 2, "world": 2}, {"tp_size": 4, "world": 4}, {"world": 2}),
    }
    REFUSED = ("model", "revision", "dtype", "tenant", "salt")
    NAMES = {"model": "name"}  # of the offloading configuration's model

    def make(
        self,
        *,
        model,
        revision,
        dtype,
        layout,
        adapter,
        salt,
        tenant,
        tp_size,
        tp_rank,
        engine,
        layers,
        world,
    ):
        options = TierOptions.parse(said(revision=revision, tenant=tenant, salt=salt, adapter=adapter))
        config = Made(
            model=Made(name=model, dtype=dtype and f"torch.{dtype}"),
            parallel=Made(world_size=world, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1),
            groups=[Made(group_id=0, tokens_per_block=16, layer_names=layers)],
            kv_cache_layout=layout,
            worker_kv_bytes_per_block=4096,
            cache=Made(tokens_per_hash=16, blocks_per_chunk=1),
        )
        identity = tier_identity(
            config,
            row_bytes=4096,
            engine=engine,
            revision=options.revision,
            model=options.model,
            adapter=options.adapter,
            scales=options.scales,
        )
        return StoreWorker(self.daemon.socket, identity.digests(32, b"probe"), owner_of(options))

    def test_missing_attributes_are_refused_too(self):
        """The engine's own objects, when they lack what this version of the code reads."""
        for path in ("parallel", "cache", "groups", "worker_kv_bytes_per_block"):
            config = Made(
                model=Made(name="m", dtype="torch.float16"),
                parallel=Made(world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1),
                groups=[Made(group_id=0, tokens_per_block=16, layer_names=LAYERS)],
                worker_kv_bytes_per_block=4096,
                cache=Made(tokens_per_hash=16, blocks_per_chunk=1),
            )
            whole = tier_identity(config, row_bytes=4096, engine="e 1", revision="r")
            self.assertEqual(whole.block_bytes, 4096)
            delattr(config, path)
            with self.subTest(path), self.assertRaises(prefixd.PrefixdError):
                tier_identity(config, row_bytes=4096, engine="e 1", revision="r")


if __name__ == "__main__":
    unittest.main()
