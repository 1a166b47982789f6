/*
 * test_restore_damage.c - what is damaged, missing or short when the daemon comes back: T30; kills
 * while it comes back; names and payloads of what it took up: T05.
 */
#include "tests/engine/lives.h"
#include "tests/engine/tiers_scene.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/engine_ledger.h"
#include "daemon/engine_types.h"
#include "radix/internal.h"

static struct lives v;

/* A session over all tiers, killed at its end. */
static void killed(void)
{
	lives_configure(&v, 24, 24, true);
	lives_begin(&v);
	lives_script(&v);
	world_life_kill(&v.w);
}

/* ---- killed while it comes back -------------------------------------------------------------- */

START_TEST(killed_while_restoring)
{
	uint64_t n = 1;
	bool died = true;

	for (; died; n++) {
		killed();
		world_life_kill_at(&v.w, n);
		lives_restart(&v);
		died = v.w.engine == NULL;
		if (died)
			lives_restart(&v);
		world_life_kill_at(&v.w, 0);
		lives_audit(&v);
		lives_audit_end(&v);
		lives_end(&v);
	}
	fprintf(stderr, "killed at %llu points of a restart\n", (unsigned long long)n - 2);
	ck_assert_uint_gt(n, 100);
}
END_TEST

/* ---- no memory ------------------------------------------------------------------------------- */

START_TEST(every_allocation_fails_once)
{
	uint64_t n = 1, whole = 0, lost = 0, again = 0;

	for (;; n++) {
		struct prefixd_restored r;
		uint64_t failed;
		int ret;

		killed();
		failed = v.w.heap.n_failed;
		test_heap_fail_at(&v.w.heap, n);
		for (uint32_t i = 0; i < LIVES_LEASES; i++)
			v.leases[i].id = 0;
		ret = world_life_restart(&v.w);
		test_heap_fail_at(&v.w.heap, 0);
		failed = v.w.heap.n_failed - failed;
		if (ret < 0) { /* it did not even begin: the next try has it all */
			ck_assert_uint_eq(failed, 1);
			ck_assert_int_eq(world_life_restart(&v.w), 0);
			again++;
		}
		prefixd_engine_restored(v.w.engine, &r);
		ck_assert(r.done);
		for (uint32_t i = 0; i < LIVES_WORKERS; i++)
			lives_connect(&v, i);
		if (r.n_groups == 2 && r.n_groups_lost == 0) {
			lives_audit(&v);
			lives_audit_end(&v);
			whole++;
		} else { /* memory that was let go of as a whole is nobody's */
			memset(v.leases, 0, sizeof(v.leases));
			memset(v.acked, 0, sizeof(v.acked));
			lives_put(&v, 0, 0, 0, 6);
			lives_audit(&v);
			lost++;
		}
		lives_end(&v);
		if (!failed)
			break;
	}
	fprintf(stderr,
		"%llu allocations failed: %llu begun again, %llu lost a pool, %llu nothing\n",
		(unsigned long long)n - 1, (unsigned long long)again, (unsigned long long)lost,
		(unsigned long long)whole - 1);
	ck_assert_uint_gt(lost, 5);
}
END_TEST

/* ---- the ledger is damaged ------------------------------------------------------------------- */

static struct radix_store *ledger(void)
{
	return &v.w.life.ledger.store;
}

static uint8_t *byte_at(uint64_t off)
{
	return (uint8_t *)ledger()->base + off;
}

/* Which record the byte is of.  False: of the head, or of a chunk's own header. */
static bool record_at(uint64_t off, enum prefixd_ledger_kind *ret_kind, uint32_t *ret_in_chunk)
{
	static const size_t sizes[] = {
		sizeof(struct prefixd_group_record),   sizeof(struct prefixd_tenant_record),
		sizeof(struct prefixd_ns_record),      sizeof(struct prefixd_root_record),
		sizeof(struct prefixd_session_record), sizeof(struct prefixd_lease_record),
	};
	uint64_t chunk = (off - 4096) / 16384, in = (off - 4096) % 16384, word;

	if (off < 4096 || in < 64)
		return false;
	memcpy(&word, byte_at(4096 + chunk * 16384), sizeof(word));
	if (word >> 56 == 0 || word >> 56 > PREFIXD_LEDGER_N_KINDS)
		return false;
	*ret_kind = (enum prefixd_ledger_kind)((word >> 56) - 1);
	*ret_in_chunk = (uint32_t)((in - 64) / sizes[*ret_kind]);
	return true;
}

