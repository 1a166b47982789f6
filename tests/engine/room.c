/*
 * room.c - see room.h.
 */
#include "tests/engine/room.h"

#define PROMPT_BLOCKS 1024u
#define PROMPTS       16u

void room_config(struct world_config *config, uint32_t slots, uint32_t host)
{
	world_config_init(config);
	config->engine.pool_blocks = slots;
	config->tiers.host_blocks = host;
	config->tiers.copy.bytes_per_s = 64 * 1000; /* of blocks of 64 bytes */
}

struct world *room_world(const struct world_config *config)
{
	static struct world w;

	ck_assert_int_eq(world_init(&w, config), 0);
	return &w;
}

struct scene_place room_place(struct world *w, uint32_t pid)
{
	struct proto_open_req o = world_open_req("m");

	return scene_place(w, pid, 1000, &o);
}

struct scene_prompt room_prompt(uint32_t id, uint32_t n)
{
	static uint32_t tokens[PROMPTS][4 * PROMPT_BLOCKS];

	ck_assert(id < PROMPTS && n <= PROMPT_BLOCKS);
	for (uint32_t i = 0; i < 4 * n; i++)
		tokens[id][i] = id << 20 | (i + 1);
	return (struct scene_prompt){ .keys = (const uint8_t *)tokens[id], .n_keys = n };
}

struct room_lease room_match(const struct scene_place *at, uint32_t id, uint32_t n)
{
	struct scene_prompt p = room_prompt(id, n);
	struct proto_match_rep m;

	scene_match(at, &p, &m);
	return (struct room_lease){ .id = m.lease, .n_device = m.n_device, .n_host = m.n_host };
}

int room_reserve(const struct scene_place *at, struct room_lease *l, uint32_t n,
		 uint32_t deadline_us, uint32_t *ret_n)
{
	struct proto_reserve_req r = { .lease = l->id, .n = n, .deadline_us = deadline_us };
	struct proto_reserve_rep rep = { 0 };
	int status = world_reserve(at->c, &r, &rep);

	l->seq = at->c->seq;
	if (ret_n)
		*ret_n = rep.n;
	return status;
}

int room_reply(const struct scene_place *at, const struct room_lease *l, uint32_t *ret_n)
{
	struct proto_reserve_rep rep = { 0 };
	int status = world_reserve_reply(at->c, l->seq, &rep);

	if (ret_n)
		*ret_n = rep.n;
	return status;
}

void room_commit(const struct scene_place *at, const struct room_lease *l, uint32_t n)
{
	struct proto_commit_req c = { .lease = l->id, .n = n };
	struct proto_commit_rep rep;

	ck_assert_int_eq(world_commit(at->c, &c, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_stored, n);
}

void room_release(const struct scene_place *at, const struct room_lease *l)
{
	scene_release(at, l->id, NULL);
}

void room_put(const struct scene_place *at, uint32_t id, uint32_t n)
{
	struct room_lease l = room_match(at, id, n);
	struct proto_reserve_req r = { .lease = l.id, .n = n - l.n_device };
	struct proto_reserve_rep rep;

	ck_assert_int_eq(world_reserve_wait(at->c, &r, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n, r.n);
	room_commit(at, &l, r.n);
	room_release(at, &l);
}

struct radix_stats room_stats(struct world *w)
{
	struct radix_stats st;

	world_stats(w, 0, &st);
	return st;
}
