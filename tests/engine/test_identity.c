/*
 * test_identity.c - whose blocks may be served to whom: T01 T03 T04 T06 T07 T10 T44.
 */
#include "tests/engine/scene.h"

static struct world w;

static void begin(void)
{
	struct world_config config;

	world_config_init(&config);
	config.engine.pool_blocks = 256;
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static void count(uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = 500 + i;
}

/* Adapter and salt lie side by side in the name; a byte moved between them is a new name. */
START_TEST(framing)
{
	static const struct {
		const char *adapter, *salt;
	} names[] = {
		{ "a", "" },   { "", "a" },   { "ab", "c" },
		{ "a", "bc" }, { "abc", "" }, { "", "abc" },
	};
	struct scene_place at[radix_array_size(names)];
	struct scene_prompt p;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	for (uint32_t i = 0; i < radix_array_size(names); i++) {
		struct proto_open_req o = world_open_req("m");

		o.adapter = world_text(names[i].adapter);
		at[i] = scene_place(&w, 100 + i, 1000, &o);
		at[i].salt = world_text(names[i].salt);
		p = scene_tokens(&at[i], tokens, 16);
		/* Nothing of the names before, everything of its own afterwards. */
		ck_assert_uint_eq(scene_look(&at[i], &p, NULL), 0);
		ck_assert_uint_eq(scene_put(&at[i], &p, (uint8_t)i), 4);
		ck_assert_uint_eq(scene_look(&at[i], &p, NULL), 4);
	}
	for (uint32_t i = 0; i < radix_array_size(names); i++)
		for (uint32_t k = 0; k < i; k++)
			ck_assert(at[i].ns.ns != at[k].ns.ns ||
				  strcmp(names[i].salt, names[k].salt) != 0);
	world_deinit(&w);
}
END_TEST

/* Every text field of OPEN against its neighbours, by the digest that comes back. */
START_TEST(framing_of_open)
{
	struct proto_open_rep rep;
	struct world_client *c;
	uint8_t digests[64][32];
	uint32_t n = 0;

	begin();
	c = world_worker(&w, 100, 1000);
	for (uint32_t cut = 1; cut < 5; cut++) {
		static const char text[] = "abcdef";
		struct proto_open_req o[4];

		for (uint32_t k = 0; k < 4; k++)
			o[k] = world_open_req("m");
		o[0].model = (struct proto_span){ text, cut };
		o[0].revision = (struct proto_span){ &text[cut], 6 - cut };
		o[1].scales = (struct proto_span){ text, cut };
		o[1].windows = (struct proto_span){ &text[cut], 6 - cut };
		o[2].windows = (struct proto_span){ text, cut };
		o[2].adapter = (struct proto_span){ &text[cut], 6 - cut };
		o[3].adapter = (struct proto_span){ text, cut };
		o[3].engine = (struct proto_span){ &text[cut], 6 - cut };
		for (uint32_t k = 0; k < 4; k++) {
			ck_assert_int_eq(world_open(c, &o[k], &rep), PROTO_STATUS_OK);
			memcpy(digests[n], rep.digest.p, 32);
			for (uint32_t j = 0; j < n; j++)
				ck_assert(memcmp(digests[j], digests[n], 32) != 0);
			n++;
		}
	}
	world_deinit(&w);
}
END_TEST

/* The engine's digests may be equal under two adapters; the namespaces keep them apart. */
START_TEST(equal_digests)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place base, lora;
	uint8_t digests[4 * 16];
	struct scene_prompt p = { .keys = digests, .n_keys = 4 };

	begin();
	for (uint32_t i = 0; i < sizeof(digests); i++)
		digests[i] = (uint8_t)(i * 7);
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("probe");
	base = scene_place(&w, 100, 1000, &o);
	o.adapter = world_text("lora@1");
	lora = scene_place(&w, 101, 1000, &o);
	ck_assert_uint_eq(scene_put(&base, &p, 1), 4);
	ck_assert_uint_eq(scene_look(&lora, &p, NULL), 0);
	/* Not by way of a single digest either. */
	{
		struct proto_match_req m = { .has = PROTO_HAS_ALL,
					     .ns = lora.ns.ns,
					     .flags = PROTO_MATCH_ISLAND,
					     .n_tokens = 4,
					     .keys = { digests + 32, 16 } };
		struct proto_match_rep rep;

		ck_assert_int_eq(world_match(lora.c, &m, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(rep.n_device, 0);
		m.ns = base.ns.ns;
		ck_assert_int_eq(world_match(base.c, &m, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(rep.n_device, 1);
	}
	ck_assert_uint_eq(scene_put(&lora, &p, 2), 4);
	world_deinit(&w);
}
END_TEST

/* A field that is not there is an error with its name, in each operation, never a default. */
START_TEST(missing_fields)
{
	static const char *const names[] = { "ns", "tenant", "salt" };
	struct proto_open_req o = world_open_req("m");
	struct scene_place at;
	struct prefixd_counters n;

	begin();
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < 3; i++) {
		struct proto_match_req m = { .ns = at.ns.ns };
		struct proto_probe_req p = { .ns = at.ns.ns };
		struct proto_explain_req x = { .ns = at.ns.ns };
		struct proto_match_rep mr;
		struct proto_probe_rep pr;
		struct proto_explain_rep xr;

		m.has = p.has = x.has = (uint8_t)(PROTO_HAS_ALL & ~(1u << i));
		ck_assert_int_eq(world_match(at.c, &m, &mr), PROTO_STATUS_MISSING_FIELD);
		ck_assert_str_eq(at.c->error_field, names[i]);
		ck_assert_int_eq(world_probe(at.c, &p, &pr), PROTO_STATUS_MISSING_FIELD);
		ck_assert_str_eq(at.c->error_field, names[i]);
		ck_assert_int_eq(world_explain(at.c, &x, &xr), PROTO_STATUS_MISSING_FIELD);
		ck_assert_str_eq(at.c->error_field, names[i]);
		m.has = PROTO_HAS_ALL; /* an empty salt is a salt */
		ck_assert_int_eq(world_match(at.c, &m, &mr), PROTO_STATUS_OK);
	}
	n = world_counters(&w);
	ck_assert_uint_eq(n.lookups, 3);
	ck_assert_uint_eq(n.errors, 9);
	world_deinit(&w);
}
END_TEST

/* A tenant that the peer's uid may not name is refused, whatever lies behind the number. */
START_TEST(foreign_tenant)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_match_rep rep;
	struct scene_place red, blue;
	struct scene_prompt p;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	red = scene_place(&w, 100, 1000, &o);
	blue = scene_place(&w, 101, 2000, &o);
	blue.tenant = 1;
	ck_assert_uint_eq(red.ns.ns, blue.ns.ns);
	p = scene_tokens(&red, tokens, 16);
	ck_assert_uint_eq(scene_put(&red, &p, 1), 4);
	ck_assert_uint_eq(scene_look(&blue, &p, NULL), 0);
	m.ns = blue.ns.ns;
	for (uint32_t tenant = 0; tenant < 9; tenant += 1 + (tenant == 0)) { /* 0, 2, 3 ... */
		m.tenant = tenant;
		ck_assert_int_eq(world_match(blue.c, &m, &rep), PROTO_STATUS_FORBIDDEN);
		ck_assert_str_eq(blue.c->error_field, "tenant");
	}
	ck_assert_uint_eq(world_counters(&w).forbidden, 8);
	world_deinit(&w);
}
END_TEST

/* The root's id tells that salt, tenant and namespace arrived; equal fields give the same one. */
START_TEST(root_ids)
{
	struct proto_open_req o[2] = { world_open_req("m"), world_open_req("m") };
	struct proto_id ids[8];
	struct proto_match_rep rep;
	struct scene_prompt p = { .n_tokens = 1 };
	uint32_t n = 0;

	begin();
	o[1].adapter = world_text("x");
	for (uint32_t ns = 0; ns < 2; ns++) {
		for (uint32_t tenant = 0; tenant < 2; tenant++) {
			for (uint32_t salt = 0; salt < 2; salt++) {
				struct scene_place at = scene_place(&w, 100, tenant ? 2000 : 1000,
								    &o[ns]);
				struct proto_probe_req q = { .has = PROTO_HAS_ALL, .ns = at.ns.ns };
				struct proto_probe_rep probed;

				at.tenant = q.tenant = tenant;
				at.salt = q.salt = world_text(salt ? "B" : "A");
				ck_assert_int_eq(world_probe(at.c, &q, &probed), PROTO_STATUS_OK);
				ids[n] = probed.root; /* before there is such a root */
				scene_match(&at, &p, &rep);
				ck_assert(proto_id_equal(&rep.root, &ids[n]));
				for (uint32_t k = 0; k < n; k++)
					ck_assert(!proto_id_equal(&ids[k], &ids[n]));
				n++;
				scene_release(&at, rep.lease, NULL);
				world_eof(at.c);
			}
		}
	}
	world_deinit(&w);
}
END_TEST

/* Placeholder tokens are equal; the content's digest differs in its last two bytes only. */
START_TEST(content_digest)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place at;
	struct proto_match_rep rep;
	uint8_t a[4][48], b[4][48];
	struct scene_prompt pa = { .keys = a[0], .n_keys = 4 };
	struct scene_prompt pb = { .keys = b[0], .n_keys = 4 };

	begin();
	o.flags = PROTO_OPEN_EXTRA;
	at = scene_place(&w, 100, 1000, &o);
	ck_assert_uint_eq(at.ns.key_len, 48);
	memset(a, 0x11, sizeof(a));
	memcpy(b, a, sizeof(a));
	b[0][46] ^= 0x80;
	b[0][47] ^= 0x01;
	ck_assert_uint_eq(scene_put(&at, &pa, 1), 4);
	ck_assert_uint_eq(scene_look(&at, &pb, &rep), 0);
	ck_assert_uint_eq(rep.tail_tokens, 0); /* nor a part of it */
	memcpy(b, a, sizeof(a));
	b[2][47] ^= 0x01;
	ck_assert_uint_eq(scene_look(&at, &pb, &rep), 2);
	ck_assert_uint_eq(rep.tail_tokens, 0);
	ck_assert_uint_eq(scene_look(&at, &pa, NULL), 4);
	world_deinit(&w);
}
END_TEST

/* bfloat16 and float16 have the same sizes and are two namespaces; "auto" is none. */
START_TEST(dtypes)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b, c;
	struct proto_open_rep rep;
	struct scene_prompt p;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	o.dtype = world_text("bfloat16");
	a = scene_place(&w, 100, 1000, &o);
	o.dtype = world_text("float16");
	b = scene_place(&w, 101, 1000, &o);
	o.scales = world_text("per-head 9c1f");
	c = scene_place(&w, 102, 1000, &o);
	ck_assert_uint_eq(a.ns.group, b.ns.group);
	p = scene_tokens(&a, tokens, 16);
	ck_assert_uint_eq(scene_put(&a, &p, 1), 4);
	ck_assert_uint_eq(scene_look(&b, &p, NULL), 0);
	ck_assert_uint_eq(scene_look(&c, &p, NULL), 0);
	o.dtype = world_text("auto");
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_BAD_NAMESPACE);
	ck_assert_str_eq(a.c->error_field, "dtype");
	o.dtype = world_text("");
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_BAD_NAMESPACE);
	ck_assert_str_eq(a.c->error_field, "dtype");
	world_deinit(&w);
}
END_TEST

