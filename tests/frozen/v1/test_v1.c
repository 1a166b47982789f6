/*
 * test_v1.c - today's daemon, asked by a client of version 1.
 *
 *     test_v1 FRAMES [CASE]     cases: frames, worker, waits, neighbours, ends, kept
 *
 * FRAMES is frames.txt.  `kept` is about memory that outlives the daemon: a client of version 1
 * knows nothing of it and must meet it without harm.
 */
#include "tests/e2e/harness.h"
#include "tests/frozen/v1/client.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096u

static struct e2e_daemon d;
static const char *frames_path;
static const uint8_t instance[16] = { 0xf1 };

static void start(const char *const args[])
{
	int r;

	if (!d.dir[0])
		ck_assert_int_eq(e2e_daemon_init(&d), 0);
	r = e2e_daemon_start(&d, args);
	ck_assert_msg(r == 0, "the daemon does not start: %d", r);
}

static void stop_daemon(void)
{
	if (d.pid)
		(void)e2e_daemon_stop(&d, SIGINT); /* gives up what is kept */
	e2e_daemon_free(&d);
}

#define FINE(c, call)                                                             \
	do {                                                                      \
		int r_ = (call);                                                  \
		ck_assert_msg(r_ == 0, "%s: status %d, %s", #call, r_, (c)->why); \
	} while (0)

static void greet(struct v1 *c)
{
	FINE(c, v1_connect(c, d.socket, instance));
	FINE(c, v1_hello(c));
}

static void prompt(uint32_t seed, uint32_t tokens[32])
{
	for (uint32_t i = 0; i < 32; i++)
		tokens[i] = seed * 1000 + i;
}

static uint8_t *block(const struct v1_ns *ns, const struct v1_run *runs, uint32_t n_runs,
		      uint32_t i)
{
	uint32_t slot = v1_slot(runs, n_runs, i);

	ck_assert_uint_lt(slot, ns->n_slots);
	return ns->pool + slot * ns->slot_stride;
}

static void fill(const struct v1_ns *ns, const struct v1_slots *s, uint32_t seed)
{
	for (uint32_t i = 0; i < s->a; i++)
		memset(block(ns, s->runs, s->n_runs, i), (int)(seed + s->b + i), BLOCK);
}

static void check_bytes(const struct v1_ns *ns, const struct v1_match *m, uint32_t seed)
{
	for (uint32_t i = 0; i < m->n_device; i++) {
		const uint8_t *p = block(ns, m->runs, m->n_runs, i);

		for (uint32_t k = 0; k < BLOCK; k++)
			ck_assert_uint_eq(p[k], (uint8_t)(seed + i));
		ck_assert(!v1_stale(ns, v1_slot(m->runs, m->n_runs, i), m->reuse));
	}
}

/* Stores 8 blocks of the prompt; returns how many were missing. */
static uint32_t store(struct v1 *c, const struct v1_ns *ns, uint32_t seed)
{
	uint64_t tokens_of[6];
	uint32_t tokens[32], n;
	struct v1_slots s, done;
	struct v1_match m;

	prompt(seed, tokens);
	FINE(c, v1_match(c, ns, tokens, 8, 0, &m));
	check_bytes(ns, &m, seed);
	n = 8 - m.n_device;
	if (n) {
		FINE(c, v1_reserve(c, m.lease, n, &s));
		ck_assert_uint_eq(s.a, n);
		ck_assert_uint_eq(s.b, m.n_device);
		fill(ns, &s, seed);
		FINE(c, v1_commit(c, m.lease, n, &done));
		ck_assert_uint_eq(done.a + done.b, n);
	}
	FINE(c, v1_release(c, m.lease, tokens_of));
	ck_assert_uint_eq(tokens_of[0], 32);
	ck_assert_uint_eq(tokens_of[1], 4 * m.n_device);
	return n;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static int nibble(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Hex to bytes, L standing for the lease; the number of bytes. */
static size_t unhex(const char *s, const uint8_t lease[8], uint8_t *out, size_t cap)
{
	size_t n = 0, ls = 0;

	for (; s[0] && s[1]; s += 2) {
		ck_assert_uint_lt(n, cap);
		if (s[0] == 'L') {
			out[n++] = lease[ls++ % 8];
			continue;
		}
		ck_assert(nibble(s[0]) >= 0 && nibble(s[1]) >= 0);
		out[n++] = (uint8_t)(nibble(s[0]) << 4 | nibble(s[1]));
	}
	return n;
}

static void check_answer(const char *name, const char *want, const struct v1 *c)
{
	uint8_t got[8192];
	size_t n = 0;

	ck_assert_uint_lt(c->len, sizeof(got) - 40);
	memcpy(got, "PFXD\1\0", 6);
	for (int i = 0; i < 2; i++) {
		got[6 + i] = (uint8_t)(c->op >> 8 * i);
		got[12 + i] = (uint8_t)(c->status >> 8 * i);
		got[14 + i] = 0;
	}
	for (int i = 0; i < 4; i++)
		got[8 + i] = (uint8_t)(c->len >> 8 * i);
	for (int i = 0; i < 8; i++)
		got[16 + i] = (uint8_t)(c->got_seq >> 8 * i);
	memcpy(got + 24, c->boot, 16);
	memcpy(got + 40, c->body, c->len);
	for (; want[0] && want[0] != '*'; want += 2, n++) {
		ck_assert_msg(n < 40 + c->len, "%s: only %u bytes of body", name, c->len);
		if (want[0] == '.')
			continue;
		ck_assert_msg(got[n] == (nibble(want[0]) << 4 | nibble(want[1])),
			      "%s: byte %zu is %02x and was %.2s", name, n, got[n], want);
	}
	ck_assert_msg(want[0] == '*' || n == 40 + c->len, "%s: %u bytes of body", name, c->len);
}

START_TEST(frames_of_version_1_are_answered_as_ever)
{
	static char line[16384], name[64], send[8192];
	uint8_t frame[4096], lease[8] = { 0 };
	uint32_t n_frames = 0;
	FILE *f = fopen(frames_path, "r");
	struct v1 c;

	ck_assert_msg(f != NULL, "%s", frames_path);
	start((const char *const[]){ "--pool-blocks", "64", "--max-keys", "1000", NULL });
	FINE(&c, v1_connect(&c, d.socket, instance));
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "name=", 5)) {
			(void)snprintf(name, sizeof(name), "%.60s", line + 5);
		} else if (!strncmp(line, "send=", 5)) {
			(void)snprintf(send, sizeof(send), "%.8000s", line + 5);
		} else if (!strncmp(line, "want=", 5)) {
			FINE(&c, v1_send(&c, frame, unhex(send, lease, frame, sizeof(frame))));
			FINE(&c, v1_receive(&c));
			check_answer(name, line + 5, &c);
			if (c.op == 3 && c.status == 0)
				memcpy(lease, c.body, 8);
			n_frames++;
		} else if (!strncmp(line, "fds=", 4)) {
			ck_assert_msg(c.n_fds == strtoul(line + 4, NULL, 10), "%s", name);
		}
	}
	(void)fclose(f); /* read only */
	ck_assert_uint_ge(n_frames, 45);
	v1_close(&c);
}
END_TEST