/* Acknowledged blocks that are there; each has its bytes. */
static uint32_t blocks_left(uint32_t ns)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < LIVES_PROMPTS; p++) {
		int h;

		if (!v.acked[ns][p])
			continue;
		h = lives_match(&v, 0, ns, p, v.acked[ns][p],
				PROTO_MATCH_PROMOTE | (ns % 2 ? PROTO_MATCH_ISLAND : 0));
		for (uint32_t i = 0; i < 4 && v.leases[h].n_path < v.acked[ns][p]; i++) {
			lives_idle(&v, 10000000);
			lives_extend(&v, h, 0, PROTO_MATCH_PROMOTE);
		}
		n += v.leases[h].n_path;
		lives_release(&v, h);
	}
	return n;
}

static uint32_t blocks_acked(uint32_t ns)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < LIVES_PROMPTS; p++)
		n += v.acked[ns][p];
	return n;
}

/* Restarts over a damaged ledger.  False: it is refused as a whole, with a sentence. */
static bool restart_damaged(void)
{
	struct prefixd_ledger_info info;
	char why[256] = "";
	enum prefixd_ledger_content content = prefixd_ledger_look(
		ledger(), v.w.config.engine.naming_key, &info, why, sizeof(why));

	if (content == PREFIXD_LEDGER_EMPTY || content == PREFIXD_LEDGER_STATE) {
		lives_restart(&v);
		memset(v.leases, 0, sizeof(v.leases)); /* what was held may be given away */
		for (uint32_t i = 0; i < LIVES_WORKERS; i++)
			lives_quiesced(&v, i);
		return content == PREFIXD_LEDGER_STATE;
	}
	ck_assert_uint_gt(strlen(why), 10);
	return false;
}

static void flip_and_look(uint64_t off, uint32_t bit, uint32_t *lost)
{
	enum prefixd_ledger_kind kind = PREFIXD_LEDGER_N_KINDS;
	uint32_t place, left[LIVES_NS], acked[LIVES_NS];
	bool is_record;

	killed();
	is_record = record_at(off, &kind, &place);
	*byte_at(off) ^= (uint8_t)(1u << bit);
	if (!restart_damaged()) {
		ck_assert_uint_lt(off, 4096);
		lives_end(&v);
		return;
	}
	for (uint32_t ns = 0; ns < LIVES_NS; ns++) {
		left[ns] = blocks_left(ns);
		acked[ns] = blocks_acked(ns);
		*lost += acked[ns] - left[ns];
		/* Who held what costs no block, nor does what can be read twice. */
		if (!is_record || kind == PREFIXD_LEDGER_SESSION || kind == PREFIXD_LEDGER_LEASE)
			ck_assert_msg(left[ns] == acked[ns], "byte %llu: namespace %u has %u of %u",
				      (unsigned long long)off, ns, left[ns], acked[ns]);
	}
	/* The other pool, the other namespaces: of what hangs on one record only one is short. */
	if (is_record && kind == PREFIXD_LEDGER_GROUP)
		ck_assert(left[2] == acked[2] ||
			  (left[0] == acked[0] && left[1] == acked[1] && left[3] == acked[3]));
	if (is_record && (kind == PREFIXD_LEDGER_NS || kind == PREFIXD_LEDGER_ROOT)) {
		uint32_t n_short = 0;

		for (uint32_t ns = 0; ns < LIVES_NS; ns++)
			n_short += left[ns] < acked[ns];
		ck_assert_uint_le(n_short, 1);
	}
	lives_put(&v, 1, 0, 11, 2);
	lives_end(&v);
}

