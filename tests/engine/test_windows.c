/*
 * test_windows.c - namespaces that are read through a window: what OPEN takes, what a chat longer
 * than the pool finds, what those find who read everything, and what is left after a restart.
 */
#include "tests/engine/scene.h"

#include "daemon/engine_internal.h"
#include "radix/windows.h"

#include <stdlib.h>

enum {
	BT = 4,
	W = 4, /* blocks of the window */
	LONG = 96
};

static struct world w;
static struct world_config config;
static uint32_t tokens[3][LONG * BT];

static void setup(void)
{
	world_config_init(&config);
	for (uint32_t p = 0; p < 3; p++)
		for (uint32_t i = 0; i < LONG * BT; i++)
			tokens[p][i] = 1000 * (p + 1) + i;
}

static void begin(uint32_t n_slots)
{
	config.engine.pool_blocks = n_slots;
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static struct proto_open_req request(bool flag)
{
	struct proto_open_req o = world_open_req("m");

	o.windows = world_text("0:16");
	o.flags = flag ? PROTO_OPEN_WINDOWS : 0;
	return o;
}

static struct scene_place place(uint32_t pid, bool flag)
{
	struct proto_open_req o = request(flag);

	return scene_place(&w, pid, 1000, &o);
}

static struct radix_window_stats window_stats(void)
{
	struct radix_window_stats s;

	radix_window_stats(world_index(&w, 0), &s);
	return s;
}

static uint32_t n_shared; /* so many blocks of the first two prompts are the same */

static uint8_t fill_of(uint32_t p, uint32_t block)
{
	return (uint8_t)((p == 1 && block < n_shared ? 0 : p * 100) + block + 1);
}

/* The runs are of blocks [from, from + n); returns how many have no slot. */
static uint32_t check_runs(const struct scene_place *at, struct proto_span runs, uint32_t p,
			   uint32_t from, uint32_t n)
{
	uint32_t i = from, none = 0, len = (uint32_t)at->ns.block_bytes;
	uint8_t block[64];

	ck_assert_uint_le(len, sizeof(block));
	for (uint32_t r = 0; r < runs.n; r++) {
		struct radix_run run = proto_run_at(runs, r);

		for (uint32_t k = 0; k < run.len; k++, i++) {
			if (run.start == PROTO_SLOT_NONE) {
				none++;
				continue;
			}
			world_read(&w, at->ns.group, run.start + k, block, len);
			for (uint32_t b = 0; b < len; b++)
				world_check(&w, block[b] == fill_of(p, i));
		}
	}
	ck_assert_uint_eq(i, from + n);
	return none;
}

static void commit_some(const struct scene_place *at, uint64_t lease, uint32_t p, uint32_t from,
			struct proto_span runs, uint32_t n)
{
	struct proto_commit_req c = { .lease = lease, .n = n };
	struct proto_commit_rep committed;
	uint32_t i = from, len = (uint32_t)at->ns.block_bytes;
	uint8_t block[64];

	for (uint32_t r = 0; r < runs.n; r++) {
		struct radix_run run = proto_run_at(runs, r);

		for (uint32_t k = 0; k < run.len; k++, i++) {
			memset(block, fill_of(p, i), len);
			world_write(&w, at->ns.group, run.start + k, block, len);
		}
	}
	ck_assert_uint_eq(i, from + n);
	ck_assert_int_eq(world_commit(at->c, &c, &committed), PROTO_STATUS_OK);
	ck_assert_uint_eq(committed.n_stored + committed.n_duplicate, n);
}

/*
 * A turn of a chat: its first `n` blocks, of which what is missing is computed, `step` at a time.
 * Returns the blocks found; *ret_stored, if it is not NULL, how many it has now.
 */
static uint32_t turn(const struct scene_place *at, uint32_t p, uint32_t n, uint32_t step,
		     uint32_t *ret_stored)
{
	struct scene_prompt x = scene_tokens(at, tokens[p], n * BT);
	struct proto_reserve_req r;
	struct proto_reserve_rep got;
	struct proto_match_rep m;
	uint32_t found, none, have;

	scene_match(at, &x, &m);
	found = have = m.n_device;
	none = check_runs(at, m.runs, p, 0, found);
	if (at->ns.window)
		ck_assert_uint_eq(none, found > W ? found - W : 0);
	else
		ck_assert_uint_eq(none, 0);
	while (have < n) {
		r = (struct proto_reserve_req){ .lease = m.lease, .n = step };
		if (world_reserve_wait(at->c, &r, &got) != PROTO_STATUS_OK)
			break;
		commit_some(at, m.lease, p, have, got.runs, got.n);
		have += got.n;
	}
	scene_release(at, m.lease, NULL);
	if (ret_stored)
		*ret_stored = have;
	return found;
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

START_TEST(what_open_takes)
{
	static const struct {
		const char *text;
		uint32_t layers;
		int blocks; /* -1: refused */
	} v[] = {
		{ "0:16", 1, 4 },
		{ "0:17", 1, 5 },
		{ "0:1", 1, 1 },
		{ "0:full", 1, 0 },
		{ "", 1, 0 },
		{ "0:16", 2, 0 },
		{ "0:16,1:32", 2, 8 },
		{ "1:32,0:16", 2, 8 },
		{ "0-1:20", 2, 5 },
		{ "0-1:16,2:full", 3, 0 },
		{ "0:4000000000", 1, 0 },
		{ "0:4294967296", 1, -1 },
		{ "0:0", 1, -1 },
		{ "1:16", 1, -1 },
		{ "0-1:16", 1, -1 },
		{ "1-0:16", 2, -1 },
		{ "0:16,0:16", 2, -1 },
		{ "0-1:16,1:16", 2, -1 },
		{ "0:16,", 1, -1 },
		{ "0:16 ", 1, -1 },
		{ ":16", 1, -1 },
		{ "0", 1, -1 },
		{ "0-:16", 1, -1 },
		{ "0:", 1, -1 },
		{ "0:fullest", 1, -1 },
		{ "0:-1", 1, -1 },
		{ "x", 1, -1 },
	};

	begin(16);
	for (uint32_t i = 0; i < radix_array_size(v); i++) {
		struct proto_open_req o = request(true);
		struct world_client *c = world_worker(&w, 100 + i, 1000);
		struct proto_open_rep rep;
		int status;

		o.windows = world_text(v[i].text);
		o.layers = v[i].layers;
		o.block_bytes = 64 * v[i].layers;
		status = world_open(c, &o, &rep);
		if (v[i].blocks < 0) {
			ck_assert_msg(status == PROTO_STATUS_BAD_NAMESPACE, "%s: %d", v[i].text,
				      status);
			ck_assert_str_eq(c->error_field, "windows");
		} else {
			ck_assert_msg(status == PROTO_STATUS_OK, "%s: %s", v[i].text,
				      c->error_text);
			ck_assert_msg(rep.window == (uint32_t)v[i].blocks, "%s: %u", v[i].text,
				      rep.window);
		}
		world_gone(c);
	}
	world_deinit(&w);
}
END_TEST

/* The flag says how a session reads, not what it reads; without it the text is a name only. */
START_TEST(the_flag_is_the_sessions)
{
	struct proto_open_req o = request(false);
	struct scene_place a, b, c;

	begin(16);
	a = place(100, false);
	b = place(101, true);
	ck_assert_uint_eq(a.ns.ns, b.ns.ns);
	ck_assert_uint_eq(a.ns.window, 0);
	ck_assert_uint_eq(b.ns.window, W);
	o.windows = world_text("anything");
	c = scene_place(&w, 102, 1000, &o);
	ck_assert_uint_ne(c.ns.ns, a.ns.ns);
	/* said later by the same session, it counts from then on */
	o = request(true);
	ck_assert_int_eq(world_open(a.c, &o, &a.ns), PROTO_STATUS_OK);
	ck_assert_uint_eq(a.ns.window, W);
	world_deinit(&w);
}
END_TEST

/* It stays with the namespace it was said of when others of the session go with their pool. */
START_TEST(the_flag_stays_with_its_namespace)
{
	struct proto_open_req whole = request(false), other = request(true);
	struct scene_place a, b, c;

	begin(16);
	a = place(100, true); /* group 0 can be read through a window, */
	other.kv_heads *= 2;
	other.block_bytes *= 2;
	b = scene_place(&w, 101, 1000, &other); /* and so does this session with its first one, */
	c = b;
	ck_assert_int_eq(world_open(b.c, &whole, &c.ns), PROTO_STATUS_OK); /* but not group 0 */
	ck_assert_uint_eq(c.ns.group, a.ns.group);
	ck_assert_uint_ne(b.ns.group, a.ns.group);
	ck_assert_uint_eq(c.ns.window, 0);
	world_pool_lost(&w, b.ns.group);
	world_run_until_idle(&w);
	ck_assert_int_eq(world_open(b.c, &whole, &c.ns), PROTO_STATUS_OK);
	ck_assert_uint_eq(c.ns.window, 0);
	world_deinit(&w);
}
END_TEST

/* What a pool's index could have of blocks is cut to what it has numbers for. */
START_TEST(an_index_of_any_size)
{
	static const struct {
		uint32_t n_slots, n_host, index_blocks;
		bool windowed, redis;
		uint32_t n;
	} v[] = {
		{ 100, 10, 7, false, false, 110 },
		{ 100, 10, 7, true, false, 1710 },
		{ 100, 10, 7, true, true, 1717 },
		{ 1u << 26, 0, 0, true, false, 17u << 26 },
		{ 1u << 27, 0, 0, true, false, INT32_MAX },
		{ 1u << 28, 0, 0, true, false, INT32_MAX }, /* 2^32 of them hollow */
		{ 1u << 28, 1u << 28, UINT32_MAX, false, true, INT32_MAX },
		{ 1u << 30, 1u << 30, 0, false, false, INT32_MAX },
	};

	for (uint32_t i = 0; i < radix_array_size(v); i++) {
		struct prefixd_engine e = { 0 };
		struct prefixd_group g = { .n_slots = v[i].n_slots,
					   .n_host = v[i].n_host,
					   .windowed = v[i].windowed };

		e.config.redis = v[i].redis;
		e.config.index_blocks = v[i].index_blocks;
		ck_assert_uint_eq(prefixd_group_config(&e, &g).n_entries, v[i].n);
	}
}
END_TEST

/* ---- chats ----------------------------------------------------------------------------------- */

START_TEST(a_chat_longer_than_the_pool)
{
	uint32_t found[2] = { 0 };

	for (uint32_t windowed = 0; windowed < 2; windowed++) {
		struct scene_place at;

		begin(16);
		at = place(100, windowed);
		for (uint32_t n = 4; n <= 80; n += 4) {
			uint32_t hit = turn(&at, 0, n, 4, NULL);

			if (windowed)
				ck_assert_uint_eq(hit, n - 4);
			found[windowed] += hit;
		}
		if (windowed) {
			ck_assert_uint_eq(turn(&at, 0, 80, 4, NULL), 80);
			/* what others need of the pool leaves it no more than its window */
			ck_assert_uint_eq(turn(&at, 1, 12, 4, NULL), 0);
			ck_assert_uint_eq(turn(&at, 0, 80, 4, NULL), 80);
			ck_assert_uint_eq(turn(&at, 1, 12, 4, NULL), 12);
			ck_assert_uint_eq(window_stats().n_hollow, 80 - W);
		}
		world_deinit(&w);
	}
	ck_assert_uint_gt(found[1], 2 * found[0]);
}
END_TEST

START_TEST(a_prompt_longer_than_the_pool)
{
	struct scene_place at;
	uint32_t stored;

	begin(12);
	at = place(100, true);
	ck_assert_uint_eq(turn(&at, 0, 60, 3, &stored), 0);
	ck_assert_uint_eq(stored, 60);
	ck_assert_uint_eq(turn(&at, 0, 60, 3, NULL), 60);
	ck_assert_uint_eq(window_stats().n_hollow, 60 - 12);
	world_deinit(&w);
}
END_TEST

/* Another part of the prompt, whose window is gone, is computed anew and fills hollow blocks. */
START_TEST(hollow_blocks_are_computed_again)
{
	struct scene_place at;
	uint32_t stored;

	begin(16);
	at = place(100, true);
	turn(&at, 0, 40, 4, NULL);
	ck_assert_uint_eq(turn(&at, 1, 12, 4, NULL), 0);
	ck_assert_uint_eq(turn(&at, 0, 20, 4, &stored), 0);
	ck_assert_uint_eq(stored, 20);
	ck_assert_uint_gt(window_stats().refilled_total, 0);
	ck_assert_uint_eq(world_counters(&w).attached_blocks, window_stats().refilled_total);
	world_deinit(&w);
}
END_TEST

/* ---- who reads everything -------------------------------------------------------------------- */

START_TEST(others_read_up_to_the_first_gap)
{
	struct scene_place at, other;
	struct scene_prompt x;
	struct proto_match_rep m;

	begin(18);
	at = place(100, true);
	other = place(101, false);
	turn(&at, 0, 12, 4, NULL);
	ck_assert_uint_eq(turn(&other, 0, 12, 4, NULL), 12);
	/* while it holds the path, all of it stays */
	x = scene_tokens(&other, tokens[0], 12 * BT);
	scene_match(&other, &x, &m);
	ck_assert_uint_eq(m.n_device, 12);
	turn(&at, 1, 8, 2, NULL);
	ck_assert_uint_eq(window_stats().n_hollow, 2); /* the other chat's own, none of this */
	ck_assert_uint_eq(check_runs(&other, m.runs, 0, 0, 12), 0);
	scene_release(&other, m.lease, NULL);
	turn(&at, 1, 12, 4, NULL);
	ck_assert_uint_gt(window_stats().n_hollow, 2);
	ck_assert_uint_eq(scene_look(&other, &x, &m), 0);
	ck_assert_uint_eq(scene_look(&at, &x, &m), 12);
	world_deinit(&w);
}
END_TEST

/* Its lease was there before anybody spoke of windows. */
START_TEST(a_lease_from_before_the_window)
{
	struct scene_place at, other;
	struct scene_prompt x;
	struct proto_match_rep m;

	begin(16);
	other = place(101, false);
	turn(&other, 0, 12, 4, NULL);
	x = scene_tokens(&other, tokens[0], 12 * BT);
	scene_match(&other, &x, &m);
	at = place(100, true);
	turn(&at, 1, 12, 2, NULL);
	ck_assert_uint_eq(check_runs(&other, m.runs, 0, 0, 12), 0);
	scene_release(&other, m.lease, NULL);
	world_deinit(&w);
}
END_TEST

/* ---- waiting --------------------------------------------------------------------------------- */

START_TEST(who_waits_is_told_when_it_is_of_use)
{
	struct scene_place a, b;
	struct scene_prompt x;
	struct proto_match_rep ma, mb;
	struct proto_reserve_req r = { .n = 6 };
	struct proto_reserve_rep got;
	struct proto_wait_req wait = { 0 };
	struct proto_wait_rep waiting;
	struct proto_event event;
	uint64_t seq;

	begin(16);
	a = place(100, true);
	b = place(101, true);
	turn(&a, 0, 12, 4, NULL);
	turn(&a, 1, 12, 4, NULL);                /* of the first chat the window is left */
	x = scene_tokens(&a, tokens[0], 6 * BT); /* a part that is hollow */
	scene_match_with(&a, &x, PROTO_MATCH_LEAD, 0, &ma);
	ck_assert_uint_eq(ma.n_device, 0);
	scene_match_with(&b, &x, PROTO_MATCH_LEAD, 0, &mb);
	ck_assert_uint_eq(mb.n_device, 0);
	ck_assert_uint_eq(mb.n_pending, 6);
	wait.lease = mb.lease;
	ck_assert_int_eq(world_wait(b.c, &wait, &waiting), PROTO_STATUS_OK);
	ck_assert_uint_eq(waiting.state, PROTO_WAIT_WAITING);
	r.lease = ma.lease;
	ck_assert_int_eq(world_reserve_wait(a.c, &r, &got), PROTO_STATUS_OK);
	ck_assert_uint_eq(got.n, 6);
	ck_assert(!world_event(b.c, &seq, &event));
	commit_some(&a, ma.lease, 0, 0, got.runs, 6);
	ck_assert(world_event(b.c, &seq, &event));
	ck_assert_uint_eq(event.state, PROTO_WAIT_READY);
	scene_extend(&b, mb.lease, &mb);
	ck_assert_uint_eq(mb.n_device, 6);
	check_runs(&b, mb.runs, 0, 0, 6);
	scene_release(&a, ma.lease, NULL);
	scene_release(&b, mb.lease, NULL);
	world_deinit(&w);
}
END_TEST

/* ---- a restart ------------------------------------------------------------------------------- */

START_TEST(windows_outlive_the_daemon)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;

	config.keep = true;
	begin(16);
	at = place(100, true);
	turn(&at, 0, 60, 4, NULL);
	x = scene_tokens(&at, tokens[0], 60 * BT);
	scene_match(&at, &x, &m);
	world_life_kill(&w);
	ck_assert_int_eq(world_life_restart(&w), 0);
	ck_assert_uint_eq(window_stats().n_hollow, 60 - 16);
	world_kill(&w, 100); /* whose lease kept its path */
	at = place(101, true);
	ck_assert_uint_eq(at.ns.window, W);
	ck_assert_uint_eq(turn(&at, 0, 64, 4, NULL), 60);
	ck_assert_uint_eq(turn(&at, 0, 80, 4, NULL), 64);
	ck_assert_uint_eq(turn(&at, 0, 80, 4, NULL), 80);
	world_deinit(&w);
}
END_TEST

/* Another OPEN makes it one with a window: wherever the daemon ends in it, it is the same one. */
START_TEST(killed_while_a_window_begins)
{
	struct proto_open_req o = request(true);
	struct proto_open_rep rep;
	struct scene_place a, b;
	uint64_t n = 1;

	config.keep = true;
	for (bool whole = false; !whole; n++) {
		begin(16);
		a = place(100, false);
		turn(&a, 0, 12, 4, NULL);
		b.c = world_worker(&w, 101, 1000);
		world_life_kill_at(&w, n);
		whole = world_open(b.c, &o, &rep) == PROTO_STATUS_OK;
		world_life_kill_at(&w, 0);
		if (whole)
			world_life_kill(&w);
		ck_assert_int_eq(world_life_restart(&w), 0);
		b = place(102, n % 2);
		ck_assert_uint_eq(b.ns.ns, a.ns.ns);
		ck_assert_uint_eq(turn(&b, 0, 12, 4, NULL), 12);
		b = place(103, true);
		ck_assert_uint_eq(b.ns.window, W);
		ck_assert_uint_eq(turn(&b, 0, 16, 4, NULL), 12);
		world_deinit(&w);
	}
	ck_assert_uint_gt(n, 4);
}
END_TEST

/* What operators are told of the only lease there is. */
static uint64_t blocks_told(void)
{
	struct prefixd_lease_info info;
	uint64_t it = 0, n;

	ck_assert(prefixd_engine_next_lease(w.engine, &it, w.now_ns, &info));
	n = info.n_blocks;
	ck_assert(!prefixd_engine_next_lease(w.engine, &it, w.now_ns, &info));
	return n;
}

/* Who held a long prompt when the daemon ended keeps no more of the pool than has slots. */
START_TEST(held_over_a_restart)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;

	config.keep = true;
	begin(40);
	at = place(100, true);
	turn(&at, 0, 90, 10, NULL);
	x = scene_tokens(&at, tokens[0], 90 * BT);
	scene_match(&at, &x, &m);
	at = place(101, true);
	turn(&at, 1, 80, 10, NULL);
	turn(&at, 2, 80, 10, NULL);
	ck_assert_uint_eq(prefixd_engine_kept(w.engine, 0), 0);
	ck_assert_uint_eq(blocks_told(), W);
	world_kill(&w, 101);
	world_life_kill(&w);
	ck_assert_int_eq(world_life_restart(&w), 0);
	ck_assert_uint_eq(prefixd_engine_kept(w.engine, 0), W);
	ck_assert_uint_eq(blocks_told(), W);
	ck_assert(!prefixd_engine_over(w.engine, NULL, 0));
	at = place(102, true);
	ck_assert_uint_eq(turn(&at, 0, 90, 10, NULL), 90);
	world_kill(&w, 100);
	ck_assert_uint_eq(prefixd_engine_kept(w.engine, 0), 0);
	world_deinit(&w);
}
END_TEST

