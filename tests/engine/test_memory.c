/*
 * test_memory.c - every allocation of a scripted session fails once.
 *
 * Whoever is told NO_MEMORY asks again and must then succeed with the result of an undisturbed run:
 * the failure changed nothing.  Every invariant is verified after each step, and in the end every
 * byte is given back.
 */
#include "tests/engine/scene.h"

#include <stdio.h>

#include "daemon/engine_internal.h"

static struct world w;

/* Calls once more after NO_MEMORY; any other refusal fails the test. */
#define DO(call)                                                                  \
	do {                                                                      \
		int status = (call);                                              \
		if (status == PROTO_STATUS_NO_MEMORY) {                           \
			ck_assert_uint_eq(w.heap.n_failed, 1);                    \
			status = (call);                                          \
		}                                                                 \
		ck_assert_msg(status == PROTO_STATUS_OK, "line %d: %s", __LINE__, \
			      proto_status_to_string((uint16_t)status));          \
	} while (0)

static struct world_client *connect(uint32_t pid)
{
	struct world_client *c = world_connect(&w, pid, 1000, false);
	struct proto_hello_rep rep;
	struct proto_hello_req m;

	if (!c->used) {
		ck_assert_uint_eq(w.heap.n_failed, 1);
		c = world_connect(&w, pid, 1000, false);
	}
	m = world_hello_req(c);
	DO(world_hello(c, &m, &rep));
	return c;
}

static struct proto_id op(void)
{
	static uint32_t n;
	struct proto_id id = { { 1 } };

	n++;
	memcpy(id.b + 4, &n, 4);
	return id;
}

static uint32_t reserved_left(const struct world_client *c, uint64_t lease)
{
	const struct prefixd_session *s = prefixd_session_find(w.engine, c->session);
	struct radix_list *it;

	radix_list_foreach(it, &s->leases) {
		const struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		if (l->id == lease)
			return l->n_reserved;
	}
	ck_abort_msg("no such lease");
}

/* COMMIT may stop in the middle; the rest is committed by the second call. */
static void commit_all(struct world_client *c, uint64_t lease)
{
	struct proto_commit_req m = { .lease = lease, .n = reserved_left(c, lease) };
	struct proto_commit_rep rep;
	int status;

	m.op_id = op();
	status = world_commit(c, &m, &rep);
	if (status == PROTO_STATUS_NO_MEMORY) {
		ck_assert_uint_eq(w.heap.n_failed, 1);
		m.n = reserved_left(c, lease);
		ck_assert_uint_gt(m.n, 0);
		status = world_commit(c, &m, &rep);
	}
	ck_assert_int_eq(status, PROTO_STATUS_OK);
	ck_assert_uint_eq(reserved_left(c, lease), 0);
}

static void script_tokens(struct world_client *c, uint32_t ns, uint32_t *tokens, uint32_t n_keys,
			  uint32_t want)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = ns,
				     .n_tokens = 4 * n_keys,
				     .keys = { tokens, n_keys * 16 } };
	struct proto_extend_req x = { .n_tokens = 8 * n_keys,
				      .keys = { tokens + 4 * n_keys, n_keys * 16 } };
	struct proto_reserve_req r = { .n = 2 * n_keys };
	struct proto_release_req rel = { 0 };
	struct proto_match_rep mr;
	struct proto_reserve_rep rr;
	struct proto_release_rep end;

	m.op_id = op();
	DO(world_match(c, &m, &mr));
	ck_assert_uint_eq(mr.n_device, want < n_keys ? want : n_keys);
	x.lease = r.lease = rel.lease = mr.lease;
	x.op_id = op();
	DO(world_extend(c, &x, &mr));
	if (want < 2 * n_keys) {
		r.op_id = op();
		DO(world_reserve(c, &r, &rr));
		ck_assert_uint_eq(rr.n, 2 * n_keys - want);
		commit_all(c, rel.lease);
	}
	rel.op_id = op();
	DO(world_release(c, &rel, &end));
	ck_assert_uint_eq(end.hit_device_tokens, 4 * want);
}

/* An island, its parents, and the graft between them. */
static void script_digests(struct world_client *c, uint32_t ns)
{
	uint8_t keys[8][16];
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = ns,
				     .flags = PROTO_MATCH_ISLAND,
				     .n_tokens = 16,
				     .keys = { keys[4], 64 } };
	struct proto_reserve_req r = { .n = 4 };
	struct proto_extend_req x = { .n_tokens = 16, .parent = { keys[3], 16 } };
	struct proto_reserve_rep rr;
	struct proto_match_rep mr;

	for (uint32_t i = 0; i < sizeof(keys); i++)
		keys[i / 16][i % 16] = (uint8_t)(i * 3 + 1);
	DO(world_match(c, &m, &mr));
	x.lease = r.lease = mr.lease;
	DO(world_reserve(c, &r, &rr));
	commit_all(c, x.lease);
	m.flags = 0;
	m.keys.p = keys[0];
	DO(world_match(c, &m, &mr));
	r.lease = mr.lease;
	DO(world_reserve(c, &r, &rr));
	commit_all(c, r.lease);
	DO(world_extend(c, &x, &mr));
	m.n_tokens = 32;
	m.keys.n = sizeof(keys);
	DO(world_match(c, &m, &mr));
	ck_assert_uint_eq(mr.n_device, 8);
	m.flags = PROTO_MATCH_ISLAND;
	m.keys = (struct proto_span){ keys[4], 64 };
	m.parent = (struct proto_span){ keys[3], 16 };
	DO(world_match(c, &m, &mr));
	ck_assert_uint_eq(mr.n_device, 4);
}

