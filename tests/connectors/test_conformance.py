"""The conformance kit by itself: a sound connector passes every case, and each fault is found.

The connector here is prefixd's own block store with a plain Identity.  Faulty ones forget a field, guess
one, or never find anything.
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from conformance import IdentityConformance, StoreWorker  # noqa: E402

import prefixd  # noqa: E402

REST = {"engine": "test 1", "layers": 2, "kv_heads": 2, "head_dim": 16, "block_tokens": 16}


def worker(daemon, fields):
    fields = dict(fields)
    owner = prefixd.Owner(fields.pop("tenant"), fields.pop("salt"))
    identity = prefixd.Identity(**{**REST, **fields})
    return StoreWorker(daemon.socket, identity.digests(32, b"probe"), owner)


class PlainIdentity(IdentityConformance, unittest.TestCase):
    REFUSED = ("model", "revision", "dtype", "layout", "adapter", "tp_size", "tp_rank", "tenant", "salt")
    CHANGES = {
        **IdentityConformance.CHANGES,
        "engine": ({"engine": "test 2"},),
        "windows": ({"windows": "1024"},),
        "scales": ({"scales": "s"},),
        "block": ({"block_tokens": 32},),
    }

    def make(self, **fields):
        return worker(self.daemon, fields)


class Forgetful(IdentityConformance):
    """A connector that forgets or guesses the field named by `fault`."""

    fault = ""

    def make(self, **fields):
        fault = self.fault
        if fault == "tp_shape":
            fields.update(tp_size=1, tp_rank=0)
        elif fault == "tp_rank":
            fields.update(tp_rank=0)
        elif fault == "everything":
            self.number = getattr(self, "number", 0) + 1
            fields.update(revision=str(self.number))
        elif fault == "missing":
            fields["revision"] = fields["revision"] or "main"
        elif fault == "misnamed" and not fields["revision"]:
            fields["model"] = None
        elif fault in fields:
            fields[fault] = self.FIELDS[fault]
        return worker(self.daemon, fields)


class Faults(unittest.TestCase):
    """Each fault fails just the cases that are about it."""

    def failed(self, fault):
        case = type(f"Faulty_{fault}", (Forgetful, unittest.TestCase), {"fault": fault})
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        self.assertEqual(result.errors, [])
        self.assertGreaterEqual(result.testsRun, 11)
        return {test.id().split(".")[-1].split(" ")[0] for test, _ in result.failures}

    def test_each_forgotten_field(self):
        for fault in ("model", "revision", "dtype", "layout", "adapter", "salt", "tenant", "tp_shape"):
            with self.subTest(fault):
                failed = self.failed(fault)
                self.assertIn(f"test_{fault}", failed)
                rest = failed - {f"test_{fault}", "test_missing_fields_are_refused_by_name"}
                self.assertEqual(rest, set())

    def test_a_forgotten_rank(self):
        self.assertEqual(self.failed("tp_rank"), {"test_tp_shape"})

    def test_a_guessed_field(self):
        self.assertEqual(self.failed("missing"), {"test_missing_fields_are_refused_by_name"})

    def test_a_field_that_is_refused_by_another_name(self):
        self.assertEqual(self.failed("misnamed"), {"test_missing_fields_are_refused_by_name"})

    def test_no_reuse_at_all(self):
        failed = self.failed("everything")
        self.assertIn("test_same_identity_reuses", failed)
        self.assertIn("test_model", failed)

    def test_no_fault(self):
        self.assertEqual(self.failed("none"), set())


if __name__ == "__main__":
    unittest.main()