/* The memory of the earlier life is not there: what is made in its place is as large. */
START_TEST(made_anew_for_a_window)
{
	struct proto_open_req o = request(true);
	struct scene_place at;

	config.keep = true;
	begin(16);
	at = place(100, true);
	turn(&at, 0, 60, 4, NULL);
	world_life_kill(&w);
	world_kill(&w, 100);
	w.config.hold_pools = true;
	ck_assert_int_eq(world_life_restart(&w), 0);
	at.c = world_worker(&w, 101, 1000);
	ck_assert_int_eq(world_open(at.c, &o, &at.ns), -EINPROGRESS);
	world_pool_answer(&w, false);
	world_pool_answer(&w, true);
	w.config.hold_pools = false;
	ck_assert_int_eq(world_open_reply(at.c, &at.ns), PROTO_STATUS_OK);
	ck_assert_uint_eq(at.ns.flags & PROTO_OPENED_KEPT, 0);
	ck_assert_uint_eq(at.ns.window, W);
	ck_assert_uint_eq(turn(&at, 0, 60, 4, NULL), 0);
	ck_assert_uint_eq(window_stats().n_hollow, 60 - 16);
	ck_assert_uint_eq(turn(&at, 0, 60, 4, NULL), 60);
	world_deinit(&w);
}
END_TEST

