/*
 * engine_seek.c - what Redis is asked about missing blocks.
 *
 * What it guarantees.  A request is answered in the step that reads it, whatever Redis does: LOOK
 * goes out beside the reply, and what is found serves whoever asks next.  Of the same place one
 * LOOK is under way at a time; few are at a time altogether, and few per second, so that cold
 * prompts do not turn into load on Redis.
 *
 * What it relies on.  Each LOOK is answered, if only with nothing.  The place stays where it is
 * because a seek pins it.
 */
#include "daemon/engine_internal.h"

#include <stdio.h>

#define SEEKS_MAX      32u  /* under way */
#define SEEK_KEYS      256u /* of one LOOK */
#define SEEK_KEY_BYTES (1u << 20)
#define SEEK_EVERY_NS  1000000u /* one LOOK is earned */
#define SEEK_BURST     32u

struct prefixd_seek {
	struct radix_list link;
	uint32_t id;
	struct prefixd_root *root; /* counts it in n_holds */
	struct radix_pin at;
	uint32_t depth;      /* of the place when it was asked about */
	bool load;           /* what is found is to come up */
	struct radix_pin up; /* with load: where device copies end */
	uint64_t deadline_ns;
	uint32_t n;
	size_t size; /* of all this */
	uint8_t keys[];
};

static struct prefixd_seek *seek_at(const struct radix_list *it)
{
	return radix_list_entry((struct radix_list *)(uintptr_t)it, struct prefixd_seek, link);
}

/* ---- LOOK ------------------------------------------------------------------------------------ */

static void seek_free(struct prefixd_engine *e, struct prefixd_seek *s)
{
	if (s)
		radix_give(e->alloc, s, s->size);
}

/* The index lets go of it; its keys stay until the next one ends. */
static void seek_end(struct prefixd_engine *e, struct prefixd_seek *s)
{
	struct prefixd_group *g = s->root->ns->group;

	radix_list_remove(&s->link);
	e->n_seeks--;
	radix_pin_drop(g->index, &s->at);
	if (s->load)
		radix_pin_drop(g->index, &s->up);
	g->reap = true;
	prefixd_room_stir(e, g);
	s->root->n_holds--;
	prefixd_root_left(e, s->root);
	seek_free(e, e->spent);
	e->spent = s;
}

void prefixd_seeks_deinit(struct prefixd_engine *e)
{
	while (!radix_list_empty(&e->seeks)) {
		struct prefixd_seek *s = radix_list_first(&e->seeks, struct prefixd_seek, link);

		radix_list_remove(&s->link);
		seek_free(e, s);
	}
	seek_free(e, e->spent);
	e->spent = NULL;
	e->n_seeks = 0;
}

/* Somebody asks for the same already; whoever wants it to come up may add that. */
static bool asked(const struct prefixd_engine *e, const struct radix_place *at, const void *keys,
		  uint32_t key_len)
{
	const struct radix_list *it;

	radix_list_foreach(it, &e->seeks) {
		const struct prefixd_seek *s = seek_at(it);

		if (s->at.at.root == at->root && s->at.at.node == at->node &&
		    s->at.at.idx == at->idx && s->root->ns->key_len == key_len &&
		    memcmp(s->keys, keys, key_len) == 0)
			return true;
	}
	return false;
}

static bool earned(struct prefixd_engine *e)
{
	if (e->seek_ns > e->now_ns + (uint64_t)(SEEK_BURST - 1) * SEEK_EVERY_NS)
		return false;
	e->seek_ns = (e->seek_ns > e->now_ns ? e->seek_ns : e->now_ns) + SEEK_EVERY_NS;
	return true;
}

static struct prefixd_seek *seek_new(struct prefixd_engine *e, struct prefixd_root *root,
				     const struct radix_place *at, const void *keys, uint32_t n)
{
	size_t size = sizeof(struct prefixd_seek) + (size_t)n * root->ns->key_len;
	struct prefixd_seek *s = prefixd_take0(e->alloc, size);

	if (!s)
		return NULL;
	s->size = size;
	s->id = e->next_seek++;
	s->root = root;
	s->n = n;
	s->depth = at->depth;
	memcpy(s->keys, keys, (size_t)n * root->ns->key_len);
	s->at.window = s->up.window = true;
	radix_pin_take(root->ns->group->index, &s->at, at);
	radix_list_add_tail(&e->seeks, &s->link);
	e->n_seeks++;
	root->n_holds++;
	return s;
}