START_TEST(bits_flip)
{
	static const uint8_t zero[4];
	uint32_t n = 0, lost = 0;
	uint64_t end, rng = 7;
	uint8_t *was;

	killed(); /* the same each time */
	end = ledger()->committed;
	was = malloc(end);
	ck_assert_ptr_nonnull(was);
	memcpy(was, byte_at(0), end);
	lives_end(&v);
	for (uint64_t off = 0; off < end; off += 4) {
		/* Of what is zero, one in two hundred. */
		if (memcmp(was + off, zero, 4) == 0 && test_rng_below(&rng, 200))
			continue;
		flip_and_look(off + test_rng_below(&rng, 4), test_rng_below(&rng, 8), &lost);
		n++;
	}
	free(was);
	fprintf(stderr, "%u bits flipped in %llu bytes, %u blocks lost\n", n,
		(unsigned long long)end, lost);
	ck_assert_uint_gt(n, 500);
	ck_assert_uint_gt(lost, 0);
}
END_TEST

START_TEST(cut_short)
{
	uint64_t end;

	killed();
	end = ledger()->committed;
	lives_end(&v);
	for (uint64_t len = 0; len < end; len += 2048) {
		killed();
		ledger()->committed = len;
		memset(byte_at(len), 0, end - len);
		(void)restart_damaged();
		for (uint32_t ns = 0; ns < LIVES_NS; ns++)
			(void)blocks_left(ns);
		lives_forget(&v, 0);
		lives_put(&v, 1, 0, 0, 6);
		if (blocks_left(0) != 6)
			world_fail(&v.w, "with %llu of %llu bytes", (unsigned long long)len,
				   (unsigned long long)end);
		lives_end(&v);
	}
}
END_TEST

START_TEST(another_key_or_version)
{
	struct prefixd_ledger_info info;
	uint8_t key[32];
	char why[256];

	killed();
	memcpy(key, v.w.config.engine.naming_key, sizeof(key));
	ck_assert_int_eq(prefixd_ledger_look(ledger(), key, &info, why, sizeof(why)),
			 PREFIXD_LEDGER_STATE);
	ck_assert_uint_eq(info.n_lives, 1);
	ck_assert_uint_eq(info.n_groups, 2);
	ck_assert_mem_eq(&info.boot, &v.w.config.engine.boot, sizeof(info.boot));
	key[31] ^= 1;
	ck_assert_int_eq(prefixd_ledger_look(ledger(), key, &info, why, sizeof(why)),
			 PREFIXD_LEDGER_KEY);
	ck_assert_ptr_nonnull(strstr(why, "naming key"));
	key[31] ^= 1;
	for (uint32_t i = 1; i <= PREFIXD_LEDGER_ATTEMPTS; i++) {
		prefixd_ledger_begin(ledger());
		ck_assert_int_eq(prefixd_ledger_look(ledger(), key, &info, why, sizeof(why)),
				 PREFIXD_LEDGER_STATE);
		ck_assert_uint_eq(info.attempts, i);
	}
	prefixd_ledger_settled(ledger());
	(void)prefixd_ledger_look(ledger(), key, &info, why, sizeof(why));
	ck_assert_uint_eq(info.attempts, 0);
	*byte_at(0) ^= 1;
	ck_assert_int_eq(prefixd_ledger_look(ledger(), key, &info, why, sizeof(why)),
			 PREFIXD_LEDGER_FOREIGN);
	*byte_at(0) ^= 1;
	prefixd_ledger_set_version(ledger(), 7);
	ck_assert_int_eq(prefixd_ledger_look(ledger(), key, &info, why, sizeof(why)),
			 PREFIXD_LEDGER_VERSION);
	ck_assert_uint_eq(info.version, 7);
	ck_assert_ptr_nonnull(strstr(why, "version 7"));
	lives_end(&v);
}
END_TEST

/* T30: one record of the block table is damaged, and it alone is lost, with what hangs below it. */
START_TEST(one_entry_is_damaged)
{
	struct prefixd_restored r;
	struct radix_index *ix;
	uint64_t at;
	int h;

	for (uint32_t n = 0; n < 6; n++) {
		lives_configure(&v, 24, 0, false);
		lives_begin(&v);
		lives_put(&v, 0, 0, 0, 6);
		lives_put(&v, 0, 0, 1, 6);
		h = lives_match(&v, 0, 0, 0, 6, 0);
		ix = world_index(&v.w, 0);
		at = (uint64_t)((uint8_t *)&ix->table.v[ix->slots.entry[v.leases[h].held[n].slot]] -
				(uint8_t *)v.w.pools[0].table.store.base);
		lives_release(&v, h);
		world_life_kill(&v.w);
		((uint8_t *)v.w.pools[0].table.store.base)[at + n] ^= 0x10;
		lives_restart(&v);
		ck_assert_uint_eq(blocks_left(0), 6 + n);
		prefixd_engine_restored(v.w.engine, &r);
		ck_assert_uint_eq(r.index.n_taken, 6 + n);
		ck_assert_uint_eq(r.index.n_lost, 6 - n);
		lives_end(&v);
	}
}
END_TEST

