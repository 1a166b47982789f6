/*
 * test_fencing.c - nothing is reused under who may still touch it, and nothing is kept for ever:
 * T13 T20 T25 T33 F01 F02 F03 F05 F06 F08.
 */
#include "tests/engine/fencing.h"

static struct world *const w = &fencing.w;
static struct world_config *const config = &fencing.config;

/* ---- T13: looked up, never retrieved --------------------------------------------------------- */

/* Who reads in place cannot give tokens back: the pin is the process's, however long it lives. */
START_TEST(a_pin_belongs_to_its_process)
{
	struct scene_place a, b;

	config->engine.limits.lease_max_age_ns = SECOND;
	fencing_begin();
	a = fencing_worker(100);
	b = fencing_worker(101);
	fencing_put(&b, 1000, 4, 1);
	(void)fencing_match(&a, 1000, 4);
	world_advance(w, 3600ull * SECOND);
	ck_assert_uint_eq(fencing_pins(), 1);
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 0);
	world_eof(a.c); /* and its socket's end changes nothing */
	world_advance(w, 3600ull * SECOND);
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 0);
	world_gone(a.c);
	ck_assert_uint_eq(fencing_pins(), 0);
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 4);
	world_deinit(w);
}
END_TEST

/* Who copies has until the age limit, with a socket or without one; then nothing is pinned. */
START_TEST(a_copiers_pin_has_a_limit)
{
	struct scene_place a, b;

	config->engine.limits.lease_max_age_ns = SECOND;
	fencing_begin();
	b = fencing_worker(101);
	fencing_put(&b, 1000, 4, 1);
	a = fencing_copier(100);
	(void)fencing_match(&a, 1000, 4);
	if (_i)
		world_eof(a.c);
	world_advance(w, SECOND - 1);
	ck_assert_uint_eq(fencing_pins(), 1);
	world_advance(w, 1);
	ck_assert_uint_eq(fencing_pins(), 0);
	ck_assert_uint_eq(world_counters(w).leases_revoked, 1);
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 4);
	ck_assert(a.c->used == !_i); /* an orphan that holds nothing any more is forgotten */
	world_deinit(w);
}
END_TEST

/* The limit may come while leases are held, and go again: all of them are bound by it. */
START_TEST(a_limit_that_comes_later)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_RELOAD };
	struct prefixd_limits limits;
	struct scene_place a, b;

	fencing_begin();
	limits = config->engine.limits;
	event.u.reload.limits = &limits;
	b = fencing_worker(101);
	fencing_put(&b, 1000, 4, 1);
	a = fencing_copier(100);
	(void)fencing_match(&a, 1000, 4);
	world_advance(w, SECOND);
	ck_assert_uint_eq(fencing_pins(), 1);
	limits.lease_max_age_ns = 3ull * SECOND;
	world_step(w, &event);
	ck_assert_uint_eq(prefixd_engine_deadline(w->engine), w->now_ns + 2ull * SECOND);
	limits.lease_max_age_ns = 0;
	world_step(w, &event);
	world_advance(w, 3ull * SECOND);
	ck_assert_uint_eq(fencing_pins(), 1);
	limits.lease_max_age_ns = 2ull * SECOND;
	world_step(w, &event);
	world_advance(w, 0);
	ck_assert_uint_eq(fencing_pins(), 0);
	world_deinit(w);
}
END_TEST

/* ---- T20, T33, F08: the late reader ---------------------------------------------------------- */

/*
 * A reader that copies sleeps past the limit, and its slots are given to others and filled anew.
 * Each slot's generation has passed what the lease was told, so it knows; its lease answers
 * REVOKED; and it gets well by asking again.
 */