/* ---- calls ----------------------------------------------------------------------------------- */

START_TEST(a_worker_of_version_1)
{
	uint64_t tokens_of[6];
	uint32_t tokens[32];
	struct v1_match m;
	struct v1_slots s;
	struct v1_ns ns, same;
	struct v1 c;

	start((const char *const[]){ "--pool-blocks", "32", NULL });
	greet(&c);
	ck_assert_str_eq(c.tenant, "default");
	FINE(&c, v1_ping(&c));
	FINE(&c, v1_open(&c, "m", BLOCK, &ns));
	FINE(&c, v1_open(&c, "m", BLOCK, &same));
	ck_assert_uint_eq(same.id, ns.id);
	ck_assert_uint_eq(store(&c, &ns, 1), 8);
	ck_assert_uint_eq(store(&c, &same, 1), 0); /* through the other mapping */
	/* Until nothing fits any more, and over again: slots are reused and that shows. */
	prompt(1, tokens);
	FINE(&c, v1_match(&c, &ns, tokens, 8, 0, &m));
	FINE(&c, v1_release(&c, m.lease, tokens_of));
	for (uint32_t seed = 2; seed < 12; seed++)
		ck_assert_uint_eq(store(&c, &ns, seed), 8);
	ck_assert(v1_stale(&ns, v1_slot(m.runs, m.n_runs, 7), m.reuse));
	prompt(20, tokens);
	FINE(&c, v1_match(&c, &ns, tokens, 8, 0, &m));
	ck_assert_uint_eq(m.n_device, 0);
	FINE(&c, v1_reserve(&c, m.lease, 8, &s));
	fill(&ns, &s, 20);
	FINE(&c, v1_commit(&c, m.lease, 3, &s));
	ck_assert_uint_eq(s.a, 3);
	ck_assert_int_eq(v1_commit(&c, m.lease, 6, &s), 17); /* WRONG_STATE */
	FINE(&c, v1_release(&c, m.lease, tokens_of));
	ck_assert_int_eq(v1_release(&c, m.lease, tokens_of), 11); /* UNKNOWN_LEASE */
	FINE(&c, v1_match(&c, &ns, tokens, 8, 0, &m));
	ck_assert_uint_eq(m.n_device, 3); /* what was reserved and not committed is nobody's */
	check_bytes(&ns, &m, 20);
	v1_unmap(&same);
	v1_unmap(&ns);
	v1_close(&c);
}
END_TEST