/* ---- payloads -------------------------------------------------------------------------------- */

/* Blocks of prompt 0, in namespace 0; the n-th one's bytes are changed while the daemon is down. */
static void with_wrong_bytes(enum prefixd_verify_policy verify, uint32_t n, bool held)
{
	int h;
	uint32_t slot;

	lives_configure(&v, 24, 0, false);
	v.config.engine.verify = verify;
	lives_begin(&v);
	lives_put(&v, 0, 0, 0, 8);
	h = lives_match(&v, 1, 0, 0, 8, 0);
	slot = v.leases[h].held[n].slot;
	if (!held)
		lives_release(&v, h);
	world_life_kill(&v.w);
	{
		uint8_t junk[64];

		memset(junk, 0x99, sizeof(junk));
		world_write(&v.w, v.ns[0].group, slot, junk, sizeof(junk));
	}
}

/* Leading blocks of prompt 0 that a MATCH finds; nobody looks at bytes. */
static uint32_t found(uint32_t worker)
{
	struct world_client *c = v.c[worker];
	uint8_t keys[8 * 16];
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .ns = v.ns[0].ns, .n_tokens = 32 };
	struct proto_match_rep rep;
	struct proto_release_req r = { 0 };
	struct proto_release_rep end;

	lives_keys(&v, 0, 0, 0, 8, keys);
	m.keys = (struct proto_span){ keys, sizeof(keys) };
	ck_assert_int_eq(world_match(c, &m, &rep), PROTO_STATUS_OK);
	r.lease = rep.lease;
	ck_assert_int_eq(world_release(c, &r, &end), PROTO_STATUS_OK);
	return rep.n_device;
}

START_TEST(payloads_in_the_background)
{
	struct prefixd_restored r;

	with_wrong_bytes(PREFIXD_VERIFY_BACKGROUND, 5, false);
	lives_restart(&v);
	ck_assert_uint_eq(found(0), 8); /* it was not looked at yet */
	world_run_until_idle(&v.w);
	ck_assert_uint_eq(found(0), 5);
	prefixd_engine_restored(v.w.engine, &r);
	ck_assert_uint_eq(r.n_verified, 8);
	ck_assert_uint_eq(r.n_corrupt, 1);
	lives_end(&v);
}
END_TEST

START_TEST(payloads_before_anybody_is_served)
{
	struct proto_open_req o = world_open_req("tokens");
	struct prefixd_restored r;
	struct proto_open_rep rep;
	struct world_client *c;

	with_wrong_bytes(PREFIXD_VERIFY_FULL, 5, false);
	ck_assert_int_eq(world_life_restart(&v.w), 0);
	prefixd_engine_restored(v.w.engine, &r);
	ck_assert(!r.done);
	c = world_worker(&v.w, 100, 1000);
	ck_assert_int_eq(world_open(c, &o, &rep), -EINPROGRESS);
	world_run_until_idle(&v.w);
	ck_assert_int_eq(world_open_reply(c, &rep), PROTO_STATUS_OK);
	prefixd_engine_restored(v.w.engine, &r);
	ck_assert(r.done);
	v.c[0] = c;
	ck_assert_uint_eq(found(0), 5);
	lives_end(&v);
}
END_TEST

START_TEST(payloads_are_nobodys_business)
{
	struct prefixd_restored r;

	with_wrong_bytes(PREFIXD_VERIFY_OFF, 5, false);
	lives_restart(&v);
	world_run_until_idle(&v.w);
	ck_assert_uint_eq(found(0), 8);
	prefixd_engine_restored(v.w.engine, &r);
	ck_assert_uint_eq(r.n_verified, 0);
	lives_end(&v);
}
END_TEST

