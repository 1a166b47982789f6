/*
 * test_restore.c - what the next life of the daemon makes of what the last one left: T11 T30 T33 F08.
 */
#include "tests/engine/scene.h"

#include "daemon/engine_internal.h"

enum {
	BT = 4,
	MANY = 16
};

static struct world w;
static struct world_config config;
static uint32_t tokens[MANY][32 * BT];

static void configure(uint32_t n_slots)
{
	world_config_init(&config);
	config.engine.pool_blocks = n_slots;
	config.keep = true;
	for (uint32_t p = 0; p < MANY; p++)
		for (uint32_t i = 0; i < radix_array_size(tokens[p]); i++)
			tokens[p][i] = 1000 * p + i;
}

static struct scene_prompt prompt(const struct scene_place *at, uint32_t p, uint32_t n)
{
	return scene_tokens(at, tokens[p], n * BT);
}

static struct scene_place begin(void)
{
	struct proto_open_req o = world_open_req("m");

	ck_assert_int_eq(world_init(&w, &config), 0);
	return scene_place(&w, 100, 1000, &o);
}

static void restart(void)
{
	world_life_kill(&w);
	ck_assert_int_eq(world_life_restart(&w), 0);
}

/* The same worker, connected again. */
static struct scene_place again(uint32_t pid)
{
	struct proto_open_req o = world_open_req("m");

	return scene_place(&w, pid, 1000, &o);
}

START_TEST(committed_blocks_hit)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;

	configure(64);
	at = begin();
	x = prompt(&at, 0, 8);
	ck_assert_uint_eq(scene_put(&at, &x, 0x11), 8);
	restart();
	at = again(100);
	x = prompt(&at, 0, 8);
	scene_match(&at, &x, &m);
	ck_assert_uint_eq(m.n_device, 8);
	ck_assert_uint_eq(scene_check_fill(&at, m.runs, 0x11), 8);
	scene_release(&at, m.lease, NULL);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("restore");
	TCase *t = tcase_create("lives");

	tcase_add_test(t, committed_blocks_hit);
	suite_add_tcase(s, t);
	return scene_main(s);
}
