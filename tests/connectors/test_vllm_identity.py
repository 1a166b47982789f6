"""The identity of vLLM's K/V, from configurations made by hand: what separates, and what is refused."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "clients/python/src"), str(TREE / "clients/vllm/src"), str(TREE / "tests/lib")]
sys.path.insert(0, str(Path(__file__).resolve().parent))

import prefixd  # noqa: E402
from conformance import IdentityConformance, StoreWorker  # noqa: E402
from prefixd.identity import IdentityError  # noqa: E402
from prefixd_vllm.identity import identity_of, revision_of  # noqa: E402
from prefixd_vllm.settings import Settings  # noqa: E402

from daemon import Daemon  # noqa: E402

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def engine(**changes):
    """(vllm_config, kv_cache_config) as an engine has them; `changes` by dotted names with __ for the dot."""
    spec = SimpleNamespace(block_size=16, num_kv_heads=2, head_size=64, dtype="torch.bfloat16")
    group = SimpleNamespace(
        layer_names=[f"model.layers.{i}.self_attn.attn" for i in range(4)], kv_cache_spec=spec
    )
    made = SimpleNamespace(
        model_config=SimpleNamespace(
            model="org/model", revision=COMMIT, dtype="torch.bfloat16", quantization=None,
            hf_config=SimpleNamespace(to_dict=lambda: {"rope_theta": 10000.0, "_name_or_path": "here"}),
        ),
        load_config=SimpleNamespace(load_format="auto"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        lora_config=None,
        cache=SimpleNamespace(kv_cache_groups=[group], kv_cache_layout="LBHNC"),
        group=group,
        spec=spec,
    )  # fmt: skip
    for name, value in changes.items():
        *path, last = name.split("__")
        owner = made
        for part in path:
            owner = getattr(owner, part)
        if value is DELETED:
            delattr(owner, last)
        else:
            setattr(owner, last, value)
    return made, made.cache


DELETED = object()
# Positions that turn by one table or another, by the longest request that the engine takes.
LONG_ROPE = SimpleNamespace(
    to_dict=lambda: {"text_config": {"rope_scaling": {"rope_type": "longrope", "long_factor": [2.0]}}}
)
SAID = {"tp_rank": 0, "version": "0.32.0", "machine": "cpu AVX512 amx=0"}


def identity(said=None, **changes):
    return identity_of(*engine(**changes), **{**SAID, **(said or {})})


# What changes K/V or the order of its bytes: the engine's side, or what the user or the machine says.
DIFFERENT = {
    "model": {"model_config__model": "org/other"},
    "revision": {"model_config__revision": COMMIT[::-1]},
    "a revision that is said": {"said": {"revision": "mine"}},
    "rope scaling": {"model_config__hf_config": SimpleNamespace(to_dict=lambda: {"rope_theta": 5e5})},
    "tables by length": {"model_config__hf_config": LONG_ROPE, "model_config__max_model_len": 4096},
    "tables by length, longer": {"model_config__hf_config": LONG_ROPE, "model_config__max_model_len": 8192},
    "weights quantized on loading": {"model_config__quantization": "fp8"},
    "type it computes in": {"model_config__dtype": "torch.float16"},
    "type of K/V": {"spec__dtype": "torch.float16"},
    "order of the cache": {"cache__kv_cache_layout": "LBNHC"},
    "instruction set": {"said": {"machine": "cpu AVX2 amx=0"}},
    "version": {"said": {"version": "0.33.0"}},
    "adapter": {"lora_config": SimpleNamespace(), "said": {"adapter": "a1"}},
    "another adapter": {"lora_config": SimpleNamespace(), "said": {"adapter": "a2"}},
    "ranks": {"parallel_config__tensor_parallel_size": 2},
    "another rank": {"parallel_config__tensor_parallel_size": 2, "said": {"tp_rank": 1}},
    "layers": {"group__layer_names": ["one"]},
    "heads": {"spec__num_kv_heads": 4},
    "head size": {"spec__head_size": 32},
    "tokens of a block": {"spec__block_size": 32},
}
SAME = {
    "nothing": {},
    "where the configuration was read": {
        "model_config__hf_config": SimpleNamespace(
            to_dict=lambda: {"rope_theta": 10000.0, "_name_or_path": "there"}
        )
    },
    "how weights are read": {"load_config__load_format": "safetensors"},
    "the longest request": {"model_config__max_model_len": 8192},
}


class VllmIdentity(IdentityConformance, unittest.TestCase):
    """The cases that every connector has."""

    FIELDS = {**IdentityConformance.FIELDS, "dtype": "torch.float16", "layout": "LBHNC"}
    CHANGES = {
        **IdentityConformance.CHANGES,
        "dtype": ({"dtype": "torch.bfloat16"}, {"dtype": "torch.float32"}),
        "layout": ({"layout": "LBNHC"},),
        "engine": ({"version": "0.33.0"}, {"machine": "cpu AVX2 amx=0"}),
    }
    REFUSED = ("model", "revision", "dtype", "layout", "adapter", "tenant", "salt")

    def make(self, **fields):
        said = {name: fields[name] for name in ("tenant", "salt") if fields[name] is not None}
        if "salt" in said:
            said["salt"] = said["salt"].decode()
        settings = Settings.of(
            {**said, "revision": fields["revision"] or "", "adapter": fields["adapter"] or ""}
        )
        configs = engine(
            model_config__model=fields["model"], model_config__revision=None, spec__dtype=fields["dtype"],
            cache__kv_cache_layout=fields["layout"], parallel_config__tensor_parallel_size=fields["tp_size"],
            lora_config=None if fields["adapter"] == "" else SimpleNamespace(),
        )  # fmt: skip
        told = {**SAID, **{name: fields[name] for name in ("version", "machine") if name in fields}}
        told.update(tp_rank=fields["tp_rank"], revision=settings.revision, adapter=settings.adapter)
        owner = prefixd.Owner(settings.tenant, settings.salt.encode())
        return StoreWorker(self.daemon.socket, identity_of(*configs, **told).digests(32, b"p" * 32), owner)


class Separation(unittest.TestCase):
    def test_same_is_shared_and_different_is_not(self):
        """On one daemon: what one stored, the same finds, and no other does."""
        probe, keys, owner = b"p" * 32, [b"%032d" % i for i in range(3)], prefixd.Owner("default", b"s")
        with Daemon(pool_blocks=64) as daemon, prefixd.Client(daemon.socket, deadline=5.0) as client:
            with client.open(identity().digests(32, probe)).match(owner, digests=keys) as lease:
                lease.reserve(3)
                lease.commit(3)

            def found(options, who=owner):
                return client.open(options, map="no").probe(who, digests=keys).n_device

            for name, changes in SAME.items():
                with self.subTest(f"same: {name}"):
                    self.assertEqual(found(identity(**changes).digests(32, probe)), 3)
            for name, changes in DIFFERENT.items():
                with self.subTest(f"different: {name}"):
                    self.assertEqual(found(identity(**changes).digests(32, probe)), 0)
            self.assertEqual(found(identity().digests(32, b"q" * 32)), 0, "another hash seed")
            self.assertEqual(
                found(identity().digests(32, probe), prefixd.Owner("default", b"t")), 0, "another salt"
            )
            self.assertEqual(found(identity().digests(32, probe)), 3)

    def test_all_differ_from_each_other(self):
        made = [identity(**changes) for changes in DIFFERENT.values()]
        self.assertEqual(len(set(made)), len(DIFFERENT))

    def test_what_is_missing_is_refused_by_name(self):
        for field, changes in {
            "model": {"model_config__model": DELETED},
            "revision": {"model_config__revision": None},
            "dtype": {"spec__dtype": None},
            "layout": {"cache__kv_cache_layout": None},
            "tp_size": {"parallel_config__tensor_parallel_size": DELETED},
            "tp_rank": {"said": {"tp_rank": 1}},
            "kv_heads": {"spec__num_kv_heads": DELETED},
            "head_dim": {"spec__head_size": DELETED},
            "block_tokens": {"spec__block_size": DELETED},
            "layers": {"group__layer_names": DELETED},
            "engine": {"said": {"version": ""}},
            "adapter": {"lora_config": SimpleNamespace()},
        }.items():
            with self.subTest(field), self.assertRaises(IdentityError) as caught:
                identity(**changes)
            self.assertEqual(caught.exception.field, field)
        with self.assertRaises(IdentityError) as caught:
            identity(said={"machine": ""})
        self.assertEqual(caught.exception.field, "layout")
        with self.assertRaises(IdentityError) as caught:
            identity(spec__dtype="auto")
        self.assertEqual(caught.exception.field, "dtype")

    def test_no_engine_is_imported(self):
        ask = (
            "import sys, prefixd_vllm.identity, prefixd_vllm.settings; "
            "print(sorted({'vllm', 'torch'} & set(sys.modules)))"
        )
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        self.assertEqual(
            subprocess.check_output([sys.executable, "-c", ask], env=env, text=True).strip(), "[]"
        )


class Revisions(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        (self.folder / "config.json").write_text(json.dumps({"layers": 2}))
        (self.folder / "model.safetensors").write_bytes(b"weights" * 1000)

    def of(self, **more):
        return revision_of(str(self.folder), None, "auto", **more)

    def refused(self, *arguments, **more):
        with self.assertRaises(IdentityError) as caught:
            revision_of(*arguments, **more)
        self.assertEqual(caught.exception.field, "revision")

    def test_files_are_known_by_what_is_in_them(self):
        first = self.of()
        weights = self.folder / "model.safetensors"
        dates = weights.stat()
        (self.folder / "README.md").write_text("other words")
        os.utime(weights, (1, 1))
        self.assertEqual(self.of(), first)
        data = bytearray(weights.read_bytes())
        data[3500] ^= 1
        weights.write_bytes(data)
        os.utime(weights, ns=(dates.st_atime_ns, dates.st_mtime_ns))
        self.assertNotEqual(
            self.of(), first, "same names, sizes and dates, one bit of the weights is another"
        )

    def test_configuration_and_names_count(self):
        first = self.of()
        (self.folder / "config.json").write_text(json.dumps({"layers": 3}))
        second = self.of()
        (self.folder / "model.safetensors").rename(self.folder / "other.safetensors")
        self.assertEqual(len({first, second, self.of()}), 3)

    def test_what_is_said_wins_and_commits_are_taken(self):
        self.assertEqual(self.of(given="mine"), "mine")
        self.assertEqual(revision_of("org/model", COMMIT, "auto"), COMMIT)
        snapshot = self.folder / "models--org--model" / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        self.assertEqual(revision_of(str(snapshot), None, "auto"), COMMIT)

    def test_what_names_no_weights_is_refused(self):
        self.refused("org/model", "main", "auto")
        self.refused("org/model", None, "auto")
        self.refused(str(self.folder), None, "dummy")
        self.refused(str(self.folder), None, "auto", limit=100)
        (self.folder / "model.safetensors").unlink()
        self.refused(str(self.folder), None, "auto")

    def test_the_variant_is_the_same_in_every_process(self):
        """Objects in a configuration must not bring their addresses into it."""
        ask = (
            "from types import SimpleNamespace as S; from prefixd_vllm.identity import variant_of; "
            "config = S(to_dict=lambda: {'b': S(value='x'), 3: 4, 'c': object()}); "
            "print(variant_of(S(dtype='float16', quantization=None, hf_config=config)))"
        )
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        said = {subprocess.check_output([sys.executable, "-c", ask], env=env, text=True) for _ in range(3)}
        self.assertEqual(len(said), 1)
        self.assertEqual(len(said.pop().strip()), 16)


class Said(unittest.TestCase):
    def test_tenant_and_salt_have_no_default(self):
        for given, field in (
            ({"salt": ""}, "tenant"),
            ({"tenant": "", "salt": ""}, "tenant"),
            ({"tenant": "t"}, "salt"),
        ):
            with self.assertRaises(IdentityError) as caught:
                Settings.of(given)
            self.assertEqual(caught.exception.field, field)
        self.assertEqual(Settings.of({"tenant": "t", "salt": ""}).salt, "")


if __name__ == "__main__":
    unittest.main()