START_TEST(one_waits_for_the_other)
{
	static const uint8_t other[16] = { 0xf2 };
	uint64_t tokens_of[6];
	uint32_t tokens[32];
	struct v1_match led, waits, more;
	struct v1_slots s;
	struct v1_wait w;
	struct v1_ns na, nb;
	struct v1 a, b;

	start((const char *const[]){ "--pool-blocks", "32", NULL });
	greet(&a);
	FINE(&b, v1_connect(&b, d.socket, other));
	FINE(&b, v1_hello(&b));
	FINE(&a, v1_open(&a, "m", BLOCK, &na));
	FINE(&b, v1_open(&b, "m", BLOCK, &nb));
	prompt(1, tokens);
	FINE(&a, v1_match(&a, &na, tokens, 8, 8, &led)); /* LEAD */
	ck_assert_uint_eq(led.n_pending, 0);
	FINE(&b, v1_match(&b, &nb, tokens, 8, 8, &waits));
	ck_assert_uint_eq(waits.n_pending, 8);
	FINE(&b, v1_wait(&b, waits.lease, &w));
	ck_assert_uint_eq(w.state, 1); /* WAITING */
	FINE(&a, v1_reserve(&a, led.lease, 8, &s));
	fill(&na, &s, 1);
	FINE(&a, v1_commit(&a, led.lease, 8, &s));
	FINE(&b, v1_event(&b, &w));
	ck_assert_uint_eq(w.lease, waits.lease);
	ck_assert_uint_eq(w.state, 0); /* READY */
	ck_assert_uint_eq(w.n, 8);
	FINE(&b, v1_extend(&b, waits.lease, &more));
	ck_assert_uint_eq(more.n_device, 8);
	check_bytes(&nb, &more, 1);
	FINE(&b, v1_release(&b, waits.lease, tokens_of));
	ck_assert_uint_eq(tokens_of[4], 32); /* pending when it asked */
	FINE(&a, v1_release(&a, led.lease, tokens_of));
	v1_unmap(&na);
	v1_unmap(&nb);
	v1_close(&a);
	v1_close(&b);
}
END_TEST

/* Old and new client side by side in one namespace. */
START_TEST(neighbours_of_another_version)
{
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .flags = PFX_NS_OPAQUE,
				    .model = "m",
				    .revision = "r1",
				    .dtype = "float16",
				    .layers = 1,
				    .kv_heads = 1,
				    .head_dim = 64,
				    .block_tokens = 4,
				    .block_bytes = BLOCK,
				    .layout = "opaque",
				    .tp_size = 1,
				    .engine = "frozen/1",
				    .map = 1 };
	pfx_prompt p = { .struct_size = sizeof(p), .salt = "salt", .salt_len = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	uint32_t tokens[32];
	pfx_namespace *ns;
	pfx_client *n;
	struct v1_ns old_ns;
	struct v1 old;

	start((const char *const[]){ "--pool-blocks", "32", NULL });
	greet(&old);
	FINE(&old, v1_open(&old, "m", BLOCK, &old_ns));
	ck_assert_uint_eq(store(&old, &old_ns, 1), 8);
	n = e2e_connect(&d);
	ck_assert_int_eq(pfx_open(n, &o, &ns), PFX_OK);
	ck_assert_int_eq(pfx_namespace_get(ns, &info), PFX_OK);
	ck_assert_uint_eq(info.id, old_ns.id);
	ck_assert_mem_eq(info.digest, old_ns.digest, 32);
	prompt(1, tokens);
	p.keys = tokens;
	p.n_keys = 8;
	ck_assert_int_eq(pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_device, 8);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(*(uint8_t *)pfx_slot(ns, m.runs[0].start + i), 1 + i);
	pfx_close(n);
	v1_unmap(&old_ns);
	v1_close(&old);
}
END_TEST

/* ---- ends ------------------------------------------------------------------------------------ */