START_TEST(late_reader_is_told)
{
	struct scene_place a, b;
	struct proto_match_rep mine;
	struct radix_run run;
	uint64_t theirs, reuse;

	config->engine.limits.lease_max_age_ns = SECOND;
	fencing_begin();
	b = fencing_worker(101);
	fencing_put(&b, 1000, SLOTS, 1);
	a = fencing_copier(100);
	mine = fencing_match(&a, 1000, SLOTS);
	ck_assert_uint_eq(mine.n_device, SLOTS);
	reuse = mine.reuse;
	theirs = fencing_match(&b, 5000, SLOTS).lease;
	ck_assert_uint_eq(fencing_reserve(&b, theirs, SLOTS, NULL),
			  0); /* it is held: nothing is lost */
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		ck_assert_uint_le(fencing_generation(slot), reuse);
	scene_check_fill(&a, mine.runs, 1);
	world_advance(w, SECOND);
	for (uint32_t slot = 0; slot < SLOTS; slot++) /* revoked and not reused: still right */
		ck_assert_uint_le(fencing_generation(slot), reuse);
	ck_assert_uint_eq(fencing_reserve(&b, theirs, 8, &run.start), 8);
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		ck_assert((fencing_generation(slot) > reuse) ==
			  (radix_slot_state(world_index(w, 0), slot) == RADIX_SLOT_RESERVED));
	ck_assert_int_eq(fencing_commit(&b, theirs, 8), PROTO_STATUS_OK);
	ck_assert_int_eq(fencing_commit(&a, mine.lease, 1), PROTO_STATUS_REVOKED);
	ck_assert_int_eq(fencing_commit(&a, mine.lease, 1), PROTO_STATUS_UNKNOWN_LEASE);
	ck_assert_uint_eq(fencing_match(&a, 1000, SLOTS).n_device,
			  SLOTS - 8); /* and computes the rest */
	world_deinit(w);
}
END_TEST

/* While it is held a slot is never reused, whatever others want: no generation ever moves. */
START_TEST(held_slots_are_never_reused)
{
	struct scene_place a, b;
	struct proto_match_rep mine;
	uint64_t before[SLOTS];
	uint32_t slots[8], n = 0;

	fencing_begin();
	a = fencing_worker(100);
	b = fencing_worker(101);
	fencing_put(&a, 1000, 8, 7);
	mine = fencing_match(&a, 1000, 8);
	for (uint32_t i = 0; i < mine.runs.n; i++)
		for (uint32_t k = 0; k < proto_run_at(mine.runs, i).len; k++)
			slots[n++] = proto_run_at(mine.runs, i).start + k;
	ck_assert_uint_eq(n, 8);
	for (uint32_t i = 0; i < n; i++)
		before[i] = fencing_generation(slots[i]);
	if (_i)
		world_eof(a.c);
	for (uint32_t round = 0; round < 20; round++)
		fencing_put(&b, 10000 + 1000 * round, SLOTS - 8, (uint8_t)round);
	for (uint32_t i = 0; i < n; i++) {
		uint8_t byte;

		ck_assert_uint_eq(fencing_generation(slots[i]), before[i]);
		world_read(w, 0, slots[i], &byte, 1);
		ck_assert_uint_eq(byte, 7);
	}
	world_kill(w, 100);
	fencing_put(&b, 90000, SLOTS, 99);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_uint_gt(fencing_generation(slots[i]), before[i]);
	world_deinit(w);
}
END_TEST

/* Reservations of a revoked lease wait for death or QUIESCED, without an end: it may write them. */
START_TEST(revoked_reservations_wait)
{
	struct scene_place a, b;
	struct proto_match_rep m;
	struct proto_release_req rel = { 0 };
	struct proto_release_rep end;
	uint64_t theirs;

	config->engine.limits.lease_max_age_ns = SECOND;
	fencing_begin();
	a = fencing_copier(100);
	b = fencing_worker(101);
	m = fencing_match(&a, 1000, SLOTS);
	rel.lease = m.lease;
	ck_assert_uint_eq(fencing_reserve(&a, m.lease, SLOTS, NULL), SLOTS);
	if (_i % 2)
		world_eof(a.c);
	world_advance(w, 3600ull * SECOND);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_QUARANTINED), SLOTS);
	theirs = fencing_match(&b, 5000, 4).lease;
	ck_assert_uint_eq(fencing_reserve(&b, theirs, 4, NULL), 0);
	if (_i < 2) {
		world_gone(a.c);
	} else {
		if (_i % 2) {
			a = fencing_worker(100);
		} else { /* what it says before it is told is not about them */
			ck_assert_uint_eq(fencing_quiesced(&a).n_slots, 0);
			ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_REVOKED);
		}
		ck_assert_uint_eq(fencing_quiesced(&a).n_slots, SLOTS);
	}
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_QUARANTINED), 0);
	ck_assert_uint_eq(fencing_reserve(&b, theirs, 4, NULL), 4);
	world_deinit(w);
}
END_TEST

