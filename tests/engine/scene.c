/*
 * scene.c - see scene.h.
 */
#include "tests/engine/scene.h"
#include "tests/lib/run.h"

#include <stdio.h>
#include <stdlib.h>

struct scene_place scene_place(struct world *w, uint32_t pid, uint32_t uid,
			       const struct proto_open_req *o)
{
	struct scene_place at = { .c = world_worker(w, pid, uid) };

	ck_assert_int_eq(world_open(at.c, o, &at.ns), PROTO_STATUS_OK);
	at.ns.digest.p = NULL; /* it lay in the reply */
	return at;
}

struct scene_prompt scene_tokens(const struct scene_place *at, const uint32_t *tokens, uint32_t n)
{
	uint32_t bt = at->ns.block_tokens;

	ck_assert_uint_eq(at->ns.key_len, 4 * bt);
	return (struct scene_prompt){
		.keys = (const uint8_t *)tokens,
		.n_keys = n / bt,
		.tail = tokens + n / bt * bt,
		.n_tail = n % bt,
	};
}

uint64_t scene_match_with(const struct scene_place *at, const struct scene_prompt *p,
			  uint32_t flags, uint32_t deadline_us, struct proto_match_rep *ret)
{
	struct proto_match_req m = {
		.has = PROTO_HAS_ALL,
		.ns = at->ns.ns,
		.tenant = at->tenant,
		.salt = at->salt,
		.flags = flags,
		.deadline_us = deadline_us,
		.n_tokens = p->n_tokens ? p->n_tokens
					: (uint64_t)p->n_keys * at->ns.block_tokens + p->n_tail,
		.keys = { p->keys, p->n_keys * at->ns.key_len },
		.tail = { p->tail, p->n_tail * 4 },
	};

	ck_assert_msg(world_match(at->c, &m, ret) == PROTO_STATUS_OK, "MATCH: %s",
		      at->c->error_text);
	return at->c->seq;
}

void scene_match(const struct scene_place *at, const struct scene_prompt *p,
		 struct proto_match_rep *ret)
{
	scene_match_with(at, p, 0, 0, ret);
}

void scene_release(const struct scene_place *at, uint64_t lease, struct proto_release_rep *ret)
{
	struct proto_release_req m = { .lease = lease };
	struct proto_release_rep rep;

	ck_assert_int_eq(world_release(at->c, &m, ret ? ret : &rep), PROTO_STATUS_OK);
}

static void fill_slots(const struct scene_place *at, struct proto_span runs, uint8_t fill)
{
	uint32_t len = (uint32_t)at->ns.block_bytes;
	uint8_t *block = malloc(len);

	ck_assert_ptr_nonnull(block);
	memset(block, fill, len);
	for (uint32_t i = 0; i < runs.n; i++) {
		struct radix_run run = proto_run_at(runs, i);

		for (uint32_t k = 0; k < run.len; k++)
			if (at->ns.n_write)
				world_desk_write(at->c, run.start + k, block, len);
			else
				world_write(at->c->w, at->ns.group, run.start + k, block, len);
	}
	free(block);
}

uint32_t scene_put(const struct scene_place *at, const struct scene_prompt *p, uint8_t fill)
{
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = p->n_keys };
	struct proto_reserve_rep reserved;
	struct proto_commit_req c = { 0 };
	struct proto_commit_rep committed = { 0 };

	scene_match(at, p, &m);
	r.lease = c.lease = m.lease;
	if (m.n_device < p->n_keys) {
		ck_assert_int_eq(world_reserve_wait(at->c, &r, &reserved), PROTO_STATUS_OK);
		c.n = reserved.n;
		fill_slots(at, reserved.runs, fill);
		ck_assert_int_eq(world_commit(at->c, &c, &committed), PROTO_STATUS_OK);
	}
	scene_release(at, m.lease, NULL);
	return committed.n_stored;
}

uint32_t scene_look(const struct scene_place *at, const struct scene_prompt *p,
		    struct proto_match_rep *ret)
{
	struct proto_match_rep m;

	scene_match(at, p, &m);
	if (ret)
		*ret = m;
	scene_release(at, m.lease, NULL);
	return m.n_device;
}

void scene_loaded(const struct scene_place *at, uint64_t seq, struct proto_event *ret)
{
	struct world *w = at->c->w;
	uint64_t got;

	while (!world_event(at->c, &got, ret)) {
		uint64_t due = world_next_due(w);

		if (due == UINT64_MAX)
			world_fail(w, "a load that never ends");
		world_advance(w, due > w->now_ns ? due - w->now_ns : 0);
	}
	ck_assert_uint_eq(got, seq);
}

void scene_extend(const struct scene_place *at, uint64_t lease, struct proto_match_rep *ret)
{
	struct proto_extend_req m = { .lease = lease };

	ck_assert_int_eq(world_extend(at->c, &m, ret), PROTO_STATUS_OK);
}

uint32_t scene_check_fill(const struct scene_place *at, struct proto_span runs, uint8_t fill)
{
	uint32_t len = (uint32_t)at->ns.block_bytes, n = 0;
	uint8_t *block = malloc(len);

	ck_assert_ptr_nonnull(block);
	for (uint32_t i = 0; i < runs.n; i++) {
		struct radix_run run = proto_run_at(runs, i);

		for (uint32_t k = 0; k < run.len; k++, n++) {
			world_read(at->c->w, at->ns.group, run.start + k, block, len);
			for (uint32_t b = 0; b < len; b++)
				if (block[b] != fill)
					world_fail(at->c->w, "slot %u holds %02x, not %02x",
						   run.start + k, block[b], fill);
		}
	}
	free(block);
	return n;
}

uint32_t scene_bring_up(const struct scene_place *at, const struct scene_prompt *p, uint8_t fill,
			uint64_t *ret_lease)
{
	struct proto_match_rep m;
	struct proto_event e;
	uint64_t seq = scene_match_with(at, p, PROTO_MATCH_PROMOTE, 0, &m);
	uint32_t n = scene_check_fill(at, m.runs, fill);

	ck_assert_uint_eq(n, m.n_device);
	*ret_lease = m.lease;
	if (m.n_host + m.n_redis == 0 || m.advice)
		return n;
	scene_loaded(at, seq, &e);
	ck_assert_uint_eq(e.lease, m.lease);
	scene_extend(at, m.lease, &m);
	ck_assert_uint_eq(scene_check_fill(at, m.runs, fill), m.n_device);
	return n + m.n_device;
}

int scene_main(Suite *s)
{
	return test_run(s);
}
