/*
 * test_client_restart.c - libprefixd over the ends of daemons: what stays mapped, what is stale,
 * what is said and when, and in which version.
 *
 *     test_client_restart [CASE]    cases: fake, real
 *
 * "fake" scripts the daemon's side: names of pools that are right or lie, orphans, versions.
 * "real" kills the daemon under workers in the middle of a step, with its memory kept and not.
 */
#include "clients/c/prefixd_restart.h"
#include "tests/e2e/fake.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 4096u
#define KEYS  4u

static struct fake fake;

static void expect(pfx_client *c, int r, int expected)
{
	ck_assert_msg(r == expected, "%s instead of %s: %s", pfx_status_to_string(r),
		      pfx_status_to_string(expected), pfx_error(c));
}

static pfx_client *client_at(const char *path)
{
	pfx_connect_options o = {
		.struct_size = sizeof(o), .socket = path, .name = "test", .deadline_ms = 5000
	};
	pfx_client *c = NULL;

	expect(c, pfx_connect(&o, &c), PFX_OK);
	return c;
}

static pfx_namespace *open_ns(pfx_client *c, const char *model, int map)
{
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .flags = PFX_NS_OPAQUE,
				    .model = model,
				    .revision = "r1",
				    .dtype = "float16",
				    .layers = 1,
				    .kv_heads = 1,
				    .head_dim = 64,
				    .block_tokens = 16,
				    .block_bytes = BLOCK,
				    .layout = "opaque",
				    .tp_size = 1,
				    .engine = "test/1",
				    .map = map };
	pfx_namespace *ns = NULL;

	expect(c, pfx_open(c, &o, &ns), PFX_OK);
	return ns;
}

static void prompt_of(uint32_t seed, uint32_t keys[KEYS * 16], pfx_prompt *ret)
{
	for (uint32_t i = 0; i < KEYS * 16; i++)
		keys[i] = seed * 1000 + i;
	*ret = (pfx_prompt){ .struct_size = sizeof(*ret), .keys = keys, .n_keys = KEYS };
}

static uint64_t match(pfx_namespace *ns, pfx_client *c, uint32_t seed, pfx_match_result *m)
{
	uint32_t keys[KEYS * 16];
	pfx_prompt p;

	prompt_of(seed, keys, &p);
	*m = (pfx_match_result){ .struct_size = sizeof(*m) };
	expect(c, pfx_match(ns, &p, m), PFX_OK);
	return m->lease;
}

/* ---- the same memory, or another ------------------------------------------------------------- */

static void set_generation(struct fake *f, uint32_t slot, uint64_t generation)
{
	uint64_t *g = mmap(NULL, f->n_slots * 8ul, PROT_READ | PROT_WRITE, MAP_SHARED,
			   f->generations.fd, 0);

	if (!fake_expect(f, g != MAP_FAILED, "generations"))
		return;
	g[slot] = generation;
	munmap(g, f->n_slots * 8ul);
}

static bool new_memory(struct fake *f, struct gpu_shm *shm, uint64_t len)
{
	gpu_shm_free(shm);
	return fake_expect(f, gpu_shm_new(shm, "fake", len, false, false) == 0, "memory");
}

/* What the second life brings: bits of what is another one than before. */
enum {
	OTHER_POOL = 1,
	OTHER_GENERATIONS = 2,
	OTHER_NAME = 4,
	NO_NAME = 8, /* and version 1, which has none */
	ALL_CHANGES = 16
};
static unsigned change;

static void serve_second_life(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f) || !fake_open(f) ||
	    !fake_receive_op(f, PROTO_OP_MATCH) || !fake_answer_match(f, 99, 0, 2, 0))
		return;
	fake_step_wait(f, 1); /* the client has what it wants of the first life */
	f->boot.b[0]++;
	f->opened_flags = PROTO_OPENED_KEPT;
	if ((change & OTHER_POOL) &&
	    !new_memory(f, &f->pool, (uint64_t)f->n_slots * f->block_bytes))
		return;
	if ((change & OTHER_GENERATIONS) && !new_memory(f, &f->generations, f->n_slots * 8ull))
		return;
	if (change & OTHER_NAME)
		f->pool_id.b[0]++;
	if (fake_hello(f) && fake_open(f) && fake_open(f))
		fake_serve_well(f);
}

