/*
 * test_fields.c - every field that can be wrong in itself is refused by its name and changes
 * nothing; and what operators see of sessions, namespaces and leases.
 */
#include "daemon/engine_internal.h"
#include "tests/engine/scene.h"

static struct world w;
static struct scene_place at, digests;
static uint64_t lease;
static uint8_t keys[64];

static void begin(void)
{
	struct world_config config;
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .n_tokens = 9, .keys = { keys, 32 } };
	struct proto_match_rep rep;

	world_config_init(&config);
	ck_assert_int_eq(world_init(&w, &config), 0);
	at = scene_place(&w, 100, 1000, &o);
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("s");
	digests = at;
	ck_assert_int_eq(world_open(at.c, &o, &digests.ns), PROTO_STATUS_OK);
	m.ns = at.ns.ns;
	ck_assert_int_eq(world_match(at.c, &m, &rep), PROTO_STATUS_OK);
	lease = rep.lease;
}

/* One refused OPEN per field: the field is named, and no namespace appears. */
#define WRONG_OPEN(name, ...)                                                             \
	do {                                                                              \
		struct proto_open_req o = world_open_req("x");                            \
		struct prefixd_namespace_info info;                                       \
		struct proto_open_rep rep;                                                \
		uint32_t it = 0, n = 0;                                                   \
		__VA_ARGS__;                                                              \
		ck_assert_int_eq(world_open(at.c, &o, &rep), PROTO_STATUS_BAD_NAMESPACE); \
		ck_assert_str_eq(at.c->error_field, name);                                \
		while (prefixd_engine_next_namespace(w.engine, &it, &info))               \
			n++;                                                              \
		ck_assert_uint_eq(n, 2);                                                  \
	} while (0)
#define DIGEST                          \
	o.key_mode = PROTO_KEYS_DIGEST; \
	o.digest_len = 16;              \
	o.seed_probe = world_text("s")

START_TEST(open_fields)
{
	begin();
	WRONG_OPEN("key_mode", o.key_mode = 0);
	WRONG_OPEN("key_mode", o.key_mode = 3);
	WRONG_OPEN("flags", DIGEST; o.flags = PROTO_OPEN_EXTRA);
	WRONG_OPEN("model", o.model.n = 0);
	WRONG_OPEN("revision", o.revision.n = 0);
	WRONG_OPEN("dtype", o.dtype.n = 0);
	WRONG_OPEN("dtype", o.dtype = world_text("auto"));
	WRONG_OPEN("dtype", o.dtype = world_text("fp16"));
	WRONG_OPEN("dtype", o.dtype = world_text("auto"); o.flags = PROTO_OPEN_OPAQUE);
	WRONG_OPEN("layers", o.layers = 0);
	WRONG_OPEN("kv_heads", o.kv_heads = 0);
	WRONG_OPEN("head_dim", o.head_dim = 0);
	WRONG_OPEN("block_tokens", o.block_tokens = 0);
	WRONG_OPEN("block_tokens", o.block_tokens = 16377);
	WRONG_OPEN("block_bytes", o.block_bytes = 0);
	WRONG_OPEN("block_bytes", o.block_bytes = 63);
	WRONG_OPEN("block_bytes", o.block_bytes = UINT64_MAX; o.flags = PROTO_OPEN_OPAQUE);
	WRONG_OPEN("layout", o.layout.n = 0);
	WRONG_OPEN("tp_size", o.tp_size = 0);
	WRONG_OPEN("tp_size", o.tp_size = 2);
	WRONG_OPEN("tp_rank", o.tp_rank = 1);
	WRONG_OPEN("engine", o.engine.n = 0);
	WRONG_OPEN("digest_len", o.digest_len = 16);
	WRONG_OPEN("digest_len", DIGEST; o.digest_len = 15);
	WRONG_OPEN("digest_len", DIGEST; o.digest_len = 65);
	WRONG_OPEN("seed_probe", o.seed_probe = world_text("s"));
	WRONG_OPEN("seed_probe", DIGEST; o.seed_probe.n = 0);
	WRONG_OPEN("cold_codec", o.cold_codec = world_text("zip"));
	WRONG_OPEN("exact_layers", o.cold_codec = world_text("none");
		   o.exact_layers = world_text("0"));
	world_deinit(&w);
}
END_TEST

