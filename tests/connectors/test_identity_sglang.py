"""SGLang's identity code on plain objects; no engine is needed."""

import sys
import unittest
from pathlib import Path
from types import SimpleNamespace as Made

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
from conformance import IdentityConformance, StoreWorker  # noqa: E402

import prefixd  # noqa: E402
from prefixd_sglang.identity import geometry_of, identity_of, settings_of  # noqa: E402


class MHATokenToKVPoolHost(Made):
    """Named as SGLang's, since the pool's class is a part of what pages are."""


class MLATokenToKVPoolHost(Made):
    pass


# bfloat16 and float8 are no types of numpy: what counts is the name and the size, as torch's types have.
STORED = {
    "float16": Made(itemsize=2, name="torch.float16"),
    "bfloat16": Made(itemsize=2, name="torch.bfloat16"),
    "fp8_e4m3": Made(itemsize=1, name="torch.uint8"),
    "fp8_e5m2": Made(itemsize=1, name="torch.uint8"),
}


class Type:
    def __init__(self, made):
        self.itemsize, self.name = made.itemsize, made.name

    def __str__(self):
        return self.name


def pool(dtype, layout, mla=False, layers=2, draft=0, first=0):
    common = {
        "layout": layout,
        "dtype": Type(STORED.get(dtype, STORED["float16"])),
        "layer_num": layers + draft,
        "target_layer_num": layers,
        "start_layer": first,
        "page_size": 16,
        "kv_buffer": np.zeros(1),
    }
    if mla:
        return MLATokenToKVPoolHost(**common, kv_cache_dim=64)
    return MHATokenToKVPoolHost(**common, head_num=2, head_dim=16, v_head_dim=16)


class HiCacheIdentity(IdentityConformance, unittest.TestCase):
    FIELDS = {
        **IdentityConformance.FIELDS,
        "layout": "page_first",
        "salt": "",
        "version": "0.5.23",
        "scales": None,
        "pp": (1, 0),
        "first": 0,
        "draft": None,
        "draft_layers": 0,
        "mla": False,
    }
    CHANGES = {
        **IdentityConformance.CHANGES,
        "layout": ({"layout": "page_first_direct"}, {"layout": "layer_first"}),
        "salt": ({"salt": "secret"}, {"salt": "another"}),
        "engine": ({"version": "0.5.24"},),
        "pipeline": ({"pp": (2, 0)}, {"pp": (2, 1), "first": 2}),
        "fp8": (
            {"dtype": "fp8_e4m3", "scales": "s1"},
            {"dtype": "fp8_e4m3", "scales": "s2"},
            {"dtype": "fp8_e5m2", "scales": "s1"},
        ),
        "draft": ({"draft": "d r1", "draft_layers": 1}, {"draft": "d r2", "draft_layers": 1}),
        "attention": ({"mla": True},),
    }
    REFUSED = ("model", "revision", "dtype", "adapter", "tenant", "salt")

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
        scales,
        pp,
        first,
        draft,
        draft_layers,
        mla,
    ):
        extra = {
            "backend_name": "prefixd",
            "tenant": tenant,
            "salt": salt,
            "revision": revision,
            "dtype": dtype,
            "adapter": adapter,
            "scales": scales,
            "draft": draft,
        }
        settings = settings_of({key: value for key, value in extra.items() if value is not None})
        config = Made(
            model_name=model,
            tp_size=tp_size,
            tp_rank=tp_rank,
            pp_size=pp[0],
            pp_rank=pp[1],
            attn_cp_size=1,
            is_mla_model=mla,
        )
        geometry = geometry_of(pool(dtype, layout, mla, draft=draft_layers, first=first))
        identity = identity_of(config, settings, geometry, version)
        owner = prefixd.Owner(settings.tenant, settings.salt)
        return StoreWorker(self.daemon.socket, identity.digests(32, b"probe"), owner)

    def test_ranks_of_mla_hold_the_same(self):
        """The one shape that is shared, because the bytes are: MLA's latent is not split."""
        prompt = self.prompt("mla")
        shapes = [{"mla": True, "tp_size": 2, "tp_rank": rank} for rank in (0, 1)]
        stored = self._put(shapes[0], prompt)
        self.assertEqual(self._hit(shapes[1], prompt), stored)
        self.assertEqual(self._hit({"mla": True, "revision": "r2"}, prompt), 0)

    def test_a_type_that_the_pool_does_not_hold_is_refused(self):
        for dtype in ("float32", "int8"):
            with self.subTest(dtype):
                self._refused("dtype", dtype)
        with self.assertRaises(prefixd.PrefixdError) as caught:
            self._worker({"dtype": "fp8_e4m3"})
        self.assertEqual(caught.exception.field, "scales")
        with self.assertRaises(prefixd.PrefixdError) as caught:
            self._worker({"draft_layers": 1})
        self.assertEqual(caught.exception.field, "draft")

    def test_pools_and_layouts_that_are_not_supported_are_refused(self):
        self.assertEqual(geometry_of(pool("float16", "page_head")).layout, "page_head")
        with self.assertRaises(ValueError):
            geometry_of(pool("float16", "page_head", mla=True))
        with self.assertRaises(ValueError):
            geometry_of(Made(**vars(pool("float16", "page_first"))))


if __name__ == "__main__":
    unittest.main()
