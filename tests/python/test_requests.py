"""What goes over the wire, as a fake daemon sees it: prompts that are cut, flags, retries, and what follows failures."""

import unittest

import kit
import numpy as np
import prefixd
from kit import BLOCK, OWNER, Fake
from prefixd import PrefixdError, Status, wire

MATCHED = {
    "lease": 7, "root": b"r" * 16, "n_device": 0, "n_host": 0, "n_redis": 0, "n_pending": 0, "tail_tokens": 0,
    "tail_slot": 0, "advice": 0, "reason": 1, "more": 0, "load_us": 0, "miss_token": 0, "reuse": 1, "runs": [],
}  # fmt: skip
RELEASED = {f.name: 0 for f in wire.MESSAGES["release_rep"].fields}


class Seen(unittest.TestCase):
    def fake(self, replies, hello=(), opened=()):
        """A daemon whose replies[op] are taken one after the other, the last one for good; dicts or (status, text)."""
        left = {op: list(answers) for op, answers in replies.items()}

        def answer(fake, s, h, body):
            name = wire.OP_NAMES[h.op]
            if name == "HELLO":
                s.sendall(fake.hello(h, **dict(hello)))
            elif name == "OPEN":
                fake.pass_fds(s, *fake.opened(h, body, **dict(opened)))
            elif name == "RELEASE":
                s.sendall(fake.reply(h, RELEASED))
            else:
                given = left[name].pop(0) if len(left[name]) > 1 else left[name][0]
                if isinstance(given, tuple):
                    error = {"field": "", "text": given[1], "retry_after_us": 0}
                    s.sendall(fake.reply(h, error, status=given[0]))
                else:
                    s.sendall(fake.reply(h, given))

        fake = Fake(answer)
        self.addCleanup(fake.__exit__)
        return fake.__enter__()

    def open(self, fake, options=None, **more):
        client = prefixd.Client(fake.path, deadline=5, **more)
        self.addCleanup(client.close)
        return client.open(options or kit.options())

    def bodies(self, fake, *names):
        return [(name, body) for name, body in fake.seen if name in names]