/* An orphan reads it: it goes with him. */
START_TEST(wrong_payloads_that_are_held)
{
	with_wrong_bytes(PREFIXD_VERIFY_BACKGROUND, 5, true);
	lives_restart(&v);
	world_run_until_idle(&v.w);
	ck_assert_uint_eq(found(0), 8);
	lives_quiesced(&v, 1);
	ck_assert_uint_eq(found(0), 5);
	lives_end(&v);
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

/* T05: what went down to Redis under a salt is found again under it, and under no other. */
START_TEST(names_after_a_restart)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place at, salted;
	struct scene_prompt x;
	struct proto_match_rep m;
	uint64_t lease;

	tiers_configure(BLOCKS, 0, true);
	tiers.config.keep = true;
	at = tiers_begin();
	salted = at;
	salted.salt = world_text("salt");
	x = tiers_prompt(&at, 0);
	ck_assert_uint_eq(scene_put(&salted, &x, 0x31), BLOCKS);
	world_run_until_idle(&tiers.w);
	tiers_put(&at, 1); /* pushes it out, into Redis */
	tiers_check_at(&salted, 0, 0, 0, BLOCKS);
	for (uint32_t life = 0; life < 3; life++) {
		world_life_kill(&tiers.w);
		ck_assert_int_eq(world_life_restart(&tiers.w), 0);
		at = scene_place(&tiers.w, 100, 1000, &o);
		salted = at;
		salted.salt = world_text("salt");
		scene_look(&at, &x, &m);
		ck_assert_uint_eq(m.n_device + m.n_host + m.n_redis, 0);
		if (life == 0) { /* comes up: its names are made when they are needed */
			ck_assert_uint_eq(scene_bring_up(&salted, &x, 0x31, &lease), BLOCKS);
			scene_release(&salted, lease, NULL);
			continue;
		}
		if (life == 1) { /* goes on behind members of an earlier life, and down again */
			struct scene_prompt y = tiers_prompt(&at, 2);

			ck_assert_uint_eq(scene_put(&at, &y, 0x32), BLOCKS);
			world_run_until_idle(&tiers.w);
		}
		scene_look(&salted, &x, &m);
		ck_assert_uint_eq(m.n_device + m.n_redis, BLOCKS);
	}
	ck_assert_uint_eq(scene_bring_up(&salted, &x, 0x31, &lease), BLOCKS);
	scene_release(&salted, lease, NULL);
	world_run_until_idle(&tiers.w);
	world_deinit(&tiers.w);
}
END_TEST

/* A prompt of an earlier life goes on: the new members' names hang on the old ones'. */
START_TEST(names_go_on)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place at;
	struct scene_prompt x;
	uint64_t lease;

	tiers_configure(BLOCKS, 0, true);
	tiers.config.keep = true;
	at = tiers_begin();
	x = tiers_prompt(&at, 0);
	x.n_keys = BLOCKS / 2;
	ck_assert_uint_eq(scene_put(&at, &x, 0x31), BLOCKS / 2);
	world_life_kill(&tiers.w);
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	x.n_keys = BLOCKS;
	ck_assert_uint_eq(scene_put(&at, &x, 0x31), BLOCKS / 2);
	world_run_until_idle(&tiers.w);
	tiers_put(&at, 1);
	tiers_check_at(&at, 0, 0, 0, BLOCKS);
	/* In the next daemon, which has nothing but Redis, they are found. */
	tiers.config.tiers.values = world_redis_detach(&tiers.w);
	world_deinit(&tiers.w);
	at = tiers_begin();
	scene_look(&at, &x, NULL);
	world_run_until_idle(&tiers.w);
	ck_assert_uint_eq(scene_bring_up(&at, &x, 0x31, &lease), BLOCKS);
	scene_release(&at, lease, NULL);
	world_run_until_idle(&tiers.w);
	world_deinit(&tiers.w);
}
END_TEST