/* Sizes that do not fit each other are refused, with the field and the right number. */
START_TEST(block_bytes)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep rep;
	struct world_client *c;

	begin();
	c = world_worker(&w, 100, 1000);
	o.block_bytes = 128;
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_BAD_NAMESPACE);
	ck_assert_str_eq(c->error_field, "block_bytes");
	ck_assert_ptr_nonnull(strstr(c->error_text, "64 bytes"));
	o.flags = PROTO_OPEN_OPAQUE;
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_OK);
	o.flags = 0;
	o.block_bytes = 64;
	o.layers = o.kv_heads = o.head_dim = UINT32_MAX; /* the product overflows 64 bits */
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_BAD_NAMESPACE);
	ck_assert_str_eq(c->error_field, "block_bytes");
	o = world_open_req("m");
	o.revision = world_text("");
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_BAD_NAMESPACE);
	ck_assert_str_eq(c->error_field, "revision");
	world_deinit(&w);
}
END_TEST

/* A client that computes the self-test wrongly is told so and does not come in. */
START_TEST(self_test)
{
	struct proto_hello_rep rep;
	struct proto_hello_req m;
	struct world_client *c;

	begin();
	for (uint32_t bit = 0; bit < 128; bit += 9) {
		c = world_connect(&w, 100, 1000, false);
		m = world_hello_req(c);
		m.self_test.b[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		ck_assert_int_eq(world_hello(c, &m, &rep), PROTO_STATUS_SELF_TEST);
		ck_assert_ptr_nonnull(strstr(c->error_text, "self-test mismatch"));
		ck_assert(c->closed && !c->used);
	}
	ck_assert_uint_eq(world_counters(&w).self_test_failed, 15);
	world_deinit(&w);
}
END_TEST

/* Another hash seed: a namespace of its own, and never silence about it. */
START_TEST(hash_seed)
{
	struct proto_open_req o = world_open_req("m");
	uint8_t digests[2 * 32] = { 1, 2, 3 };
	struct scene_prompt p = { .keys = digests, .n_keys = 2 };
	struct proto_explain_req x = { .has = PROTO_HAS_ALL, .n_tokens = 8 };
	struct proto_explain_rep why;
	struct scene_place a, b;
	struct proto_match_rep rep;
	struct proto_release_rep end;

	begin();
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 32;
	o.seed_probe = world_text("seed 1");
	a = scene_place(&w, 100, 1000, &o);
	ck_assert_uint_eq(a.ns.flags, 0);
	o.seed_probe = world_text("seed 2");
	b = scene_place(&w, 101, 1000, &o);
	ck_assert_uint_eq(b.ns.flags, PROTO_OPENED_SEED_MISMATCH);
	ck_assert_uint_ne(a.ns.ns, b.ns.ns);
	ck_assert_uint_eq(world_counters(&w).seed_mismatch, 1);
	ck_assert_uint_eq(scene_put(&a, &p, 1), 2);
	scene_match(&b, &p, &rep);
	ck_assert_uint_eq(rep.n_device, 0);
	ck_assert_uint_eq(rep.reason, PROTO_REASON_SEED_MISMATCH);
	scene_release(&b, rep.lease, &end);
	ck_assert_uint_eq(end.miss_tokens, 8);
	ck_assert_uint_eq(world_counters(&w).miss_seed_mismatch, 8);
	x.ns = b.ns.ns;
	x.keys = (struct proto_span){ digests, sizeof(digests) };
	ck_assert_int_eq(world_explain(b.c, &x, &why), PROTO_STATUS_OK);
	ck_assert_uint_eq(why.reason, PROTO_REASON_SEED_MISMATCH);
	world_deinit(&w);
}
END_TEST

/* When the other seed's namespace is gone, nothing says any more that it is there. */
START_TEST(hash_seed_alone_again)
{
	struct proto_open_req o = world_open_req("m");
	uint8_t digest[32] = { 1 };
	struct scene_prompt p = { .keys = digest, .n_keys = 1 };
	struct scene_place at[3];
	struct proto_match_rep rep;
	struct proto_open_rep again;

	begin();
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 32;
	for (uint32_t i = 0; i < 3; i++) {
		o.seed_probe = (struct proto_span){ &"123"[i], 1 };
		at[i] = scene_place(&w, 100 + i, 1000, &o);
		ck_assert_uint_eq(at[i].ns.flags, i ? PROTO_OPENED_SEED_MISMATCH : 0);
	}
	world_gone(at[1].c); /* the oldest is there yet */
	ck_assert_int_eq(world_open(at[2].c, &o, &again), PROTO_STATUS_OK);
	ck_assert_uint_eq(again.flags, PROTO_OPENED_SEED_MISMATCH);
	world_gone(at[0].c);
	ck_assert_int_eq(world_open(at[2].c, &o, &again), PROTO_STATUS_OK);
	ck_assert_uint_eq(again.ns, at[2].ns.ns);
	ck_assert_uint_eq(again.flags, 0);
	ck_assert_uint_eq(scene_look(&at[2], &p, &rep), 0);
	ck_assert_uint_eq(rep.reason, PROTO_REASON_NEVER_SEEN);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("identity");

	scene_case(s, "T01", framing);
	scene_case(s, "T01", framing_of_open);
	scene_case(s, "T03", equal_digests);
	scene_case(s, "T04", missing_fields);
	scene_case(s, "T04", foreign_tenant);
	scene_case(s, "T06", root_ids);
	scene_case(s, "T07", content_digest);
	scene_case(s, "T10", dtypes);
	scene_case(s, "T10", block_bytes);
	scene_case(s, "T44", self_test);
	scene_case(s, "T44", hash_seed);
	scene_case(s, "T44", hash_seed_alone_again);
	return scene_main(s);
}