/* ---- tiers ----------------------------------------------------------------------------------- */

START_TEST(a_window_comes_up_again)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_event event;
	struct radix_stats st;
	uint64_t seq;

	config.engine.host_blocks = config.tiers.host_blocks = 24;
	config.tiers.copy.latency_ns = 10000;
	begin(10);
	at = place(100, true);
	turn(&at, 0, 24, 4, NULL);
	world_run_until_idle(&w);
	turn(&at, 1, 8, 4, NULL);
	world_run_until_idle(&w);
	turn(&at, 2, 8, 4, NULL);
	world_run_until_idle(&w);
	x = scene_tokens(&at, tokens[0], 24 * BT);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_lt(m.n_device, 24);
	ck_assert_uint_eq(m.n_device + m.n_host, 24);
	ck_assert(!m.advice);
	scene_loaded(&at, seq, &event);
	ck_assert_uint_eq(event.state, PROTO_WAIT_LOADED);
	scene_extend(&at, m.lease, &m);
	ck_assert_uint_eq(m.n_device, 24);
	ck_assert_uint_eq(check_runs(&at, m.runs, 0, 0, 24), 24 - W);
	scene_release(&at, m.lease, NULL);
	/* no more was ever copied down than what a window has */
	world_stats(&w, 0, &st);
	ck_assert_uint_le(st.moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 24);
	world_deinit(&w);
}
END_TEST

