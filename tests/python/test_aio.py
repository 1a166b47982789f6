"""The asyncio client against a real daemon: the same calls, many tasks at once, and cancelled ones."""

import asyncio
import gc
import inspect
import signal
import time
import unittest
import warnings

import kit
import numpy as np
import prefixd
import prefixd.aio
from kit import BLOCK, OWNER, Daemon, Fake
from prefixd import PrefixdError, Status, wire


async def store(ns, seed, n_blocks):
    ids = kit.prompt(seed, n_blocks * BLOCK)
    async with ns.match(OWNER, tokens=ids) as lease:
        left = n_blocks - lease.result.n_device
        while left:
            todo = await lease.reserve(left)
            kit.fill(lease, todo, seed)
            await lease.commit(todo.n)
            left -= todo.n
    return ids


class Live(unittest.IsolatedAsyncioTestCase):
    settings = {"pool_blocks": 512}

    def setUp(self):
        self.daemon = Daemon(**self.settings).start()
        self.addCleanup(self.daemon.__exit__, None)

    def client(self, **changes):
        client = prefixd.aio.Client(self.daemon.socket, **{"deadline": 5.0, **changes})
        self.addAsyncCleanup(client.close)
        return client

    async def fails(self, status, call):
        with self.assertRaises(PrefixdError) as caught:
            await call
        self.assertEqual(caught.exception.status, status)

    def leases(self):
        return self.daemon.ctl("status", "--json")["leases"]