/* A bit that no version has given a meaning is a wrong body, whatever the namespace. */
START_TEST(open_flags)
{
	struct proto_open_req o = world_open_req("x");
	struct proto_open_rep rep;

	begin();
	o.flags = PROTO_OPEN_ALL + 1;
	ck_assert_int_eq(world_open(at.c, &o, &rep), PROTO_STATUS_BAD_BODY);
	ck_assert_str_eq(at.c->error_field, "flags");
	ck_assert_ptr_nonnull(strstr(at.c->error_text, "4 (STRIPE)"));
	world_deinit(&w);
}
END_TEST

/* What every type of element makes of a block. */
START_TEST(dtype_sizes)
{
	static const struct {
		const char *name;
		uint32_t bits;
	} types[] = {
		{ "float64", 64 },  { "float32", 32 }, { "float16", 16 },
		{ "bfloat16", 16 }, { "fp8_e4m3", 8 }, { "fp8_e5m2", 8 },
		{ "int8", 8 },      { "uint8", 8 },    { "int4", 4 },
	};
	struct proto_open_rep rep;

	begin();
	for (uint32_t i = 0; i < radix_array_size(types); i++) {
		struct proto_open_req o = world_open_req("m");

		o.dtype = world_text(types[i].name);
		o.block_bytes = 4 * types[i].bits;
		ck_assert_int_eq(world_open(at.c, &o, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(rep.block_bytes, o.block_bytes);
	}
	world_deinit(&w);
}
END_TEST

#define WRONG(op, status, name, type, rep, ...)                                    \
	do {                                                                       \
		struct proto_##type m = __VA_ARGS__;                               \
		struct proto_##rep r;                                              \
		struct prefixd_counters before = world_counters(&w), after;        \
		ck_assert_int_eq(world_##op(at.c, &m, &r), PROTO_STATUS_##status); \
		ck_assert_str_eq(at.c->error_field, name);                         \
		after = world_counters(&w);                                        \
		before.requests++;                                                 \
		before.errors++;                                                   \
		ck_assert(memcmp(&before, &after, sizeof(before)) == 0);           \
	} while (0)
#define WRONG_MATCH(name, ...) \
	WRONG(match, BAD_BODY, name, match_req, match_rep, { .has = PROTO_HAS_ALL, __VA_ARGS__ })
#define WRONG_EXTEND(name, ...) \
	WRONG(extend, BAD_BODY, name, extend_req, match_rep, { .lease = lease, __VA_ARGS__ })

/* Words that the session has not asked for, or that it has not so many of. */
START_TEST(words)
{
	struct prefixd_session *s;

	begin();
	WRONG(commit, BAD_BODY, "word", commit_req, commit_rep,
	      { .lease = lease, .n = 1, .word = 1 });
	WRONG(release, BAD_BODY, "word", release_req, release_rep, { .lease = lease, .word = 1 });
	WRONG(quiesced, BAD_BODY, "word", quiesced_req, quiesced_rep, { .word = UINT32_MAX });
	s = prefixd_session_find(w.engine, at.c->session);
	s->n_words = 2;
	WRONG(commit, BAD_BODY, "word", commit_req, commit_rep,
	      { .lease = lease, .n = 1, .word = 3 });
	WRONG(release, BAD_BODY, "word", release_req, release_rep, { .lease = lease, .word = 3 });
	WRONG(quiesced, BAD_BODY, "word", quiesced_req, quiesced_rep, { .word = 3 });
	WRONG(commit, WRONG_STATE, "n", commit_req, commit_rep,
	      { .lease = lease, .n = 1, .word = 2 });
	world_deinit(&w);
}
END_TEST

START_TEST(match_fields)
{
	begin();
	WRONG(match, BAD_BODY, "has", match_req, match_rep, { .has = 15 });
	WRONG(match, UNKNOWN_NAMESPACE, "ns", match_req, match_rep, { .has = 7, .ns = 77 });
	WRONG_MATCH("keys", .ns = at.ns.ns, .keys = { keys, 17 });
	WRONG_MATCH("tail", .ns = at.ns.ns, .tail = { keys, 3 });
	WRONG_MATCH("tail", .ns = at.ns.ns, .tail = { keys, 16 });
	WRONG_MATCH("tail", .ns = digests.ns.ns, .tail = { keys, 4 });
	WRONG_MATCH("n_tokens", .ns = at.ns.ns, .keys = { keys, 32 }, .n_tokens = 7);
	WRONG_MATCH("n_tokens", .ns = at.ns.ns, .tail = { keys, 8 }, .n_tokens = 1);
	WRONG_MATCH("n_tokens", .ns = at.ns.ns, .n_tokens = (1ull << 48) + 1);
	WRONG_MATCH("n_tokens", .ns = digests.ns.ns, .keys = { keys, 32 }, .n_tokens = 4);
	WRONG_MATCH("flags", .ns = at.ns.ns, .flags = 1u << 31);
	WRONG_MATCH("flags", .ns = at.ns.ns, .flags = PROTO_MATCH_ISLAND, .keys = { keys, 16 },
		    .n_tokens = 4);
	WRONG_MATCH("flags", .ns = digests.ns.ns, .flags = PROTO_MATCH_ISLAND);
	WRONG_MATCH("parent", .ns = digests.ns.ns, .parent = { keys, 16 });
	WRONG_MATCH("parent", .ns = digests.ns.ns, .flags = PROTO_MATCH_ISLAND,
		    .keys = { keys, 16 }, .n_tokens = 4, .parent = { keys, 15 });
	WRONG_EXTEND("keys", .keys = { keys, 15 });
	WRONG_EXTEND("n_tokens", .n_tokens = 8);
	WRONG_EXTEND("n_tokens", .keys = { keys, 32 }, .n_tokens = 15);
	WRONG_EXTEND("flags", .flags = PROTO_MATCH_ISLAND);
	WRONG_EXTEND("parent", .parent = { keys, 16 });
	world_deinit(&w);
}
END_TEST

START_TEST(other_fields)
{
	struct proto_reserve_req reserve = { .n = 2 };
	struct proto_reserve_rep got;

	begin();
	WRONG(reserve, BAD_BODY, "n", reserve_req, reserve_rep, { .lease = lease });
	WRONG(commit, BAD_BODY, "n", commit_req, commit_rep, { .lease = lease });
	WRONG(commit, WRONG_STATE, "n", commit_req, commit_rep, { .lease = lease, .n = 1 });
	reserve.lease = lease;
	ck_assert_int_eq(world_reserve(at.c, &reserve, &got), PROTO_STATUS_OK);
	WRONG(commit, BAD_BODY, "tail_tokens", commit_req, commit_rep,
	      { .lease = lease, .n = 1, .tail_tokens = 1 });
	WRONG(commit, BAD_BODY, "checksum_kind", commit_req, commit_rep,
	      { .lease = lease, .n = 1, .checksum_kind = 3, .checksums = { keys, 16 } });
	WRONG(commit, BAD_BODY, "checksums", commit_req, commit_rep,
	      { .lease = lease, .n = 2, .checksum_kind = 1, .checksums = { keys, 16 } });
	WRONG(commit, BAD_BODY, "checksums", commit_req, commit_rep,
	      { .lease = lease, .n = 1, .checksums = { keys, 16 } });
	WRONG(release, BAD_BODY, "flags", release_req, release_rep, { .lease = lease, .flags = 4 });
	WRONG(probe, BAD_BODY, "flags", probe_req, probe_rep,
	      { .has = 7, .ns = at.ns.ns, .flags = 2 });
	WRONG(report, UNKNOWN_NAMESPACE, "ns", report_req, empty, { .ns = 99 });
	WRONG(explain, BAD_BODY, "tail", explain_req, explain_rep,
	      { .has = 7, .ns = at.ns.ns, .tail = { keys, 1 } });
	{ /* and a right one, with checksums */
		struct proto_commit_req c = { .lease = lease,
					      .n = 2,
					      .checksum_kind = PROTO_CHECKSUM_XXH3_128,
					      .checksums = { keys, 32 } };
		struct proto_commit_rep done;

		ck_assert_int_eq(world_commit(at.c, &c, &done), PROTO_STATUS_OK);
		ck_assert_uint_eq(done.n_stored, 2);
	}
	world_deinit(&w);
}
END_TEST

/* A lease keeps keys for more than the pool can hold, and no further. */
START_TEST(too_many_keys)
{
	static uint8_t many[2048 * 16];
	struct proto_extend_req m = { .keys = { many, sizeof(many) } };
	struct proto_match_rep rep;
	uint32_t n = 0;
	int status;

	begin();
	m.lease = lease;
	do {
		n++;
		m.n_tokens = 8192ull * n + 100;
		status = world_extend(at.c, &m, &rep);
	} while (status == PROTO_STATUS_OK && n < 10);
	ck_assert_int_eq(status, PROTO_STATUS_LIMIT);
	ck_assert_str_eq(at.c->error_field, "keys");
	ck_assert_uint_eq(n, 2);
	scene_release(&at, lease, NULL);
	world_deinit(&w);
}
END_TEST

/* ---- what operators see ---------------------------------------------------------------------- */

START_TEST(looking)
{
	struct prefixd_namespace_info ns;
	struct prefixd_session_info s;
	struct prefixd_lease_info l;
	struct prefixd_group_info g;
	struct proto_reserve_req r = { .n = 2 };
	struct proto_reserve_rep got;
	struct proto_commit_req c = { .n = 1 };
	struct proto_commit_rep done;
	struct proto_report_req report = {
		.ttft_us = 1, .tpot_us = 2, .input_tokens = 3, .running = 4, .waiting = 5
	};
	struct proto_empty none;
	uint32_t it = 0;
	uint64_t it64 = 0;

	begin();
	r.lease = c.lease = lease;
	report.ns = at.ns.ns;
	ck_assert_int_eq(world_reserve(at.c, &r, &got), PROTO_STATUS_OK);
	ck_assert_int_eq(world_commit(at.c, &c, &done), PROTO_STATUS_OK);
	ck_assert_int_eq(world_report(at.c, &report, &none), PROTO_STATUS_OK);
	world_advance(&w, 5000);
	ck_assert(prefixd_engine_next_group(w.engine, &it, &g));
	ck_assert_uint_eq(g.n_slots, 64);
	ck_assert_uint_eq(g.slot_bytes, 64);
	ck_assert(!prefixd_engine_next_group(w.engine, &it, &g));
	it = 0;
	ck_assert(prefixd_engine_next_namespace(w.engine, &it, &ns));
	ck_assert_uint_eq(ns.id, at.ns.ns);
	ck_assert_str_eq(ns.model, "m");
	ck_assert_str_eq(ns.revision, "r1");
	ck_assert_str_eq(ns.dtype, "float16");
	ck_assert_str_eq(ns.adapter, "");
	ck_assert_str_eq(ns.engine, "test 1");
	ck_assert_uint_eq(ns.n_blocks, 1);
	ck_assert_uint_eq(ns.n_sessions, 1);
	ck_assert(prefixd_engine_next_namespace(w.engine, &it, &ns));
	ck_assert_int_eq(ns.mode, RADIX_KEYS_DIGEST);
	ck_assert_uint_eq(ns.n_blocks, 0);
	ck_assert(!prefixd_engine_next_namespace(w.engine, &it, &ns));
	it = 0;
	ck_assert(prefixd_engine_next_session(w.engine, &it, w.now_ns, &s));
	ck_assert_uint_eq(s.pid, 100);
	ck_assert_str_eq(s.name, "worker");
	ck_assert_uint_eq(s.age_ns, 5000);
	ck_assert_uint_eq(s.n_leases, 1);
	ck_assert_uint_eq(s.n_namespaces, 2);
	ck_assert_uint_eq(s.requests, 7);
	ck_assert_uint_eq(s.ttft_us + 10 * s.tpot_us + 100 * s.input_tokens + 1000 * s.running +
				  10000 * s.waiting,
			  54321);
	ck_assert(!s.orphan);
	ck_assert(!prefixd_engine_next_session(w.engine, &it, w.now_ns, &s));
	world_eof(at.c);
	ck_assert(prefixd_engine_next_lease(w.engine, &it64, w.now_ns, &l));
	ck_assert_uint_eq(l.id, lease);
	ck_assert_uint_eq(l.pid, 100);
	ck_assert_uint_eq(l.uid, 1000);
	ck_assert_uint_eq(l.ns, at.ns.ns);
	ck_assert_uint_eq(l.n_blocks, 1);
	ck_assert_uint_eq(l.n_reserved, 1);
	ck_assert_uint_eq(l.age_ns, 5000);
	ck_assert(l.orphan);
	ck_assert(!prefixd_engine_next_lease(w.engine, &it64, w.now_ns, &l));
	world_deinit(&w);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { open_fields,  open_flags,   dtype_sizes,   words,
				       match_fields, other_fields, too_many_keys, looking };
	Suite *s = suite_create("fields");

	for (uint32_t i = 0; i < radix_array_size(tests); i++)
		scene_case(s, "fields", tests[i]);
	return scene_main(s);
}