/*
 * Two chats that part after six blocks, of which the host has the ends and the device a window in
 * the middle, with hollow blocks around it.  Nothing of the old memory is named when it is lost.
 */
START_TEST(lost_with_windows)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_event event;
	struct radix_stats st;
	uint64_t seq;

	config.engine.host_blocks = config.tiers.host_blocks = 12;
	n_shared = 6;
	memcpy(tokens[1], tokens[0], n_shared * BT * sizeof(tokens[0][0]));
	begin(22);
	at = place(100, true);
	turn(&at, 0, 14, 14, NULL);
	turn(&at, 1, 14, 14, NULL);
	turn(&at, 2, 18, 18, NULL); /* ten become hollow, eight go down */
	world_run_until_idle(&w);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(window_stats().n_hollow, 10);
	ck_assert_uint_eq(st.moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 8);
	w.config.hold_pools = true;
	world_pool_lost(&w, 0);
	world_run_until_idle(&w);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE], 22);
	ck_assert_uint_eq(st.n_blocks, 14); /* the newer of the two needs no block of the device */
	ck_assert_uint_eq(window_stats().n_hollow, 10);
	world_pool_answer(&w, true);
	w.config.hold_pools = false;
	at = place(101, true);
	x = scene_tokens(&at, tokens[0], 14 * BT);
	ck_assert_uint_eq(scene_look(&at, &x, NULL), 0);
	x = scene_tokens(&at, tokens[1], 14 * BT);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.n_host, 14);
	scene_loaded(&at, seq, &event);
	scene_extend(&at, m.lease, &m);
	ck_assert_uint_eq(m.n_device, 14);
	ck_assert_uint_eq(check_runs(&at, m.runs, 1, 0, 14), 10);
	scene_release(&at, m.lease, NULL);
	turn(&at, 0, 14, 7, NULL);
	ck_assert_uint_eq(turn(&at, 0, 14, 7, NULL), 14);
	world_deinit(&w);
	n_shared = 0;
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(open_fails_whole)
{
	for (uint64_t n = 1;; n++) {
		struct proto_open_req o = request(true);
		struct scene_place a;
		struct world_client *c;
		struct proto_open_rep rep;
		int status;

		begin(16);
		a = place(100, false);
		turn(&a, 0, 12, 4, NULL);
		c = world_worker(&w, 101, 1000);
		test_heap_fail_at(&w.heap, n);
		status = world_open(c, &o, &rep);
		test_heap_fail_at(&w.heap, 0);
		if (status != PROTO_STATUS_OK) {
			ck_assert_int_eq(status, PROTO_STATUS_NO_MEMORY);
			ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_OK);
		}
		ck_assert_uint_eq(rep.window, W);
		ck_assert_uint_eq(turn(&a, 0, 12, 4, NULL), 12);
		world_deinit(&w);
		if (!w.heap.n_failed) {
			ck_assert_uint_gt(n, 2);
			return;
		}
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("windows");
	TCase *tc = tcase_create("windows");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, what_open_takes);
	tcase_add_test(tc, the_flag_is_the_sessions);
	tcase_add_test(tc, the_flag_stays_with_its_namespace);
	tcase_add_test(tc, an_index_of_any_size);
	tcase_add_test(tc, a_chat_longer_than_the_pool);
	tcase_add_test(tc, a_prompt_longer_than_the_pool);
	tcase_add_test(tc, hollow_blocks_are_computed_again);
	tcase_add_test(tc, others_read_up_to_the_first_gap);
	tcase_add_test(tc, a_lease_from_before_the_window);
	tcase_add_test(tc, who_waits_is_told_when_it_is_of_use);
	tcase_add_test(tc, windows_outlive_the_daemon);
	tcase_add_test(tc, killed_while_a_window_begins);
	tcase_add_test(tc, held_over_a_restart);
	tcase_add_test(tc, made_anew_for_a_window);
	tcase_add_test(tc, a_window_comes_up_again);
	tcase_add_test(tc, lost_with_windows);
	tcase_add_test(tc, open_fails_whole);
	suite_add_tcase(s, tc);
	return scene_main(s);
}