class Cut(Seen):
    def test_a_long_prompt_is_one_match_and_extends(self):
        replies = {"MATCH": [MATCHED], "EXTEND": [MATCHED, {**MATCHED, "n_host": 3}]}
        fake = self.fake(replies, hello={"max_keys": 2})
        ns = self.open(fake)
        ids = np.arange(5 * BLOCK + 3)
        lease = ns.match(OWNER, tokens=ids, promote=True, lead=True, load_deadline=2.5)
        self.assertTrue(lease.result.loading)
        lease.release()
        seen = self.bodies(fake, "MATCH", "EXTEND")
        self.assertEqual([name for name, _ in seen], ["MATCH", "EXTEND", "EXTEND"])
        bodies = [body for _, body in seen]
        keys = [np.frombuffer(body["keys"], "<u4") for body in bodies]
        np.testing.assert_array_equal(np.concatenate(keys), ids[: 5 * BLOCK])
        self.assertEqual([k.size // BLOCK for k in keys], [2, 2, 1])
        self.assertEqual([len(body["tail"]) for body in bodies], [0, 0, 12])
        self.assertEqual([body["n_tokens"] for body in bodies], [5 * BLOCK + 3] * 3)
        self.assertEqual([body["flags"] for body in bodies], [8, 8, 9], "the last part asks for the load")
        self.assertEqual(bodies[2]["deadline_us"], 2_500_000)
        self.assertLess(bodies[0]["deadline_us"], 5_000_000)
        self.assertGreater(bodies[0]["deadline_us"], 1_000_000)
        self.assertEqual([body["lease"] for body in bodies[1:]], [7, 7])
        self.assertEqual((bodies[0]["has"], bodies[0]["tenant"], bodies[0]["salt"]), (7, 1, b"s"))
        self.assertEqual(len({body["op_id"] for body in bodies} - {wire.NO_ID}), 3)

    def test_islands_and_parents_are_said_once(self):
        fake = self.fake({"MATCH": [MATCHED], "EXTEND": [MATCHED]}, hello={"max_keys": 1}, opened={"key_len": 16})
        ns = self.open(fake, kit.digests())
        ns.match(OWNER, digests=bytes(48), island=True, parent=b"p" * 16, decision_id=b"d" * 16).release()
        bodies = [body for _, body in self.bodies(fake, "MATCH", "EXTEND")]
        self.assertEqual([body["parent"] for body in bodies], [b"p" * 16, b"", b""])
        self.assertEqual([body["flags"] for body in bodies], [2, 0, 0])
        self.assertEqual(bodies[0]["decision_id"], b"d" * 16)

    def test_a_reply_that_was_cut_is_fetched_before_more_is_asked(self):
        one = {**MATCHED, "n_device": 1, "more": 1}
        replies = {
            "MATCH": [{**one, "runs": [(3, 1)]}],
            "EXTEND": [
                {**one, "runs": [(1, 1)]}, {**one, "more": 0, "runs": [(2, 1)]}, {**one, "more": 0, "runs": [(0, 1)]},
            ],
        }
        fake = self.fake(replies, hello={"max_keys": 3})
        lease = self.open(fake).match(OWNER, tokens=np.arange(4 * BLOCK))
        self.assertEqual(lease.slots.tolist(), [3, 1, 2, 0])
        self.assertEqual(lease.result.n_device, 4)
        lease.release()
        sizes = [len(body["keys"]) // (4 * BLOCK) for _, body in self.bodies(fake, "MATCH", "EXTEND")]
        self.assertEqual(sizes, [3, 0, 0, 1])

    def test_a_part_that_fails_gives_back_the_lease_of_the_first(self):
        fake = self.fake({"MATCH": [MATCHED], "EXTEND": [(Status.BUSY, "no")], "PING": [{}]}, hello={"max_keys": 1})
        ns = self.open(fake)
        with self.assertRaises(PrefixdError) as caught:
            ns.match(OWNER, tokens=np.arange(2 * BLOCK))
        self.assertEqual(caught.exception.status, Status.BUSY)
        ns.client.ping()
        self.assertEqual([body["lease"] for _, body in self.bodies(fake, "RELEASE")], [7])

    def test_a_lease_of_which_a_later_part_failed_is_in_doubt(self):
        extends = [MATCHED, (Status.LIMIT, "no")]
        fake = self.fake({"MATCH": [MATCHED], "EXTEND": extends}, hello={"max_keys": 1})
        lease = self.open(fake).match(OWNER, tokens=np.arange(BLOCK))
        for want in (Status.LIMIT, Status.WRONG_STATE):
            with self.assertRaises(PrefixdError) as caught:
                lease.extend(tokens=np.arange(2 * BLOCK))
            self.assertEqual(caught.exception.status, want)
        lease.release()

    def test_one_that_was_refused_whole_is_not(self):
        extends = [(Status.LIMIT, "no"), MATCHED]
        fake = self.fake({"MATCH": [MATCHED], "EXTEND": extends})
        lease = self.open(fake).match(OWNER, tokens=np.arange(BLOCK + 5))
        with self.assertRaises(PrefixdError):
            lease.extend(tokens=np.arange(2 * BLOCK))
        lease.extend(tokens=np.arange(2 * BLOCK))
        lease.release()
        tails = [len(body["tail"]) for _, body in self.bodies(fake, "MATCH", "EXTEND")]
        self.assertEqual(tails, [20, 20, 20])
        counts = [body["n_tokens"] for _, body in self.bodies(fake, "MATCH", "EXTEND")]
        self.assertEqual(counts, [BLOCK + 5, 3 * BLOCK + 5, 3 * BLOCK + 5], "what failed was not counted")

    def test_commits_are_cut_and_one_that_fails_in_the_middle_is_in_doubt(self):
        reserved = {"n": 300, "first": 0, "reuse": 2, "runs": [(0, 300)]}
        first = {"n_stored": 245, "n_duplicate": 0, "reuse": 3, "runs": [(0, 245)]}
        second = {"n_stored": 0, "n_duplicate": 55, "reuse": 4, "runs": [(245, 55)]}
        sums = np.arange(16 * 300, dtype=np.uint16).astype(np.uint8).tobytes()
        for answer in (second, (Status.CONFLICT, "no")):
            fake = self.fake(
                {"MATCH": [MATCHED], "RESERVE": [reserved], "COMMIT": [first, answer]},
                hello={"max_frame": 4096}, opened={"slots": 300},
            )  # fmt: skip
            lease = self.open(fake, kit.options(block_tokens=1)).match(OWNER, tokens=np.arange(300))
            lease.reserve(300)
            if answer is second:
                done = lease.commit(checksums=sums, tail_tokens=0)
                self.assertEqual((done.n_stored, done.n_duplicate, lease.n_reserved), (245, 55, 0))
                self.assertEqual(lease.slots.tolist(), list(range(300)))
            else:
                for want in (Status.CONFLICT, Status.WRONG_STATE):
                    with self.assertRaises(PrefixdError) as caught:
                        lease.commit(300, checksums=sums)
                    self.assertEqual(caught.exception.status, want)
            lease.release()
            bodies = [body for _, body in self.bodies(fake, "COMMIT")]
            self.assertEqual([body["n"] for body in bodies], [245, 55])
            self.assertEqual(b"".join(body["checksums"] for body in bodies), sums)
            self.assertEqual({body["checksum_kind"] for body in bodies}, {1})

    def test_a_conflict_in_the_first_part_is_in_doubt_too(self):
        reserved = {"n": 2, "first": 0, "reuse": 2, "runs": [(0, 2)]}
        for status, after in (
            (Status.CONFLICT, Status.WRONG_STATE), (Status.NO_MEMORY, Status.WRONG_STATE), (Status.BUSY, Status.BUSY)
        ):  # fmt: skip
            fake = self.fake({"MATCH": [MATCHED], "RESERVE": [reserved], "COMMIT": [(status, "no")]})
            lease = self.open(fake).match(OWNER, tokens=np.arange(2 * BLOCK))
            lease.reserve(2)
            for want in (status, after):
                with self.assertRaises(PrefixdError) as caught:
                    lease.commit()
                self.assertEqual(caught.exception.status, want)
            self.assertEqual(lease.n_reserved, 2)
            lease.release()


class Flags(Seen):
    def test_hello_says_who_asks(self):
        for copies in (False, True):
            fake = self.fake({"PING": [{}]})
            client = prefixd.Client(fake.path, name="n" * 80, copies=copies, deadline=5)
            self.addCleanup(client.close)
            client.ping()
            hello = self.bodies(fake, "HELLO")[0][1]
            self.assertEqual((hello["flags"], hello["name"]), (int(copies), "n" * 64))
            self.assertEqual((hello["version_min"], hello["version_max"]), (1, 3))
            self.assertEqual(hello["self_test"], wire.self_test(1))

    def test_release_carries_its_hints(self):
        fake = self.fake({"MATCH": [MATCHED]})
        ns = self.open(fake)
        for hints, want in (
            ({}, (0, 0)), ({"over": True}, (1, 0)), ({"next_use": 1.5}, (2, 1500)),
            ({"over": True, "next_use": 0}, (3, 0)),
        ):  # fmt: skip
            ns.match(OWNER, tokens=[]).release(**hints)
            body = self.bodies(fake, "RELEASE")[-1][1]
            self.assertEqual((body["flags"], body["next_use_ms"]), want)

    def test_reports_are_microseconds(self):
        fake = self.fake({"REPORT": [{}]})
        self.open(fake).report(ttft=0.25, tpot=1e9, input_tokens=3, running=2, waiting=1)
        body = self.bodies(fake, "REPORT")[0][1]
        self.assertEqual([body[k] for k in ("ttft_us", "tpot_us", "input_tokens", "running", "waiting")],
                         [250_000, 0xFFFFFFFF, 3, 2, 1])  # fmt: skip


if __name__ == "__main__":
    unittest.main()