/* Many roots and leases at once, so that every table grows. */
static void script_many(struct world_client *c, uint32_t ns, uint32_t *tokens)
{
	for (uint32_t i = 0; i < 150; i++) {
		struct proto_match_req m = { .has = PROTO_HAS_ALL,
					     .ns = ns,
					     .salt = { &i, 4 },
					     .n_tokens = 4,
					     .keys = { tokens, 16 } };
		struct proto_match_rep mr;

		DO(world_match(c, &m, &mr));
		if (i % 3 == 0) {
			struct proto_reserve_req r = { .lease = mr.lease, .n = 1 };
			struct proto_reserve_rep rr;

			DO(world_reserve(c, &r, &rr));
			if (i % 2)
				commit_all(c, r.lease);
		}
	}
}

static void script(void)
{
	struct prefixd_tenant more[3] = { { .name = "red", .any_uid = true },
					  { .name = "x", .any_uid = true },
					  { .name = "y", .any_uid = true } };
	struct prefixd_event reload = { .type = PREFIXD_EVENT_RELOAD };
	struct prefixd_limits limits = w.config.engine.limits;
	struct proto_open_req o = world_open_req("m"), d = o, other = o;
	struct proto_open_rep ns, digests, rep;
	struct world_client *a = connect(100), *b = connect(101);
	uint32_t tokens[512];

	d.key_mode = PROTO_KEYS_DIGEST;
	d.digest_len = 16;
	d.seed_probe = world_text("seed");
	other.flags = PROTO_OPEN_OPAQUE;
	other.block_bytes = 4096;
	DO(world_open(a, &o, &ns));
	DO(world_open(b, &o, &ns));
	DO(world_open(a, &d, &digests));
	DO(world_open(a, &other, &rep));
	for (uint32_t i = 0; i < 6; i++) { /* the list of a session's namespaces grows */
		char model[2] = { (char)('0' + i), '\0' };

		o.model = world_text(model);
		DO(world_open(b, &o, &rep));
	}
	for (uint32_t i = 0; i < 512; i++)
		tokens[i] = i + 1;
	script_tokens(a, ns.ns, tokens, 64, 0);
	script_tokens(b, ns.ns, tokens, 64, 128);
	tokens[300] = 7; /* a split */
	script_tokens(b, ns.ns, tokens + 0, 64, 75);
	script_digests(a, digests.ns);
	script_many(b, ns.ns, tokens);
	limits.max_frame *= 2;
	reload.u.reload.tenants = more;
	reload.u.reload.n_tenants = 3;
	reload.u.reload.limits = &limits;
	world_step(&w, &reload);
	if (w.engine->n_tenants != 4 || w.engine->config.limits.max_frame != limits.max_frame) {
		ck_assert_uint_eq(w.heap.n_failed, 1);
		world_step(&w, &reload);
	}
	ck_assert_uint_eq(w.engine->n_tenants, 4);
	world_kill(&w, 101);
	world_advance(&w, 1000000);
	world_kill(&w, 100);
}

/* Runs the script with the n-th allocation failing; false when there is no n-th. */
static bool run(uint64_t n)
{
	struct world_config config;
	struct radix_stats st;
	bool failed;
	int r;

	world_config_init(&config);
	config.engine.pool_blocks = 512;
	config.engine.grace_ns = 1000;
	r = world_init(&w, &config);
	ck_assert_int_eq(r, 0);
	test_heap_fail_at(&w.heap, n);
	script();
	failed = w.heap.n_failed > 0;
	test_heap_fail_at(&w.heap, 0);
	world_advance(&w, 1000000);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 0);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY], 512);
	world_deinit(&w);
	return failed;
}

START_TEST(each_allocation)
{
	uint64_t n = 1;

	while (run(n))
		n++;
	fprintf(stderr, "%llu allocations failed, one per run\n", (unsigned long long)n - 1);
	ck_assert_uint_gt(n, 100);
}
END_TEST

/* Making the engine itself. */
START_TEST(creation)
{
	struct test_heap heap;
	struct prefixd_engine_config config;
	struct prefixd_engine *e = NULL;
	uint64_t n = 1;

	test_heap_init(&heap);
	prefixd_engine_config_init(&config);
	config.alloc = &heap.alloc;
	for (;; n++) {
		int r;

		test_heap_fail_at(&heap, n);
		r = prefixd_engine_new(&e, &config);
		if (r == 0)
			break;
		ck_assert_int_eq(r, -ENOMEM);
		ck_assert_uint_eq(heap.live_blocks, 0);
	}
	ck_assert_uint_gt(n, 3);
	ck_assert_ptr_null(prefixd_engine_free(e));
	ck_assert_ptr_null(prefixd_engine_free(NULL));
	ck_assert_uint_eq(heap.live_blocks, 0);
}
END_TEST

/* The steady state takes nothing from the allocator. */
START_TEST(steady_state)
{
	struct proto_open_req o = world_open_req("m");
	struct world_config config;
	struct scene_place at;
	struct scene_prompt p;
	uint32_t tokens[128];
	uint64_t takes = 0;

	world_config_init(&config);
	ck_assert_int_eq(world_init(&w, &config), 0);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t round = 0; round < 40; round++) {
		for (uint32_t i = 0; i < 128; i++)
			tokens[i] = i < 64 ? i : i + 100 * (round % 4);
		p = scene_tokens(&at, tokens, 128);
		if (round == 20)
			takes = w.heap.n_takes;
		scene_put(&at, &p, 1);
	}
	ck_assert_uint_eq(w.heap.n_takes, takes);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("memory");

	scene_case(s, "memory", each_allocation);
	scene_case(s, "memory", creation);
	scene_case(s, "memory", steady_state);
	return scene_main(s);
}