/* Paths of hundreds of members, named at once. */
START_TEST(names_of_long_paths)
{
	enum {
		N = 900
	};
	static uint32_t tokens[N * BT];
	struct proto_open_req o = world_open_req("m");
	struct world_tiers_stats st;
	struct scene_place at;
	struct scene_prompt x;

	for (uint32_t i = 0; i < N * BT; i++)
		tokens[i] = i;
	tiers_configure(2 * N, 0, true);
	tiers.config.keep = true;
	at = tiers_begin();
	x = scene_tokens(&at, tokens, N / 3 * BT);
	ck_assert_uint_eq(scene_put(&at, &x, 0x31), N / 3);
	x = scene_tokens(&at, tokens + N / 3 * BT, N / 3 * 2 * BT);
	ck_assert_uint_eq(scene_put(&at, &x, 0x32), N / 3 * 2);
	world_life_kill(&tiers.w);
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	world_tiers_stats(&tiers.w, &st);
	ck_assert_uint_eq(st.names, N); /* in the first life; in this one nobody asked yet */
	/* The whole of the other prompt is missing behind each: Redis is asked for it. */
	x = scene_tokens(&at, tokens, N * BT);
	ck_assert_uint_eq(scene_look(&at, &x, NULL), N / 3);
	world_tiers_stats(&tiers.w, &st);
	ck_assert_uint_eq(st.names, N + N / 3);
	memmove(tokens, tokens + N / 3 * BT, N / 3 * 2 * BT * sizeof(tokens[0]));
	ck_assert_uint_eq(scene_look(&at, &x, NULL), N / 3 * 2);
	world_tiers_stats(&tiers.w, &st);
	ck_assert_uint_eq(st.names, 2 * N);
	world_run_until_idle(&tiers.w);
	world_deinit(&tiers.w);
}
END_TEST

/* Everything goes down in one step after another, each block named for it. */
START_TEST(names_of_all_that_goes_down)
{
	enum {
		N = 300
	};
	static uint32_t tokens[4 * N * BT];
	struct proto_open_req o = world_open_req("m");
	struct scene_place at;
	struct scene_prompt x;

	for (uint32_t i = 0; i < 4 * N * BT; i++)
		tokens[i] = i;
	tiers_configure(N, 0, true);
	tiers.config.keep = true;
	tiers.config.engine.index_blocks = 4 * N;
	at = tiers_begin();
	for (uint32_t p = 0; p < N / 4; p++) {
		x = scene_tokens(&at, tokens + (size_t)p * 4 * BT, 4 * BT);
		ck_assert_uint_eq(scene_put(&at, &x, 0x31), 4);
	}
	world_life_kill(&tiers.w);
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	x = scene_tokens(&at, tokens + 2 * N * BT, N * BT);
	ck_assert_uint_eq(scene_put(&at, &x, 0x32), N);
	world_run_until_idle(&tiers.w);
	for (uint32_t p = 0; p < N / 4; p++) {
		struct proto_match_rep m;

		x = scene_tokens(&at, tokens + (size_t)p * 4 * BT, 4 * BT);
		scene_look(&at, &x, &m);
		ck_assert_uint_eq(m.n_redis, 4);
	}
	world_run_until_idle(&tiers.w);
	world_deinit(&tiers.w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("restore-damage");
	TCase *t = tcase_create("restore");

	tcase_set_timeout(t, 120);
	tcase_add_test(t, killed_while_restoring);
	tcase_add_test(t, every_allocation_fails_once);
	tcase_add_test(t, another_key_or_version);
	tcase_add_test(t, cut_short);
	tcase_add_test(t, bits_flip);
	suite_add_tcase(s, t);
	t = tcase_create("payloads");
	tcase_add_test(t, payloads_in_the_background);
	tcase_add_test(t, payloads_before_anybody_is_served);
	tcase_add_test(t, payloads_are_nobodys_business);
	tcase_add_test(t, wrong_payloads_that_are_held);
	suite_add_tcase(s, t);
	scene_case(s, "T30", one_entry_is_damaged);
	t = tcase_create("T05");
	tcase_add_test(t, names_after_a_restart);
	tcase_add_test(t, names_go_on);
	tcase_add_test(t, names_of_long_paths);
	tcase_add_test(t, names_of_all_that_goes_down);
	suite_add_tcase(s, t);
	return scene_main(s);
}
