/*
 * fencing.c - see fencing.h.
 */
#include "tests/engine/fencing.h"

struct fencing fencing;

void fencing_setup(void)
{
	world_config_init(&fencing.config);
	fencing.config.engine.pool_blocks = SLOTS;
	fencing.config.record = true;
	fencing.o = world_open_req("m");
}

void fencing_begin(void)
{
	ck_assert_int_eq(world_init(&fencing.w, &fencing.config), 0);
}

struct scene_place fencing_worker(uint32_t pid)
{
	return scene_place(&fencing.w, pid, 1000, &fencing.o);
}

/* One that copies blocks out before it computes. */
struct scene_place fencing_copier(uint32_t pid)
{
	struct scene_place a = { .c = world_connect(&fencing.w, pid, 1000, false) };
	struct proto_hello_req hello = world_hello_req(a.c);
	struct proto_hello_rep rep;

	hello.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(a.c, &hello, &rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(a.c, &fencing.o, &a.ns), PROTO_STATUS_OK);
	a.ns.digest.p = NULL;
	return a;
}

/* n blocks whose fencing.tokens begin with `first`. */
static struct scene_prompt prompt(const struct scene_place *at, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < 4 * n; i++)
		fencing.tokens[i] = first + i;
	return scene_tokens(at, fencing.tokens, 4 * n);
}

struct proto_match_rep fencing_match(const struct scene_place *at, uint32_t first, uint32_t n)
{
	struct scene_prompt p = prompt(at, first, n);
	struct proto_match_rep rep;

	scene_match(at, &p, &rep);
	return rep;
}

uint32_t fencing_found(const struct scene_place *at, uint32_t first, uint32_t n)
{
	struct scene_prompt p = prompt(at, first, n);

	return scene_look(at, &p, NULL);
}

void fencing_put(const struct scene_place *at, uint32_t first, uint32_t n, uint8_t fill)
{
	struct scene_prompt p = prompt(at, first, n);

	ck_assert_uint_eq(scene_put(at, &p, fill), n);
}

/* Slots granted; 0: BUSY.  The first of them in *ret_slot, which may be NULL. */
uint32_t fencing_reserve(const struct scene_place *at, uint64_t lease, uint32_t n,
			 uint32_t *ret_slot)
{
	struct proto_reserve_req m = { .lease = lease, .n = n };
	struct proto_reserve_rep rep;
	int status = world_reserve(at->c, &m, &rep);

	if (status == PROTO_STATUS_BUSY)
		return 0;
	ck_assert_int_eq(status, PROTO_STATUS_OK);
	if (ret_slot)
		*ret_slot = proto_run_at(rep.runs, 0).start;
	return rep.n;
}

int fencing_commit(const struct scene_place *at, uint64_t lease, uint32_t n)
{
	struct proto_commit_req m = { .lease = lease, .n = n };
	struct proto_commit_rep rep;

	return world_commit(at->c, &m, &rep);
}

uint64_t fencing_slots(enum radix_slot_state state)
{
	struct radix_stats st;

	world_stats(&fencing.w, 0, &st);
	return st.slots[state];
}

uint64_t fencing_pins(void)
{
	struct radix_stats st;

	world_stats(&fencing.w, 0, &st);
	return st.n_pins;
}

uint64_t fencing_generation(uint32_t slot)
{
	return fencing.w.pools[0].generations[slot];
}

struct proto_quiesced_rep fencing_quiesced(const struct scene_place *at)
{
	struct proto_quiesced_req q = { .instance = at->c->instance,
					.old_boot = fencing.w.config.engine.boot };
	struct proto_quiesced_rep rep;

	ck_assert_int_eq(world_quiesced(at->c, &q, &rep), PROTO_STATUS_OK);
	return rep;
}