/* ---- T25: the socket ends, the process lives ------------------------------------------------- */

START_TEST(closed_but_alive)
{
	struct scene_place a, b;
	struct proto_match_rep m;
	uint64_t theirs;

	fencing_begin();
	a = fencing_worker(100);
	b = fencing_worker(101);
	fencing_put(&a, 1000, 8, 1);
	m = fencing_match(&a, 1000, SLOTS);
	ck_assert_uint_eq(fencing_reserve(&a, m.lease, 8, NULL), 8);
	world_eof(a.c);
	world_advance(w, 86400ull * SECOND); /* no time is long enough */
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 0);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_RESERVED), 8);
	theirs = fencing_match(&b, 5000, SLOTS).lease;
	ck_assert_uint_eq(fencing_reserve(&b, theirs, SLOTS, NULL), SLOTS - 16);
	if (_i) {
		struct scene_place again = fencing_worker(100);
		struct proto_quiesced_rep rep = fencing_quiesced(&again);

		ck_assert_uint_eq(rep.n_leases, 1);
		ck_assert_uint_eq(rep.n_slots, 8);
	} else {
		world_gone(a.c);
	}
	ck_assert_uint_eq(fencing_reserve(&b, theirs, 16, NULL),
			  16); /* cold ones and those that were kept */
	world_deinit(w);
}
END_TEST

/* ---- F01: killed with pins held -------------------------------------------------------------- */

START_TEST(killed_with_pins)
{
	struct scene_place v[4];
	uint64_t lease[4];

	fencing_begin();
	for (uint32_t i = 0; i < 4; i++) {
		v[i] = fencing_worker(100 + i);
		fencing_put(&v[i], 1000 * i, 8, (uint8_t)i);
		lease[i] = fencing_match(&v[i], 1000 * i, 8).lease;
	}
	world_kill(w, 101);
	world_kill(w, 103);
	ck_assert_uint_eq(fencing_pins(), 2); /* the clock has not moved */
	ck_assert_uint_eq(world_counters(w).leases_died, 2);
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 16);
	for (uint32_t i = 0; i < 4; i += 2) {
		struct proto_match_rep again = fencing_match(&v[i], 1000 * i, 8);

		ck_assert_uint_eq(scene_check_fill(&v[i], again.runs, (uint8_t)i), 8);
		scene_release(&v[i], lease[i], NULL);
	}
	world_deinit(w);
}
END_TEST

/* ---- F02: killed between RESERVE and COMMIT -------------------------------------------------- */

enum {
	F02_BLOCKS = 6,
	F02_POINTS = 3 * (F02_BLOCKS + 1)
};

/*
 * Of its blocks `done` are committed, and of the next one nothing, half or all is written. What was
 * committed stays; nothing else is served, and its slots come free with the end of the grace,
 * scrubbed.
 */
START_TEST(killed_before_commit)
{
	uint32_t done = (uint32_t)_i / 3, written = (uint32_t)_i % 3, slot = 0;
	struct proto_match_rep m, theirs;
	struct scene_place a, b;
	uint8_t bytes[64];

	config->engine.grace_ns = SECOND;
	fencing_begin();
	a = fencing_worker(100);
	b = fencing_worker(101);
	m = fencing_match(&a, 1000, F02_BLOCKS);
	ck_assert_uint_eq(fencing_reserve(&a, m.lease, F02_BLOCKS, &slot), F02_BLOCKS);
	memset(bytes, 0x5e, sizeof(bytes));
	for (uint32_t i = 0; i < done; i++) {
		world_write(w, 0, slot + i, bytes, sizeof(bytes));
		ck_assert_int_eq(fencing_commit(&a, m.lease, 1), PROTO_STATUS_OK);
	}
	if (written && done < F02_BLOCKS)
		world_write(w, 0, slot + done, bytes, written == 1 ? 32 : 64);
	world_kill(w, 100);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_QUARANTINED), F02_BLOCKS - done);
	theirs = fencing_match(&b, 1000, F02_BLOCKS);
	ck_assert_uint_eq(theirs.n_device, done);
	ck_assert_uint_eq(scene_check_fill(&b, theirs.runs, 0x5e), done);
	/* Its device may still write: nobody has the slots before the grace is over. */
	ck_assert_uint_eq(fencing_reserve(&b, fencing_match(&b, 5000, SLOTS).lease, SLOTS, NULL),
			  SLOTS - F02_BLOCKS);
	world_advance(w, SECOND - 1);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_QUARANTINED), F02_BLOCKS - done);
	world_advance(w, 1);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_QUARANTINED), 0);
	for (uint32_t i = done; i < F02_BLOCKS; i++) {
		world_read(w, 0, slot + i, bytes, sizeof(bytes));
		for (uint32_t k = 0; k < sizeof(bytes); k++)
			ck_assert_uint_ne(bytes[k], 0x5e);
	}
	ck_assert_uint_eq(fencing_match(&b, 1000, F02_BLOCKS).n_device, done);
	world_deinit(w);
}
END_TEST

