/*
 * test_restore_graft.c - the daemon is killed while a COMMIT hangs an island at what is before it;
 * damage makes an island of blocks that a lease holds.
 */
#include "daemon/ledger.h"
#include "radix/internal.h"
#include "tests/engine/scene.h"

enum {
	SLOTS = 16,
	N_LIVES = 5,
};

static struct world w;
static struct world_config config;
static const uint8_t digests[2 * 16] = "the first block.the second one.";
static const uint8_t eight[8 * 16] =
	"the first block.the second one..the third block.the fourth one.."
	"the fifth block.the sixth one...the 7th block...the last block.";

/*
 * The second of two blocks is an island already, onto which the COMMIT of both hangs it.  Wherever
 * that is cut short, the first one's slot is the worker's until it lets go.
 */
START_TEST(onto_an_island)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_prompt x = { 0 };
	bool killed = true;

	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("seed");
	for (uint64_t n = 1; killed; n++) {
		struct proto_reserve_req r = { .n = 1 };
		struct proto_commit_req c = { .n = 1 };
		struct proto_reserve_rep slots;
		struct proto_commit_rep committed;
		struct proto_match_rep m;
		struct scene_place at;
		uint32_t slot;

		world_config_init(&config);
		config.engine.pool_blocks = SLOTS;
		config.keep = true;
		config.tiers.host_blocks = 4;
		ck_assert_int_eq(world_init(&w, &config), 0);
		at = scene_place(&w, 100, 1000, &o);
		x.keys = digests + 16;
		x.n_keys = 1;
		scene_match_with(&at, &x, PROTO_MATCH_ISLAND, 0, &m);
		c.lease = r.lease = m.lease;
		ck_assert_int_eq(world_reserve(at.c, &r, &slots), PROTO_STATUS_OK);
		ck_assert_int_eq(world_commit(at.c, &c, &committed), PROTO_STATUS_OK);
		scene_release(&at, m.lease, NULL);
		x.keys = digests;
		x.n_keys = 2;
		scene_match(&at, &x, &m);
		c.lease = r.lease = m.lease;
		c.n = r.n = 2;
		ck_assert_int_eq(world_reserve(at.c, &r, &slots), PROTO_STATUS_OK);
		slot = proto_run_at(slots.runs, 0).start;
		world_life_kill_at(&w, n);
		killed = world_commit(at.c, &c, &committed) == -ECONNRESET;
		world_life_kill_at(&w, 0);
		if (killed) {
			ck_assert_int_eq(world_life_restart(&w), 0);
			world_evict(&w, 0, SLOTS);
			ck_assert_int_ne(radix_slot_state(world_index(&w, 0), slot),
					 RADIX_SLOT_FREE);
		}
		world_kill(&w, 100);
		world_evict(&w, 0, SLOTS);
		ck_assert_int_eq(radix_slot_state(world_index(&w, 0), slot), RADIX_SLOT_FREE);
		world_deinit(&w);
	}
}
END_TEST

/* Of the blocks of a path, which are damaged before each start, and how many leases that makes. */
static const struct {
	uint8_t blocks[N_LIVES];
	uint8_t n_leases;
} damages[] = {
	{ { 0 }, 1 },
	{ { 0, 1 << 1 }, 1 },
	{ { 0, 1 << 1, 0, 1 << 3 }, 2 },
	{ { 0, 1 << 3, 0, 1 << 1 }, 2 },
	{ { 1 << 1 | 1 << 3 | 1 << 6 }, 3 },
	{ { 0, 1 << 3, 1 << 1 | 1 << 5, 1 << 7, 1 << 0 }, 3 },
};

static void damage(const struct radix_index *ix, uint32_t start, uint8_t blocks)
{
	for (uint32_t i = 0; i < 8; i++)
		if (blocks >> i & 1)
			ix->table.v[ix->slots.entry[start + i]].check ^= 16;
}

/*
 * A lease outlives restarts, and damage of blocks that it holds: what is before those blocks, and
 * what is between and behind them, stays the worker's over as many restarts as there are.
 */
START_TEST(damage_cuts_the_path)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_prompt x = { .keys = eight, .n_keys = 8 };
	struct proto_reserve_req r = { .n = 8 };
	struct proto_commit_req c = { .n = 1 };
	struct proto_reserve_rep slots;
	struct proto_commit_rep committed;
	struct proto_match_rep m;
	struct prefixd_restored restored;
	struct scene_place at;
	uint32_t start;

	world_config_init(&config);
	config.engine.pool_blocks = SLOTS;
	config.keep = true;
	ck_assert_int_eq(world_init(&w, &config), 0);
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("seed");
	at = scene_place(&w, 100, 1000, &o);
	scene_match(&at, &x, &m);
	c.lease = r.lease = m.lease;
	ck_assert_int_eq(world_reserve(at.c, &r, &slots), PROTO_STATUS_OK);
	start = proto_run_at(slots.runs, 0).start;
	ck_assert_uint_eq(proto_run_at(slots.runs, 0).len, 8);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(world_commit(at.c, &c, &committed), PROTO_STATUS_OK);
	for (uint32_t life = 0; life < N_LIVES + 2; life++) {
		if (life < N_LIVES)
			damage(world_index(&w, 0), start, damages[_i].blocks[life]);
		world_life_kill(&w);
		ck_assert_int_eq(world_life_restart(&w), 0);
		world_evict(&w, 0, SLOTS);
		for (uint32_t i = 0; i < 8; i++)
			ck_assert_msg(radix_slot_state(world_index(&w, 0), start + i) !=
					      RADIX_SLOT_FREE,
				      "block %u, life %u", i, life);
	}
	prefixd_engine_restored(w.engine, &restored);
	ck_assert_uint_eq(restored.n_leases, damages[_i].n_leases);
	world_kill(&w, 100);
	world_evict(&w, 0, SLOTS);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(radix_slot_state(world_index(&w, 0), start + i), RADIX_SLOT_FREE);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("graft");
	TCase *t = tcase_create("damage");

	scene_case(s, "graft", onto_an_island);
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, damage_cuts_the_path, 0, radix_array_size(damages));
	suite_add_tcase(s, t);
	return scene_main(s);
}