START_TEST(a_memory_is_known_by_name_and_file)
{
	bool same = _i == 0;
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	pfx_match_result m;
	pfx_namespace *ns, *reader;
	pfx_client *c;
	uint8_t *old, *old_read;

	change = (unsigned)_i;
	memset(&fake, 0, sizeof(fake));
	fake.speaks = change & NO_NAME ? 1 : 2;
	fake_start(&fake, serve_second_life);
	c = client_at(fake.path);
	ns = open_ns(c, "m", 1);
	reader = open_ns(c, "m", 2);
	ck_assert_int_eq(pfx_namespace_get(ns, &info), PFX_OK);
	ck_assert_int_eq(info.kept, 0);
	ck_assert_uint_eq(info.pool[3], change & NO_NAME ? 0 : 0x70);
	match(ns, c, 1, &m);
	old = pfx_slot(ns, 1);
	old_read = pfx_slot(reader, 1);
	old[7] = 0x42;
	ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), 0);
	ck_assert_int_eq(pfx_slot_stale(reader, 1, m.reuse), 0); /* one memory, two mappings */
	fake_step_set(&fake, 1);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 2);
	ck_assert_int_eq(pfx_namespace_get(ns, &info), PFX_OK);
	ck_assert_int_eq(info.kept, !(change & NO_NAME));
	ck_assert_int_eq(pfx_slot(ns, 1) == old, same);
	ck_assert_int_eq(pfx_slot(reader, 1) == old_read, same);
	ck_assert_uint_eq(old[7], 0x42); /* mapped until pfx_close in any case */
	ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), !same);
	if (same) {
		/* G was 5: as stale as the generation says, life or no life. */
		set_generation(&fake, 1, 5);
		ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), 0);
		set_generation(&fake, 1, 6);
		ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), 1);
		ck_assert_int_eq(pfx_slot_stale(reader, 1, m.reuse), 1);
	}
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/* ---- what is said, and when ------------------------------------------------------------------ */

/* The orphans that the next HELLO tells of; then what was said before each request. */
struct heard {
	unsigned n_quiesced, n_releases;
	struct proto_id old_boot, instance;
};
static struct heard heard;
static bool revoked;    /* RELEASE is answered so; RESERVE always is */
static bool drop_match; /* the next MATCH is carried out, and its answer never comes */

static bool hear(struct fake *f)
{
	struct proto_quiesced_req q;
	struct fake_reply r;
	const char *bad;

	if (f->h.op == PROTO_OP_RELEASE) {
		heard.n_releases++;
		return revoked ? fake_answer_error(f, PROTO_STATUS_REVOKED, "lease", "old", 0)
			       : fake_answer_release(f);
	}
	if (f->h.op == PROTO_OP_RESERVE)
		return fake_answer_error(f, PROTO_STATUS_REVOKED, "lease", "old", 0);
	if (f->h.op != PROTO_OP_QUIESCED)
		return false;
	if (!fake_expect(f,
			 proto_quiesced_req_decode_as(f->version, f->body, f->h.len, &q, &bad) == 0,
			 "QUIESCED"))
		return false;
	heard.n_quiesced++;
	heard.old_boot = q.old_boot;
	heard.instance = q.instance;
	proto_quiesced_rep_encode(fake_reply_begin(f, &r), &(struct proto_quiesced_rep){ 1, 3 });
	return fake_reply_send(f, &r);
}

/* Answers until the connection ends: MATCH, what hear() does, and what needs no body. */
static void answer_all(struct fake *f)
{
	while (fake_receive(f)) {
		if (f->h.op == PROTO_OP_MATCH) {
			if (drop_match) {
				drop_match = false;
				return;
			}
			if (!fake_answer_match(f, 99, 0, 2, 0))
				return;
		} else if (f->h.op == PROTO_OP_OPEN) {
			if (!fake_answer_open(f))
				return;
		} else if (!hear(f)) {
			struct fake_reply r;

			if (f->h.op == PROTO_OP_EXTEND)
				return; /* how tests end a life */
			(void)fake_reply_begin(f, &r);
			if (!fake_reply_send(f, &r))
				return;
		}
	}
}

static void serve_lives(struct fake *f)
{
	while (fake_hello(f)) {
		answer_all(f);
		f->boot.b[0]++;
	}
}