/* ---- F03: a worker that stands still --------------------------------------------------------- */

/* It holds half of the pool and says nothing for hours, while others fill the rest many times. */
START_TEST(stopped_worker_keeps_its_half)
{
	struct scene_place a, b;
	struct proto_match_rep read, write;
	uint32_t slot;

	fencing_begin();
	a = fencing_worker(100);
	b = fencing_worker(101);
	fencing_put(&a, 1000, SLOTS / 4, 7);
	read = fencing_match(&a, 1000, SLOTS / 4);
	write = fencing_match(&a, 3000, SLOTS / 4);
	ck_assert_uint_eq(fencing_reserve(&a, write.lease, SLOTS / 4, &slot), SLOTS / 4);
	for (uint32_t round = 0; round < 10; round++) {
		world_advance(w, 600ull * SECOND);
		fencing_put(&b, 10000 + 1000 * round, SLOTS / 2, (uint8_t)round);
	}
	ck_assert(!prefixd_engine_over(w->engine, NULL, 0)); /* it lives and is connected */
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_RESERVED), SLOTS / 4);
	/* It goes on as if nothing had been: what it reads is there, what it writes is taken. */
	read = fencing_match(&a, 1000, SLOTS / 4);
	ck_assert_uint_eq(scene_check_fill(&a, read.runs, 7), SLOTS / 4);
	ck_assert_int_eq(fencing_commit(&a, write.lease, SLOTS / 4), PROTO_STATUS_OK);
	ck_assert_uint_eq(fencing_found(&b, 3000, SLOTS / 4), SLOTS / 4);
	world_deinit(w);
}
END_TEST

/* The same with an age limit: what it read may go, what it writes waits for it; it is told. */
START_TEST(stopped_copier_is_revoked)
{
	struct scene_place a, b;
	struct proto_match_rep read, write;

	config->engine.limits.lease_max_age_ns = SECOND;
	fencing_begin();
	a = fencing_copier(100);
	b = fencing_worker(101);
	fencing_put(&b, 1000, SLOTS / 4, 7);
	read = fencing_match(&a, 1000, SLOTS / 4);
	write = fencing_match(&a, 3000, SLOTS / 4);
	ck_assert_uint_eq(fencing_reserve(&a, write.lease, SLOTS / 4, NULL), SLOTS / 4);
	world_advance(w, 600ull * SECOND);
	for (uint32_t round = 0; round < 10; round++)
		fencing_put(&b, 10000 + 1000 * round, 3 * SLOTS / 4, (uint8_t)round);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_QUARANTINED), SLOTS / 4);
	ck_assert_int_eq(fencing_commit(&a, write.lease, 1), PROTO_STATUS_REVOKED);
	ck_assert_int_eq(fencing_commit(&a, read.lease, 1), PROTO_STATUS_REVOKED);
	ck_assert_uint_eq(fencing_found(&a, 1000, SLOTS / 4), 0);
	ck_assert_uint_eq(fencing_quiesced(&a).n_slots, SLOTS / 4);
	fencing_put(&a, 3000, SLOTS / 4, 8);
	world_deinit(w);
}
END_TEST

/* ---- F05: back before the old end was seen --------------------------------------------------- */