void prefixd_seek(struct prefixd_engine *e, struct prefixd_root *root, const struct radix_place *at,
		  const void *keys, uint32_t n_keys, const struct radix_place *device_end,
		  uint64_t deadline_ns)
{
	const struct prefixd_namespace *ns = root->ns;
	struct radix_index *ix = ns->group->index;
	struct radix_member before;
	struct prefixd_seek *s;
	struct prefixd_action *a;

	if (!e->config.redis || !e->redis_up || n_keys == 0 || root->detached || e->draining ||
	    asked(e, at, keys, ns->key_len))
		return;
	n_keys = radix_min_u32(radix_min_u32(n_keys, SEEK_KEYS), SEEK_KEY_BYTES / ns->key_len);
	/* Without memory, or where there is too much of it already, the question is not asked. */
	if (e->n_seeks >= SEEKS_MAX || prefixd_names_path(e, root, at) < 0 ||
	    prefixd_actions_room(e, 1) < 0 || !earned(e)) {
		e->counters.looks_skipped++;
		return;
	}
	s = seek_new(e, root, at, keys, n_keys);
	if (!s)
		return;
	s->deadline_ns = deadline_ns;
	s->load = device_end != NULL;
	if (s->load)
		radix_pin_take(ix, &s->up, device_end);
	e->counters.looks++;
	a = prefixd_act(e, PREFIXD_ACTION_LOOK, RADIX_NONE);
	a->group = ns->group->id;
	a->u.look.id = s->id;
	a->u.look.deadline_ns = deadline_ns;
	a->u.look.names = (struct prefixd_names){
		.mode = ns->mode,
		.parent = RADIX_NONE,
		.key_len = ns->key_len,
		.n = n_keys,
		.keys = s->keys,
	};
	if (ns->mode == RADIX_KEYS_TOKENS && radix_path_members(ix, at, 1, &before) == 1)
		a->u.look.names.parent = before.entry;
	memcpy(a->u.look.names.root, root->name, sizeof(root->name));
	memcpy(a->u.look.names.ns_digest, ns->digest, sizeof(ns->digest));
}

/* Adds what is there behind the members that came to be meanwhile. */
static void found(struct prefixd_engine *e, struct prefixd_seek *s, uint32_t n)
{
	const struct prefixd_namespace *ns = s->root->ns;
	struct radix_index *ix = ns->group->index;
	struct radix_match m;
	uint32_t added, skip;

	/* Where blocks are lost, pins move up: what was asked about does not follow there. */
	if (s->at.at.depth != s->depth)
		return;
	radix_match(ix, &s->at.at, s->keys, n, NULL, &m);
	skip = m.n_blocks;
	radix_pin_move(ix, &s->at, &m.end);
	if (skip < n && prefixd_names_path(e, s->root, &s->at.at) == 0 &&
	    prefixd_names_room(e, n - skip) == 0) {
		const uint8_t *keys = s->keys + (size_t)skip * ns->key_len;

		added = radix_add_lower(ix, &s->at, keys, n - skip, prefixd_tick(e), e->members);
		e->counters.found_blocks += added;
		radix_match(ix, &s->at.at, keys, added, NULL, &m);
		radix_assert(m.n_blocks == added);
		radix_pin_move(ix, &s->at, &m.end);
		prefixd_name_members(e, s->root, &s->at.at, keys, added);
		ns->group->reap = true;
	}
	if (s->load && s->at.at.depth > s->up.at.depth && !prefixd_group_lost(ns->group))
		(void)prefixd_load_ahead(e, s->root, &s->up.at, &s->at.at, s->deadline_ns);
}

void prefixd_looked(struct prefixd_engine *e, const struct prefixd_event *event)
{
	struct radix_list *it;

	radix_list_foreach(it, &e->seeks) {
		struct prefixd_seek *s = seek_at(it);

		if (s->id != event->u.looked.id)
			continue;
		if (!s->root->detached)
			found(e, s, radix_min_u32(event->u.looked.n, s->n));
		seek_end(e, s);
		return;
	}
}

int prefixd_seeks_verify(const struct prefixd_engine *e, const struct prefixd_group *g,
			 uint64_t *pins, char *why, size_t why_len)
{
	const struct radix_list *it;
	uint32_t n = 0;

	radix_list_foreach(it, &e->seeks) {
		const struct prefixd_seek *s = seek_at(it);

		n++;
		if (s->root->ns->group == g)
			*pins += 1u + s->load;
		if (s->load && s->up.at.depth > s->at.at.depth) {
			snprintf(why, why_len, "seek %u begins above its device copies", s->id);
			return 21;
		}
	}
	if (n != e->n_seeks || n > SEEKS_MAX) {
		snprintf(why, why_len, "%u seeks are under way, %u are counted", n, e->n_seeks);
		return 21;
	}
	return 0;
}
