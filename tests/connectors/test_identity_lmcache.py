"""LMCache's identity code on plain objects: the connector inside the engine and the server's adapter."""

import sys
import unittest
from pathlib import Path
from types import SimpleNamespace as Made

sys.path.insert(0, str(Path(__file__).resolve().parent))

from conformance import IdentityConformance, StoreWorker  # noqa: E402

import prefixd  # noqa: E402
from prefixd_lmcache.identity import ServerSettings, Settings, identity_of, object_identity  # noqa: E402


class ConnectorIdentity(IdentityConformance, unittest.TestCase):
    FIELDS = {
        **IdentityConformance.FIELDS,
        "layout": None,
        "salt": "",
        "version": "0.5.6",
        "scales": "",
        "windows": None,
        "heads": 2,
        "dim": 16,
        "tokens": 16,
        "mla": False,
        "stages": None,
    }
    CHANGES = {
        **IdentityConformance.CHANGES,
        "layout": ({"mla": True}, {"heads": 1, "dim": 32}),
        "salt": ({"salt": "secret"}, {"salt": "another"}),
        "engine": ({"version": "0.5.7"},),
        "windows": ({"windows": "0-1:64"},),
        "scales": ({"dtype": "uint8", "scales": "s1"}, {"dtype": "uint8", "scales": "s2"}),
        "chunk": ({"tokens": 32},),
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
        windows,
        heads,
        dim,
        tokens,
        mla,
        stages,
    ):
        prefix = "remote_storage_plugin.prefixd."
        options = {
            "tenant": tenant,
            "salt": salt,
            "revision": revision,
            "adapter": adapter,
            "scales": scales,
            "windows": windows,
            "pipeline_stages": stages,
            "module_path": "prefixd_lmcache.remote",
        }
        extra = {prefix + key: value for key, value in options.items() if value is not None}
        settings = Settings.from_extra_config(extra, "prefixd")
        metadata = Made(
            model_name=model,
            world_size=tp_size,
            worker_id=tp_rank,
            kv_dtype=f"torch.{dtype}" if dtype else dtype,
            kv_shape=(2, 1 if mla else 2, tokens, heads, dim),
            use_mla=mla,
            chunk_size=tokens,
        )
        config = Made(extra_config=extra, chunk_size=tokens)
        identity = identity_of(metadata, config, settings, lmcache_version=version)
        owner = prefixd.Owner(settings.tenant, settings.salt)
        return StoreWorker(self.daemon.socket, identity.digests(32, b"probe"), owner)

    def test_ranks_of_mla_hold_the_same(self):
        """The one shape that is shared, because LMCache stores rank 0's chunks for all."""
        prompt = self.prompt("mla")
        shapes = [{"mla": True, "tp_size": 2, "tp_rank": rank, "stages": 1} for rank in (0, 1)]
        stored = self._put(shapes[0], prompt)
        self.assertEqual(self._hit(shapes[1], prompt), stored)
        self.assertEqual(self._hit({**shapes[1], "revision": "r2"}, prompt), 0)
        with self.assertRaises(prefixd.PrefixdError) as caught:
            self._worker({**shapes[1], "stages": None})
        self.assertEqual(caught.exception.field, "pipeline_stages")


class ServerIdentity(IdentityConformance, unittest.TestCase):
    FIELDS = {
        **IdentityConformance.FIELDS,
        "layout": [(2, 2, 16, 32)],
        "salt": "",
        "version": "0.5.6",
        "group": 0,
        "tokens": 16,
    }
    CHANGES = {
        **IdentityConformance.CHANGES,
        "layout": ({"layout": [(2, 4, 16, 16)]}, {"layout": [(2, 1, 16, 32), (2, 1, 16, 32)]}),
        "salt": ({"salt": "secret"}, {"salt": "another"}),
        "engine": ({"version": "0.5.7"},),
        "object group": ({"group": 1},),
        "chunk": ({"tokens": 32},),
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
        group,
        tokens,
    ):
        told = {"revision": revision, "adapter": adapter, "scales": ""}
        options = {
            "tenant": tenant,
            "salt": salt,
            "hash_algorithm": "sha256",
            "chunk_size": tokens,
            "models": {"m": told, "n": told},
        }
        for given in (told, options):
            for key in [key for key, value in given.items() if value is None]:
                del given[key]
        settings = ServerSettings.from_options(options)
        identity = object_identity(
            model,
            settings.model(model) if model in ("m", "n") else settings.model("m"),
            layout,
            [f"torch.{dtype}" if dtype else dtype] * len(layout),
            world_size=tp_size,
            rank=tp_rank,
            group=group,
            chunk_tokens=settings.chunk_size,
            lmcache_version=version,
        )
        owner = prefixd.Owner(settings.tenant, settings.salt)
        return StoreWorker(self.daemon.socket, identity.digests(32, b"probe"), owner)

    def test_a_model_of_which_nothing_was_said_is_refused(self):
        settings = ServerSettings.from_options(
            {
                "tenant": "default",
                "salt": "",
                "hash_algorithm": "sha256",
                "chunk_size": 16,
                "models": {"m": {"revision": "r", "adapter": ""}},
            }
        )
        self.assertEqual(settings.model("m").revision, "r")
        with self.assertRaises(prefixd.PrefixdError) as caught:
            settings.model("another")
        self.assertEqual(caught.exception.field, "models")


if __name__ == "__main__":
    unittest.main()