/* Ends the connection: EXTEND of a lease of its own, which the daemon does not answer. */
static void lose(pfx_namespace *ns, pfx_client *c)
{
	pfx_prompt none = { .struct_size = sizeof(none) };
	pfx_match_result m;
	uint64_t lease = match(ns, c, 9, &m);

	expect(c, pfx_extend(ns, lease, &none, &m), PFX_UNKNOWN_LEASE);
	expect(c, pfx_release(ns, lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
}

START_TEST(the_last_release_speaks_for_all)
{
	pfx_match_result m;
	uint64_t a, b;
	uint32_t n = 77;
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	memset(&heard, 0, sizeof(heard));
	fake.n_orphans = 3;
	fake.orphans_boot.b[0] = 0xb0;
	fake.speaks = (uint16_t)_i;
	fake_start(&fake, serve_lives);
	/* Not told by the first HELLO, which nothing was lost before. */
	c = client_at(fake.path);
	ns = open_ns(c, "m", 1);
	expect(c, pfx_ping(c, 0), PFX_OK);
	heard.n_quiesced = 0;
	a = match(ns, c, 1, &m);
	b = match(ns, c, 2, &m);
	lose(ns, c);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 0); /* a and b may be read still */
	expect(c, pfx_orphans(c, &n), PFX_OK);
	ck_assert_uint_eq(n, 3);
	expect(c, pfx_release(ns, a, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect(c, pfx_release(ns, a, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE); /* counts once */
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 0);
	expect(c, pfx_release(ns, b, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 1);
	ck_assert(proto_id_is_zero(&heard.old_boot) == (_i == 2)); /* all lives, or version 1 */
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 1); /* once */
	expect(c, pfx_orphans(c, &n), PFX_OK);
	ck_assert_uint_eq(n, 0);
	ck_assert_uint_eq(heard.n_releases, 0); /* the new daemon knows none of these leases */
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/* Leases that the caller never had: an answer or a release was lost.  Nobody can be reading. */
START_TEST(what_nobody_knows_of_is_given_back)
{
	pfx_match_result m;
	pfx_namespace *ns;
	uint32_t n = 77;
	uint64_t lease;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	memset(&heard, 0, sizeof(heard));
	fake_start(&fake, serve_lives);
	c = client_at(fake.path);
	ns = open_ns(c, "m", 1);
	fake.n_orphans = 1;
	drop_match = true;
	lease = match(ns, c, 1, &m); /* asked twice, of two lives */
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 2);
	ck_assert_uint_eq(heard.n_quiesced, 1); /* in front of OPEN */
	expect(c, pfx_orphans(c, &n), PFX_OK);
	ck_assert_uint_eq(n, 0);
	expect(c, pfx_release(ns, lease, 0, 0, 0, NULL), PFX_OK);
	fake.n_orphans = 0;
	lose(ns, c);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 1); /* nothing is left: nothing is said */
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/* The caller says it himself, for all leases at once. */
START_TEST(said_by_the_caller)
{
	pfx_match_result m;
	pfx_namespace *ns;
	uint64_t a, b;
	uint32_t n = 0;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	memset(&heard, 0, sizeof(heard));
	fake_start(&fake, serve_lives);
	c = client_at(fake.path);
	ns = open_ns(c, "m", 1);
	a = match(ns, c, 1, &m);
	b = match(ns, c, 2, &m);
	fake.n_orphans = 2;
	lose(ns, c);
	expect(c, pfx_quiesced(c, &n), PFX_OK);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(heard.n_quiesced, 1);
	ck_assert(proto_id_is_zero(&heard.old_boot));
	expect(c, pfx_release(ns, a, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect(c, pfx_release(ns, b, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 1);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/*
 * QUIESCED speaks of revoked leases too, so it is not said while the holder of one may be writing;
 * when he has released it, it is.
 */
START_TEST(revoked_and_not_done)
{
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_match_result m;
	pfx_namespace *ns;
	uint64_t lost, a;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	memset(&heard, 0, sizeof(heard));
	fake_start(&fake, serve_lives);
	c = client_at(fake.path);
	ns = open_ns(c, "m", 1);
	lost = match(ns, c, 1, &m);
	fake.n_orphans = 2;
	lose(ns, c);
	a = match(ns, c, 2, &m);
	expect(c, pfx_reserve(ns, a, 1, 0, &v), PFX_REVOKED);
	expect(c, pfx_release(ns, lost, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 0);
	revoked = true;
	expect(c, pfx_release(ns, a, 0, 0, 0, NULL), PFX_REVOKED);
	revoked = false;
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(heard.n_quiesced, 1);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/* Two clients of one process have different instances: neither speaks for the other. */
START_TEST(clients_are_strangers)
{
	struct proto_id first;
	pfx_client *a;

	memset(&fake, 0, sizeof(fake));
	memset(&heard, 0, sizeof(heard));
	fake_start(&fake, serve_lives);
	a = client_at(fake.path);
	expect(a, pfx_quiesced(a, NULL), PFX_OK);
	first = heard.instance;
	ck_assert(!proto_id_is_zero(&first));
	pfx_close(a);
	a = client_at(fake.path);
	expect(a, pfx_quiesced(a, NULL), PFX_OK);
	ck_assert(!proto_id_equal(&first, &heard.instance));
	pfx_close(a);
	fake_stop(&fake);
}
END_TEST

/* ---- a real daemon --------------------------------------------------------------------------- */

static struct e2e_daemon d;

static void start(bool keep)
{
	const char *const args[] = { "--pool-blocks",  "24",  "--keep", keep ? "holder" : "none",
				     "--hold-timeout", "20s", NULL };

	if (!d.dir[0])
		ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
}

static void teardown(void)
{
	if (d.pid)
		(void)e2e_daemon_stop(&d, SIGINT); /* gives up what is kept */
	e2e_daemon_free(&d);
}

static void kill_and_start(bool keep)
{
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	start(keep);
}

static uint8_t byte_of(uint32_t seed, uint32_t block)
{
	return (uint8_t)(seed * 7 + block * 31 + 1);
}

/* Stores what is missing of a prompt, releases; blocks that were there before. */
static uint32_t store(pfx_client *c, pfx_namespace *ns, uint32_t seed)
{
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	pfx_match_result m;
	uint32_t block = 0, had;

	match(ns, c, seed, &m);
	had = m.n_device;
	for (uint32_t i = 0; i < m.n_runs; i++)
		for (uint32_t j = 0; j < m.runs[i].len; j++, block++) {
			const uint8_t *p = pfx_slot(ns, m.runs[i].start + j);

			for (uint32_t b = 0; b < BLOCK; b++)
				ck_assert_uint_eq(p[b], byte_of(seed, block));
		}
	if (had < KEYS && pfx_reserve(ns, m.lease, KEYS - had, 0, &v) == 0) {
		for (uint32_t i = 0; i < v.n_runs; i++)
			for (uint32_t j = 0; j < v.runs[i].len; j++, block++)
				memset(pfx_slot(ns, v.runs[i].start + j), byte_of(seed, block),
				       BLOCK);
		expect(c, pfx_commit(ns, m.lease, v.n, NULL, 0, 0, &k), PFX_OK);
	}
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	return had;
}

/* Others fill the pool several times over. */
static void fill_the_pool(void)
{
	pfx_client *c = e2e_connect(&d);
	pfx_namespace *ns = open_ns(c, "m", 1);

	for (uint32_t seed = 100; seed < 130; seed++)
		(void)store(c, ns, seed);
	pfx_close(c);
}

static uint32_t n_leases(void)
{
	char *json = e2e_admin(&d, "{\"op\":\"pins\"}");
	const char *at = strstr(json, "\"total\":");
	uint32_t n = at ? (uint32_t)strtoul(at + 8, NULL, 10) : UINT32_MAX;

	pfx_free_string(json);
	return n;
}

/* Nothing is wrong with the daemon's books, and so many leases are held. */
static void expect_leases(uint32_t n)
{
	unsigned long end = e2e_now_ms() + 10000;
	char *json;

	while (n_leases() != n && e2e_now_ms() < end)
		e2e_sleep_ms(2);
	ck_assert_uint_eq(n_leases(), n);
	json = e2e_admin(&d, "{\"op\":\"audit\"}");
	ck_assert_msg(strstr(json, "\"clean\":true") != NULL, "%s", json);
	pfx_free_string(json);
}

/*
 * A worker in the middle of a step: it reads what it leased and writes what it reserved, over the
 * end of the daemon, while others fill the pool.  Then it says that it is done.
 */
START_TEST(a_step_outlives_the_daemon)
{
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	uint8_t *reads[KEYS], *writes[2];
	uint32_t slots[KEYS], keys[KEYS * 16], n = 0;
	pfx_match_result m, own;
	pfx_prompt p;
	uint64_t reuse;
	pfx_namespace *ns;
	pfx_client *c;

	start(true);
	c = e2e_connect(&d);
	ns = open_ns(c, "m", 1);
	ck_assert_uint_eq(store(c, ns, 1), 0);
	match(ns, c, 1, &m);
	ck_assert_uint_eq(m.n_device, KEYS);
	for (uint32_t i = 0; i < m.n_runs; i++)
		for (uint32_t j = 0; j < m.runs[i].len; j++) {
			slots[n] = m.runs[i].start + j;
			reads[n++] = pfx_slot(ns, m.runs[i].start + j);
		}
	reuse = m.reuse;
	match(ns, c, 2, &own);
	expect(c, pfx_reserve(ns, own.lease, 2, 0, &v), PFX_OK);
	writes[0] = pfx_slot(ns, v.runs[0].start);
	writes[1] = pfx_slot(ns, v.runs[v.n_runs - 1].start + v.runs[v.n_runs - 1].len - 1);
	for (int round = 0; round < 3; round++) {
		kill_and_start(true);
		fill_the_pool();
		memset(writes[0], 0x51 + round, BLOCK);
		memset(writes[1], 0x61 + round, BLOCK);
		for (uint32_t i = 0; i < KEYS; i++)
			for (uint32_t b = 0; b < BLOCK; b++)
				ck_assert_uint_eq(reads[i][b], byte_of(1, i));
		fill_the_pool();
		ck_assert_uint_eq(writes[0][BLOCK - 1], 0x51 + round);
		ck_assert_uint_eq(writes[1][0], 0x61 + round);
		expect(c, pfx_commit(ns, own.lease, 2, NULL, 0, 0, &k), PFX_UNKNOWN_LEASE);
		expect(c, pfx_orphans(c, &n), PFX_OK);
		ck_assert_uint_eq(n, 2);
		ck_assert_ptr_eq(pfx_slot(ns, slots[0]), reads[0]); /* the mapping that was there */
		ck_assert_int_eq(pfx_slot_stale(ns, slots[0], reuse), 0);
		expect_leases(2);
	}
	/* What it holds is a hit for others too, and what it reserved never becomes one. */
	{
		pfx_client *other = e2e_connect(&d);
		pfx_namespace *theirs = open_ns(other, "m", 1);

		ck_assert_uint_eq(store(other, theirs, 1), KEYS);
		ck_assert_uint_eq(store(other, theirs, 2), 0);
		pfx_close(other);
	}
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect_leases(2); /* the other one goes on */
	expect(c, pfx_release(ns, own.lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect_leases(0);
	fill_the_pool();
	ck_assert_int_eq(pfx_slot_stale(ns, slots[KEYS - 1], reuse),
			 1); /* given away, and told so */
	prompt_of(1, keys, &p);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	pfx_close(c);
}
END_TEST

/* Requests go on with full hits after each end: by a kill, by a stop, by a new program in place. */
START_TEST(hits_go_on)
{
	static const int ends[] = { SIGKILL, SIGTERM, SIGUSR2 };
	pfx_client *c;
	pfx_namespace *ns;
	uint8_t *slot;

	start(true);
	c = e2e_connect(&d);
	ns = open_ns(c, "m", 1);
	ck_assert_uint_eq(store(c, ns, 1), 0);
	slot = pfx_slot(ns, 0);
	for (int round = 0; round < 6; round++) {
		int end = ends[round % 3];
		uint8_t before[16], after[16];
		unsigned long until = e2e_now_ms() + 15000;

		expect(c, pfx_boot_id(c, before), PFX_OK);
		if (end == SIGUSR2) {
			ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
			do { /* the same process, another program */
				e2e_sleep_ms(5);
			} while ((pfx_boot_id(c, after) != PFX_OK ||
				  memcmp(before, after, 16) == 0) &&
				 e2e_now_ms() < until);
		} else {
			ck_assert_int_ne(e2e_daemon_stop(&d, end), -1);
			start(true);
		}
		ck_assert_uint_eq(store(c, ns, 1), KEYS);
		expect(c, pfx_boot_id(c, after), PFX_OK);
		ck_assert_mem_ne(before, after, 16);
		ck_assert_ptr_eq(pfx_slot(ns, 0), slot);
		ck_assert_uint_eq(store(c, ns, 2 + (uint32_t)round), 0);
	}
	expect_leases(0);
	pfx_close(c);
}
END_TEST

/* A worker with leases in many lives speaks for all of them with one word. */
START_TEST(many_lives_one_word)
{
	pfx_match_result m;
	uint32_t n = 0;
	pfx_namespace *ns;
	pfx_client *c;

	start(true);
	c = e2e_connect(&d);
	ns = open_ns(c, "m", 1);
	(void)store(c, ns, 1);
	for (int life = 0; life < 4; life++) {
		match(ns, c, 1, &m);
		kill_and_start(true);
		expect(c, pfx_ping(c, 0), PFX_OK);
		expect(c, pfx_orphans(c, &n), PFX_OK);
		ck_assert_uint_eq(n, (uint32_t)life + 1);
	}
	expect_leases(4);
	expect(c, pfx_quiesced(c, NULL), PFX_OK);
	expect_leases(0);
	expect(c, pfx_orphans(c, &n), PFX_OK);
	ck_assert_uint_eq(n, 0);
	ck_assert_uint_eq(store(c, ns, 1), KEYS);
	pfx_close(c);
}
END_TEST

/* Without a keeper another pool comes: old bytes stay readable, and nothing of them is believed. */
START_TEST(nothing_kept)
{
	pfx_match_result m;
	uint32_t n = 77, slot;
	uint8_t *old;
	pfx_namespace *ns;
	pfx_client *c;

	start(false);
	c = e2e_connect(&d);
	ns = open_ns(c, "m", 1);
	(void)store(c, ns, 1);
	match(ns, c, 1, &m);
	slot = m.runs[0].start;
	old = pfx_slot(ns, slot);
	kill_and_start(false);
	ck_assert_int_eq(pfx_slot_stale(ns, slot, m.reuse), 0); /* nobody has asked yet */
	expect(c, pfx_ping(c, 0), PFX_OK);
	expect(c, pfx_orphans(c, &n), PFX_OK);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(pfx_slot_stale(ns, slot, m.reuse), 1);
	ck_assert_ptr_ne(pfx_slot(ns, slot), old);
	ck_assert_uint_eq(old[5], byte_of(1, 0));
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	ck_assert_uint_eq(store(c, ns, 1), 0);
	pfx_close(c);
}
END_TEST

/* A child has no writable mapping: its write is its own end, not another's block. */
START_TEST(a_child_cannot_write)
{
	pfx_namespace *ns, *reader;
	const uint8_t *seen;
	uint8_t *slot;
	pfx_client *c;
	int status;
	pid_t pid;

	start(false);
	c = e2e_connect(&d);
	ns = open_ns(c, "m", 1);
	reader = open_ns(c, "m", 2);
	(void)store(c, ns, 1);
	slot = pfx_slot(ns, 20); /* of nobody's */
	seen = pfx_slot(reader, 20);
	slot[9] = 0x33;
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL);
		if (seen[9] != 0x33)
			_exit(2); /* what is mapped read-only is there */
		slot[9] = 0x44;
		_exit(1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	ck_assert_uint_eq(slot[9], 0x33);
	/* And a child that closes its copy takes nothing away that it mapped itself meanwhile. */
	pid = fork();
	if (pid == 0) {
		void *mine = mmap(slot, BLOCK, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		if (mine != slot)
			_exit(3);
		slot[0] = 1;
		pfx_close(c);
		_exit(slot[0] == 1 ? 0 : 4);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_uint_eq(store(c, ns, 1), KEYS);
	pfx_close(c);
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "fake";
	Suite *s = suite_create("client_restart");
	TCase *t = tcase_create(which);

	tcase_set_timeout(t, 120);
	if (strcmp(which, "fake") == 0) {
		tcase_add_loop_test(t, a_memory_is_known_by_name_and_file, 0, ALL_CHANGES);
		tcase_add_loop_test(t, the_last_release_speaks_for_all, 1, 3);
		tcase_add_test(t, what_nobody_knows_of_is_given_back);
		tcase_add_test(t, said_by_the_caller);
		tcase_add_test(t, revoked_and_not_done);
		tcase_add_test(t, clients_are_strangers);
	} else {
		if (!e2e_daemon_binary())
			return E2E_SKIP;
		tcase_add_checked_fixture(t, NULL, teardown);
		tcase_add_test(t, a_step_outlives_the_daemon);
		tcase_add_test(t, hits_go_on);
		tcase_add_test(t, many_lives_one_word);
		tcase_add_test(t, nothing_kept);
		tcase_add_test(t, a_child_cannot_write);
	}
	suite_add_tcase(s, t);
	return test_run(s);
}