/* Its socket ended and it lives: QUIESCED under the life's boot id gives back what it held. */
START_TEST(quiesced_as_ever)
{
	static const uint8_t zeroes[16], other[16] = { 0xf3 };
	uint32_t tokens[32], leases, slots;
	struct v1_match m;
	struct v1_slots s;
	struct v1_ns ns;
	struct v1 c, stranger;

	start((const char *const[]){ "--pool-blocks", "32", NULL });
	greet(&c);
	FINE(&c, v1_open(&c, "m", BLOCK, &ns));
	prompt(1, tokens);
	FINE(&c, v1_match(&c, &ns, tokens, 8, 0, &m));
	FINE(&c, v1_reserve(&c, m.lease, 5, &s));
	v1_close(&c);
	greet(&c);
	FINE(&stranger, v1_connect(&stranger, d.socket, other));
	FINE(&stranger, v1_hello(&stranger));
	FINE(&stranger, v1_quiesced(&stranger, stranger.boot, &leases, &slots));
	ck_assert_uint_eq(leases + slots, 0);
	FINE(&c, v1_quiesced(&c, zeroes, &leases, &slots));
	ck_assert_uint_eq(leases + slots, 0);
	FINE(&c, v1_quiesced(&c, c.boot, &leases, &slots));
	ck_assert_uint_eq(leases, 1);
	ck_assert_uint_eq(slots, 5);
	v1_unmap(&ns);
	v1_close(&stranger);
	v1_close(&c);
}
END_TEST

/* The daemon is killed and comes back: the connection ends, the mapping does not. */
static void killed_and_back(const char *const args[], bool kept)
{
	uint64_t tokens_of[6];
	uint32_t tokens[32], leases, slots;
	struct v1_match m, again;
	struct v1_slots s;
	struct v1_ns ns, now;
	uint8_t boot[16];
	struct v1 c;

	start(args);
	greet(&c);
	FINE(&c, v1_open(&c, "m", BLOCK, &ns));
	(void)store(&c, &ns, 1);
	prompt(1, tokens);
	FINE(&c, v1_match(&c, &ns, tokens, 8, 0, &m));
	memcpy(boot, c.boot, 16);
	(void)e2e_daemon_stop(&d, SIGKILL);
	ck_assert_int_eq(v1_ping(&c), V1_CLOSED);
	check_bytes(&ns, &m, 1);
	v1_close(&c);
	ck_assert_int_eq(v1_connect(&c, d.socket, instance), V1_CLOSED);
	start(args);
	greet(&c);
	ck_assert_mem_ne(c.boot, boot, 16);
	ck_assert_int_eq(v1_release(&c, m.lease, tokens_of), 11);
	FINE(&c, v1_open(&c, "m", BLOCK, &now));
	/* What it leased may be read until it says QUIESCED, whatever others store meanwhile. */
	for (uint32_t seed = 40; seed < 48; seed++) {
		prompt(seed, tokens);
		FINE(&c, v1_match(&c, &now, tokens, 8, 0, &again));
		if (v1_reserve(&c, again.lease, 8, &s) == 0) {
			fill(&now, &s, seed);
			FINE(&c, v1_commit(&c, again.lease, s.a, &s));
		}
		FINE(&c, v1_release(&c, again.lease, tokens_of));
	}
	check_bytes(&ns, &m, 1);
	prompt(1, tokens);
	FINE(&c, v1_match(&c, &now, tokens, 8, 0, &again));
	ck_assert_uint_eq(again.n_device, kept ? 8 : 0);
	check_bytes(&now, &again, 1);
	FINE(&c, v1_release(&c, again.lease, tokens_of));
	FINE(&c, v1_quiesced(&c, boot, &leases, &slots));
	ck_assert_uint_eq(leases, kept ? 1 : 0);
	v1_unmap(&now);
	v1_unmap(&ns);
	v1_close(&c);
}

START_TEST(the_daemon_ends_and_comes_back)
{
	killed_and_back((const char *const[]){ "--pool-blocks", "32", NULL }, false);
}
END_TEST

START_TEST(the_daemon_ends_and_keeps_its_memory)
{
	killed_and_back((const char *const[]){ "--pool-blocks", "32", "--keep", "holder",
					       "--hold-timeout", "20s", NULL },
			true);
}
END_TEST

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		const TTest *tests[2];
	} cases[] = {
		{ "frames", { frames_of_version_1_are_answered_as_ever } },
		{ "worker", { a_worker_of_version_1 } },
		{ "waits", { one_waits_for_the_other } },
		{ "neighbours", { neighbours_of_another_version } },
		{ "ends", { quiesced_as_ever, the_daemon_ends_and_comes_back } },
		{ "kept", { the_daemon_ends_and_keeps_its_memory } },
	};
	Suite *s = suite_create("frozen v1");

	if (!e2e_daemon_binary())
		return E2E_SKIP;
	frames_path = argc > 1 ? argv[1] : "frames.txt";
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		TCase *t;

		if (argc > 2 && strcmp(argv[2], cases[i].name) != 0)
			continue;
		t = tcase_create(cases[i].name);
		tcase_set_timeout(t, 60);
		tcase_add_checked_fixture(t, NULL, stop_daemon);
		for (int k = 0; k < 2 && cases[i].tests[k]; k++)
			tcase_add_test(t, cases[i].tests[k]);
		suite_add_tcase(s, t);
	}
	return test_run(s);
}