class Calls(Live):
    async def test_one_stores_and_another_reads_the_same_bytes(self):
        ns = await self.client().open(kit.options())
        other = await self.client().open(kit.options(), map="ro")
        ids = await store(ns, 1, 6)
        async with other.match(OWNER, tokens=ids + [1, 2]) as lease:
            self.assertEqual(lease.result.n_device, 6)
            self.assertTrue(kit.right(lease, lease.slots, 1))
            self.assertEqual((await lease.release()).hit_device_tokens, 6 * BLOCK)
        lease = await other.match(prefixd.Owner("default", b"other"), tokens=ids)
        self.assertEqual(lease.result.n_device, 0)
        await lease.release()
        with self.assertRaisesRegex(RuntimeError, "engine"):
            async with ns.match(OWNER, tokens=ids) as lease:
                raise RuntimeError("the engine failed")
        self.assertTrue(lease.ended)
        self.assertEqual(self.leases(), 0)
        with self.assertRaises(PrefixdError) as caught:
            ns.match(None, tokens=ids)
            await ns.match(None, tokens=ids)
        self.assertEqual((caught.exception.status, caught.exception.field), (Status.MISSING_FIELD, "tenant"))

    async def test_every_call_of_the_blocking_client_is_there(self):
        for name in ("Client", "Namespace", "Lease", "Subscription"):
            blocking, ours = getattr(prefixd, name), getattr(prefixd.aio, name)
            calls = {n for n in vars(blocking) if not n.startswith("_")}
            self.assertEqual(calls - set(vars(ours)), set(), name)
            for call in calls:
                if not isinstance(vars(blocking)[call], property):
                    a, b = (inspect.signature(getattr(c, call)) for c in (blocking, ours))
                    self.assertEqual(list(a.parameters), list(b.parameters), f"{name}.{call}")

    async def test_the_rest_of_the_calls(self):
        client = self.client()
        await client.connect()
        self.assertEqual(await client.tenant("default"), client.tenants["default"])
        self.assertEqual(await client.quiesced(), (0, 0))
        ns = await client.open(kit.options())
        ids = await store(ns, 2, 3)
        self.assertEqual((await ns.probe(OWNER, tokens=ids, bitmap=True)).bitmap.tolist(), [True] * 3)
        self.assertEqual((await ns.explain(OWNER, tokens=ids)).matched_tokens, 3 * BLOCK)
        await ns.report(ttft=0.1, running=1)
        await self.fails(Status.UNSUPPORTED, ns.prefetch(OWNER, tokens=ids))
        async with prefixd.aio.Client(self.daemon.admin) as admin:
            self.assertTrue((await admin.admin({"op": "ping"}))["ok"])
        listener = self.client()
        await listener.open(kit.options(), map="no")
        stream = await listener.subscribe()
        await store(ns, 3, 2)
        positions = []
        async for change in stream:
            positions.append(change.position)
            if len(positions) == 2:
                break
        self.assertEqual(positions, [0, 1])
        self.assertIsNone(await stream.next(deadline=0.02))
        await self.fails(Status.WRONG_STATE, listener.ping())

    async def test_many_tasks_share_a_connection(self):
        client = self.client()
        ns = await client.open(kit.options())

        async def work(seed):
            ids = await store(ns, seed, 5)
            for _ in range(10):
                async with ns.match(OWNER, tokens=ids) as lease:
                    if lease.result.n_device != 5 or not kit.right(lease, lease.slots, seed):
                        return False
                    await client.ping()
            return True

        self.assertEqual(await asyncio.gather(*(work(seed) for seed in range(30))), [True] * 30)
        self.assertEqual(client._session.life, 1)
        self.assertEqual((client._session._slots, client._session._late), ({}, set()))

    async def test_tasks_that_start_together_connect_once(self):
        client = self.client()
        await asyncio.gather(*(client.ping() for _ in range(20)))
        self.assertEqual(client._session.life, 1)

    async def test_who_waits_does_not_keep_others_from_going_on(self):
        client = self.client()
        ns = await client.open(kit.options())
        ids = kit.prompt(4, 2 * BLOCK)
        first = await ns.match(OWNER, tokens=ids, lead=True)
        second = await ns.match(OWNER, tokens=ids, lead=True)
        self.assertEqual(second.result.n_pending, 2)
        waiting = asyncio.ensure_future(second.wait())
        await asyncio.sleep(0.02)
        for _ in range(20):
            await client.ping()
        self.assertFalse(waiting.done())
        todo = await first.reserve(2)
        kit.fill(first, todo, 4)
        await first.commit()
        self.assertEqual((await waiting).state, prefixd.WaitState.READY)
        self.assertEqual((await second.extend()).n_device, 2)
        self.assertTrue(kit.right(second, second.slots, 4))
        await first.release()
        await second.release()

    async def test_cancelled_calls_leave_a_client_that_goes_on(self):
        client = self.client()
        ns = await client.open(kit.options())
        ids = await store(ns, 5, 4)
        for steps in range(12):  # cancelled after so many turns of the loop
            task = asyncio.ensure_future(ns.match(OWNER, tokens=ids)._get())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
        await client.ping()
        await client.ping()
        self.assertEqual(self.leases(), 0)
        lease = await ns.match(OWNER, tokens=kit.prompt(6, 4 * BLOCK))
        self.daemon.process.send_signal(signal.SIGSTOP)
        task = asyncio.ensure_future(lease.reserve(2))
        await asyncio.sleep(0.02)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.daemon.process.send_signal(signal.SIGCONT)
        await self.fails(Status.WRONG_STATE, lease.reserve(1))
        await lease.release()
        self.assertEqual(self.leases(), 0)

    async def test_a_lease_that_was_forgotten_is_given_back(self):
        client = self.client()
        ns = await client.open(kit.options())
        lease = await ns.match(OWNER, tokens=[1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del lease
            gc.collect()
        self.assertEqual([w.category for w in caught], [ResourceWarning])
        await client.ping()
        self.assertEqual(self.leases(), 0)

    def test_a_client_may_follow_from_one_loop_to_the_next_but_not_serve_two(self):
        client = prefixd.aio.Client(self.daemon.socket, deadline=5)
        asyncio.run(client.ping())
        asyncio.run(client.ping())
        self.assertEqual(client._session.life, 1)

        async def outer():
            await client.ping()

            def inner():
                with self.assertRaises(PrefixdError) as caught:
                    asyncio.run(client.ping())
                return caught.exception.status

            return await asyncio.get_running_loop().run_in_executor(None, inner)

        self.assertEqual(asyncio.run(outer()), Status.WRONG_STATE)
        asyncio.run(client.close())


class HostTier(Live):
    settings = {"pool_blocks": 64, "host_blocks": 256, "prefill_rate": 1}

    async def test_a_load_goes_on_beside_other_calls(self):
        client = self.client()
        ns = await client.open(kit.options())
        ids = await store(ns, 30, 32)
        for seed in range(31, 35):
            await store(ns, seed, 32)
        until = time.monotonic() + 5
        while (await ns.probe(OWNER, tokens=ids)).n_host != 32 and time.monotonic() < until:
            await asyncio.sleep(0.005)
        async with ns.match(OWNER, tokens=ids, promote=True, load_deadline=5.0) as lease:
            self.assertTrue(lease.result.loading)
            load, _ = await asyncio.gather(lease.load_wait(), client.ping())
            self.assertEqual(load.n, 32)
            self.assertEqual((await lease.extend()).n_device, 32)
            self.assertTrue(kit.right(lease, lease.slots, 30))
            self.assertEqual((await lease.release()).hit_host_tokens, 32 * BLOCK)


class Failures(Live):
    async def test_deadlines_hold(self):
        client = self.client()
        ns = await client.open(kit.options())
        ids = await store(ns, 1, 4)
        self.daemon.process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        got = await asyncio.gather(
            client.ping(deadline=0.1), ns.match(OWNER, tokens=ids, deadline=0.1)._get(),
            ns.probe(OWNER, tokens=ids, deadline=0.1), return_exceptions=True,
        )  # fmt: skip
        took = time.monotonic() - start
        self.daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual([error.status for error in got], [Status.DEADLINE] * 3)
        self.assertTrue(0.099 <= took < 2.0, took)
        async with ns.match(OWNER, tokens=ids) as lease:
            self.assertTrue(kit.right(lease, lease.slots, 1))
        await client.ping()
        self.assertEqual(self.leases(), 0)

    async def test_a_restart_is_met_with_hello_and_open(self):
        client = self.client()
        ns = await client.open(kit.options())
        ids = await store(ns, 1, 4)
        lease = await ns.match(OWNER, tokens=ids)
        waiting = asyncio.ensure_future(self.forever(client, ns))
        await asyncio.sleep(0.02)
        boot = client.boot
        self.daemon.kill()
        self.daemon.start()
        self.assertIn(await waiting, (Status.UNKNOWN_LEASE, Status.GONE))
        await asyncio.sleep(0.21)
        await self.fails(Status.UNKNOWN_LEASE, lease.extend())
        await asyncio.gather(*(client.ping() for _ in range(5)))
        self.assertNotEqual(client.boot, boot)
        await store(ns, 1, 4)
        async with ns.match(OWNER, tokens=ids) as again:
            self.assertTrue(kit.right(again, again.slots, 1))

    async def forever(self, client, ns):
        """A wait that only the end of the connection ends; its status."""
        ids = kit.prompt(9, BLOCK)
        first = await ns.match(OWNER, tokens=ids, lead=True)
        second = await ns.match(OWNER, tokens=ids, lead=True)
        try:
            await second.wait()
        except PrefixdError as error:
            return error.status
        finally:
            del first

    async def test_no_daemon(self):
        client = self.client()
        await client.ping()
        self.daemon.kill()
        for _ in range(50):
            await self.fails(Status.GONE, client.ping())

    async def test_closing_ends_the_calls_of_other_tasks(self):
        client = self.client(deadline=60)
        await client.open(kit.options())
        self.daemon.process.send_signal(signal.SIGSTOP)
        task = asyncio.ensure_future(client.ping())
        await asyncio.sleep(0.02)
        await client.close()
        self.daemon.process.send_signal(signal.SIGCONT)
        await self.fails(Status.GONE, asyncio.wait_for(task, 20))
        await self.fails(Status.GONE, self.ping(client))

    async def ping(self, client):
        await client.ping()

    async def test_liars(self):
        frames = {
            "junk": lambda fake, h: b"x" * 100,
            "another seq": lambda fake, h: fake.reply(h, {}, seq=h.seq + 7),
            "another life": lambda fake, h: fake.reply(h, {}, boot=b"C" * 16),
            "half": lambda fake, h: fake.reply(h, {})[:20],
            "right": lambda fake, h: fake.reply(h, {}),
        }
        want = [Status.PROTOCOL, Status.PROTOCOL, Status.GONE, Status.DEADLINE, Status.OK]
        for (name, make), status in zip(frames.items(), want):

            def answer(fake, s, h, body, make=make):
                s.sendall(fake.hello(h) if h.op == wire.OPS["HELLO"].code else make(fake, h))

            with self.subTest(name), Fake(answer) as fake:
                async with prefixd.aio.Client(fake.path, deadline=0.2) as client:
                    try:
                        await client.ping()
                        got = Status.OK
                    except PrefixdError as error:
                        got = error.status
                self.assertEqual((got, fake.errors), (status, []))

    async def test_descriptors_are_not_leaked(self):
        client = self.client()
        await client.open(kit.options())
        before = kit.descriptors()
        for _ in range(100):
            await client.open(kit.options())
        await asyncio.gather(*(client.open(kit.options(model=str(i))) for i in range(10)))
        gc.collect()
        self.assertEqual(kit.descriptors(), before)

    async def test_a_big_request_goes_in_parts(self):
        client = self.client()
        ns = await client.open(kit.digests())
        keys = np.zeros((60000, 16), np.uint8)
        found = await asyncio.gather(*(ns.probe(OWNER, digests=keys, bitmap=True) for _ in range(4)))
        self.assertEqual([f.bitmap.sum() for f in found], [0] * 4)