/* Two sessions of one instance: the first one's late end is not the second one's. */
START_TEST(reconnected_before_the_end)
{
	struct scene_place a, again;
	struct proto_match_rep old, new;

	fencing_begin();
	a = fencing_worker(100);
	fencing_put(&a, 1000, 8, 1);
	old = fencing_match(&a, 1000, 8);
	again = fencing_worker(100);
	ck_assert(proto_id_equal(&again.c->instance, &a.c->instance));
	new = fencing_match(&again, 1000, SLOTS);
	ck_assert_uint_eq(fencing_reserve(&again, new.lease, 8, NULL), 8);
	ck_assert_uint_eq(fencing_quiesced(&again).n_leases,
			  0); /* the first is connected: not meant */
	ck_assert_uint_eq(fencing_pins(), 2);
	world_eof(a.c);
	ck_assert_uint_eq(fencing_pins(), 2); /* an orphan */
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_RESERVED), 8);
	ck_assert_uint_eq(fencing_quiesced(&again).n_leases, 1);
	ck_assert(!a.c->used);
	ck_assert_uint_eq(fencing_pins(), 1);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_RESERVED), 8);
	ck_assert_int_eq(fencing_commit(&again, new.lease, 8), PROTO_STATUS_OK);
	ck_assert_int_eq(fencing_commit(&again, old.lease, 1), PROTO_STATUS_UNKNOWN_LEASE);
	world_gone(again.c);
	ck_assert_uint_eq(fencing_pins(), 0);
	world_deinit(w);
}
END_TEST

/* ---- F06: several processes that write the same block ---------------------------------------- */

/*
 * Four writers of one prompt, each with slots of its own.  One dies before COMMIT: its reservation
 * goes and nobody else's; the others commit, the first of them is stored, each keeps its own slots.
 */
START_TEST(one_of_four_writers_dies)
{
	struct scene_place v[4];
	uint64_t lease[4];

	fencing_begin();
	for (uint32_t i = 0; i < 4; i++) {
		v[i] = fencing_worker(100 + i);
		lease[i] = fencing_match(&v[i], 1000, 4).lease;
		ck_assert_uint_eq(fencing_reserve(&v[i], lease[i], 4, NULL), 4);
	}
	if (_i)
		ck_assert_int_eq(fencing_commit(&v[0], lease[0], 2), PROTO_STATUS_OK);
	world_kill(w, 100);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_RESERVED), 12);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_READY), _i ? 2 : 0);
	for (uint32_t i = 1; i < 4; i++)
		ck_assert_int_eq(fencing_commit(&v[i], lease[i], 4), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(w).committed_blocks, 4);
	ck_assert_uint_eq(world_counters(w).duplicate_blocks, _i ? 10 : 8);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_READY), 4);
	ck_assert_uint_eq(fencing_slots(RADIX_SLOT_OWN), _i ? 10 : 8);
	ck_assert_uint_eq(fencing_found(&v[2], 1000, 4), 4);
	world_deinit(w);
}
END_TEST

int main(void)
{
	const struct {
		const char *id;
		const TTest *test;
		int n; /* variants */
	} cases[] = {
		{ "T13", a_pin_belongs_to_its_process, 1 },
		{ "T13", a_copiers_pin_has_a_limit, 2 },
		{ "T13", a_limit_that_comes_later, 1 },
		{ "T20", late_reader_is_told, 1 },
		{ "T20", revoked_reservations_wait, 4 },
		{ "T33", held_slots_are_never_reused, 2 },
		{ "F08", late_reader_is_told, 1 },
		{ "F08", held_slots_are_never_reused, 2 },
		{ "T25", closed_but_alive, 2 },
		{ "F01", killed_with_pins, 1 },
		{ "F02", killed_before_commit, F02_POINTS },
		{ "F03", stopped_worker_keeps_its_half, 1 },
		{ "F03", stopped_copier_is_revoked, 1 },
		{ "F05", reconnected_before_the_end, 1 },
		{ "F06", one_of_four_writers_dies, 2 },
	};
	Suite *s = suite_create("fencing");
	TCase *t = NULL;

	for (size_t i = 0; i < radix_array_size(cases); i++) {
		if (i == 0 || strcmp(cases[i].id, cases[i - 1].id) != 0) {
			t = tcase_create(cases[i].id);
			tcase_set_timeout(t, 120);
			tcase_add_checked_fixture(t, fencing_setup, NULL);
			suite_add_tcase(s, t);
		}
		tcase_add_loop_test(t, cases[i].test, 0, cases[i].n);
	}
	return scene_main(s);
}
