/*
 * engine_load.c - loads: blocks of lower tiers come up, for a lease or ahead of one.
 *
 * What it guarantees.  A load takes device slots only for moves that begin in the same step, and
 * holds none while it waits.  Its blocks become device copies in path order, so that what has come
 * up is always a prefix of what is wanted; the lease's hold keeps it there.  No block is fetched
 * twice at a time: of loads that want the same block one brings it, and the others go on behind it.
 * A load of a lease ends by one EVENT, or silently with the lease, its RESERVE, or its socket.
 *
 * What it relies on.  Each move is answered.  Paths form a tree: loads that share any block share
 * the first one that is still to come, and that one alone is compared.
 *
 * What happens to a load in a step only notes it as stirred; prefixd_loads_settle() draws the
 * conclusions at the end, when no reply is being written.
 */
#include "daemon/engine_load.h"

#include <stdio.h>

#define WINDOW      256u          /* blocks of one load that may be under way */
#define LOADS_MAX   4096u         /* at a time; each looks at all others of its pool once */
#define LOAD_NS     1000000000ull /* where neither request nor limits name a deadline */
#define PATIENCE_NS 100000000u    /* without a slot, a prospect of one, or a block under way */

static struct prefixd_load *load_of(const struct radix_list *it, size_t off)
{
	return (struct prefixd_load *)(void *)((char *)(uintptr_t)it - off);
}

static struct prefixd_group *load_group(const struct radix_list *stirred)
{
	return (struct prefixd_group *)(void *)((char *)(uintptr_t)stirred -
						offsetof(struct prefixd_group, stirred));
}

uint64_t prefixd_load_due(const struct prefixd_engine *e, uint32_t deadline_us)
{
	uint64_t ns = e->config.limits.reserve_ns ? e->config.limits.reserve_ns : LOAD_NS;

	return e->now_ns + (deadline_us ? (uint64_t)deadline_us * 1000 : ns);
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t load_size(uint32_t n, uint32_t n_ring)
{
	return sizeof(struct prefixd_load) + (size_t)n_ring * sizeof(struct prefixd_arrived) +
	       (size_t)n * sizeof(struct radix_member);
}

static struct prefixd_load *load_new(struct prefixd_engine *e, struct prefixd_root *root,
				     const struct radix_place *device_end,
				     const struct radix_place *end, uint64_t deadline_ns)
{
	struct radix_index *ix = root->ns->group->index;
	uint32_t n = end->depth - device_end->depth, n_ring = 1;
	struct radix_list *at = &e->loads_due;
	struct prefixd_load *load;

	while (n_ring < n && n_ring < WINDOW)
		n_ring *= 2;
	if (e->n_loads >= LOADS_MAX)
		return NULL;
	load = prefixd_take0(e->alloc, load_size(n, n_ring));
	if (!load)
		return NULL;
	load->ring = (struct prefixd_arrived *)(load + 1);
	load->v = (struct radix_member *)(load->ring + n_ring);
	load->n_ring = n_ring;
	load->group = root->ns->group;
	load->root = root;
	load->deadline_ns = deadline_ns;
	load->progress_ns = e->now_ns;
	load->n = load->limit = radix_path_members(ix, end, n, load->v);
	radix_assert(load->n == n);
	radix_list_init(&load->stirred);
	radix_list_init(&load->stuck);
	radix_list_init(&load->followers);
	radix_list_init(&load->follow);
	radix_list_init(&load->room.link);
	load->room.deadline_ns = UINT64_MAX; /* nothing is dropped for it when its own comes */
	load->up.window = load->end.window = true; /* who needs more holds it himself */
	radix_pin_take(ix, &load->up, device_end);
	radix_pin_take(ix, &load->end, end);
	radix_list_add_tail(&load->group->loads, &load->link);
	while (at->prev != &e->loads_due &&
	       radix_list_entry(at->prev, struct prefixd_load, due)->deadline_ns > deadline_ns)
		at = at->prev;
	radix_list_add_tail(at, &load->due);
	root->n_holds++;
	e->n_loads++;
	return load;
}

static void load_free(struct prefixd_engine *e, struct prefixd_load *load)
{
	struct radix_index *ix = load->group->index;

	radix_assert(!load->lease && !load->n_flying && radix_list_empty(&load->followers));
	prefixd_room_leave(&load->room);
	radix_list_remove(&load->link);
	radix_list_remove(&load->due);
	radix_list_remove(&load->stirred);
	radix_list_remove(&load->stuck);
	radix_list_remove(&load->follow);
	radix_pin_drop(ix, &load->up);
	radix_pin_drop(ix, &load->end);
	load->group->reap = true;
	prefixd_room_stir(e, load->group);
	load->root->n_holds--;
	e->n_loads--;
	prefixd_root_left(e, load->root);
	radix_give(e->alloc, load, load_size(load->n, load->n_ring));
}

void prefixd_loads_deinit(struct prefixd_engine *e, struct prefixd_group *g)
{
	while (!radix_list_empty(&g->loads)) {
		struct prefixd_load *load = radix_list_first(&g->loads, struct prefixd_load, link);

		/* The index, with pins and slots, goes as a whole. */
		radix_list_remove(&load->link);
		radix_give(e->alloc, load, load_size(load->n, load->n_ring));
		e->n_loads--;
	}
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void leave_line(struct prefixd_engine *e, struct prefixd_load *load)
{
	if (!radix_list_linked(&load->room.link))
		return;
	prefixd_room_leave(&load->room);
	prefixd_room_stir(e, load->group); /* for those behind it */
}

/* Nothing more is begun; what is under way still lands. */
static void load_end(struct prefixd_engine *e, struct prefixd_load *load, enum proto_reason reason)
{
	if (load->ended)
		return;
	load->ended = true;
	prefixd_load_cut(e, load, load->started, reason);
	leave_line(e, load);
	radix_list_remove(&load->due);
	radix_list_remove(&load->stuck);
	radix_list_remove(&load->follow);
	load->front = NULL;
	load->starved = false;
}

void prefixd_load_orphan(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_load *load = l->load;

	if (!load)
		return;
	if (l->stripe) /* whoever waits for it and has not gone on is told */
		prefixd_call_silent(e, l->stripe, load->seq, PROTO_WAIT_FAILED);
	l->load = NULL;
	load->lease = NULL;
	load->told = true;
	e->n_later--;
	load_end(e, load, PROTO_REASON_NONE);
	prefixd_load_stir(e, load);
}

/* Says what came of it. */
static void tell(struct prefixd_engine *e, struct prefixd_load *load)
{
	struct prefixd_lease *l = load->lease;
	struct proto_header h = { .op = PROTO_OP_EVENT, .seq = load->seq };
	struct prefixd_request rq = { .s = l->session, .h = &h };
	bool lost = prefixd_group_lost(l->group); /* with all that came up */
	uint32_t n = load->done > load->above && !lost ? load->done - load->above : 0;
	struct proto_event event = {
		.lease = l->id,
		.state = n ? PROTO_WAIT_LOADED : PROTO_WAIT_FAILED,
		.n = n,
		.reason = lost                   ? PROTO_REASON_TIER_DOWN
			  : load->done < load->n ? load->reason
						 : PROTO_REASON_NONE,
	};
	struct prefixd_reply rp;

	load->told = true;
	load->lease = NULL;
	l->load = NULL; /* what came up is held by the lease, which holds all that it was told of */
	e->n_later--;
	e->counters.loads_cut += load->done < load->n;
	e->counters.loaded_blocks += n;
	l->load_reason = event.reason;
	if (l->stripe)
		prefixd_call_event(e, l->stripe, load->seq, &event);
	if (l->stripe || l->session->state != PREFIXD_SESSION_READY)
		return; /* the ranks are told in turn, or nobody listens any more */
	prefixd_reply_begin(e, &rp, 0);
	proto_event_encode(&rp.w, &event);
	prefixd_reply_send(e, &rq, &rp);
}

void prefixd_load_fail(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_load *load = l->load;

	if (!load)
		return;
	load_end(e, load, PROTO_REASON_TIER_DOWN);
	tell(e, load);
	prefixd_load_stir(e, load);
}

static bool same_member(struct radix_member a, struct radix_member b)
{
	return a.entry == b.entry && a.generation == b.generation;
}

/* Does `front` bring, or try to bring, what `load` needs next? */
static bool overlaps(const struct prefixd_load *front, const struct prefixd_load *load)
{
	return front->done < front->n && load->done < load->limit &&
	       (front->done < front->limit || front->n_flying) &&
	       same_member(front->v[front->done], load->v[load->done]);
}

/*
 * Another load that brings what this one needs next; NULL: none.  Of those that have not begun it
 * is the oldest, so that they do not follow each other in turns.
 */
static struct prefixd_load *front_of(const struct prefixd_load *load)
{
	const struct radix_list *it;
	bool older = true;

	radix_list_foreach(it, &load->group->loads) {
		struct prefixd_load *o = load_of(it, offsetof(struct prefixd_load, link));

		if (o == load)
			older = false;
		else if (!o->front && (older || o->n_flying) && overlaps(o, load))
			return o;
	}
	return NULL;
}

/* How many blocks could be begun now. */
static uint32_t wanted(const struct prefixd_engine *e, struct prefixd_load *load)
{
	uint32_t left = prefixd_moves_left_up(e, load->group, load->ahead), n;

	if (load->started >= load->limit)
		return 0;
	n = radix_min_u32(load->limit - load->started, load->n_ring - (load->started - load->done));
	if (n > left)
		load->group->up_full = true; /* tried again when a move ends */
	return radix_min_u32(n, left);
}

/* It is this load's turn: `n_free` slots are there. */
static bool serve(struct prefixd_engine *e, struct prefixd_waiter *w, uint32_t n_free, bool last)
{
	struct prefixd_load *load = radix_container_of(w, struct prefixd_load, room);
	uint32_t n = radix_min_u32(wanted(e, load), n_free), started = load->started;

	if (n && prefixd_moves_room(e, n) < 0) {
		prefixd_load_cut(e, load, started, PROTO_REASON_NO_ROOM);
		n = 0;
	}
	(void)prefixd_load_take(e, load, n);
	if (load->started != started)
		prefixd_load_stir(e, load);
	w->want = wanted(e, load);
	if (w->want && !last)
		return false;
	/* It asks again when a block has come up, or when something else became free: nobody
	 * behind it shall wait for that. */
	load->starved = w->want > 0;
	load->group->loads_starve = load->group->loads_starve || load->starved;
	prefixd_room_leave(w);
	prefixd_load_stir(e, load); /* does it wait in vain for long? */
	return true;
}

static void begin(struct prefixd_engine *e, struct prefixd_load *load)
{
	uint32_t n;

	if (load->ended || load->front || load->starved)
		return;
	(void)prefixd_load_take(e, load, 0); /* nobody waits for a slot that is of no use */
	n = wanted(e, load);
	if (n == 0)
		return;
	load->room.want = n;
	if (radix_list_linked(&load->room.link))
		prefixd_room_stir(e, load->group);
	else
		prefixd_room_ask(e, load->group, &load->room);
}

/*
 * An island may begin behind blocks that lie lower themselves, which have to come up first.
 * *ret_from: behind the last of its beginning that has a device copy.  Return: 0, -ENOMEM.
 */
static int find_start(struct prefixd_engine *e, const struct prefixd_lease *l,
		      struct radix_place *ret_from)
{
	struct radix_index *ix = l->group->index;
	uint32_t n = l->pin.at.depth, first = 0, len;
	struct radix_member last, *path;
	enum radix_tier tier = RADIX_TIER_DEVICE;
	const void *key;
	bool rooted;

	*ret_from = l->pin.at;
	if (!l->island || radix_path_members(ix, &l->pin.at, 1, &last) == 0 ||
	    radix_member_tier(ix, last, &tier) != 0 || tier == RADIX_TIER_DEVICE)
		return 0;
	path = radix_take(e->alloc, n * sizeof(*path));
	if (!path)
		return -ENOMEM;
	n = radix_path_members(ix, &l->pin.at, n, path);
	while (first < n && radix_member_tier(ix, path[first], &tier) == 0 &&
	       tier == RADIX_TIER_DEVICE)
		first++;
	if (first == n || radix_member_key(ix, path[first], &key, &len) != 0 ||
	    radix_find_digest(ix, l->root->index_root, key, ret_from, &rooted) != 0)
		*ret_from = l->pin.at;
	radix_give(e->alloc, path, l->pin.at.depth * sizeof(*path));
	return 0;
}

bool prefixd_load_begin(struct prefixd_engine *e, struct prefixd_lease *l, uint64_t seq,
			uint64_t deadline_ns)
{
	struct prefixd_load *load;
	struct radix_place from;

	if (l->load)
		return true;
	if (find_start(e, l, &from) < 0)
		return false;
	load = load_new(e, l->root, &from, &l->hold.at, deadline_ns);
	if (!load)
		return false;
	load->above = l->pin.at.depth - from.depth;
	load->lease = l;
	load->seq = seq;
	load->room.serve = serve;
	l->load = load;
	if (l->stripe)
		prefixd_call_tells(l->stripe, seq);
	l->load_reason = PROTO_REASON_NONE;
	e->n_later++;
	e->counters.loads++;
	prefixd_load_stir(e, load);
	return true;
}

bool prefixd_load_ahead(struct prefixd_engine *e, struct prefixd_root *root,
			const struct radix_place *device_end, const struct radix_place *end,
			uint64_t deadline_ns)
{
	struct prefixd_load *load = load_new(e, root, device_end, end, deadline_ns);

	if (!load)
		return false;
	load->ahead = true;
	load->room.serve = serve;
	load->room.behind = true;
	load->told = true;
	e->counters.prefetches++;
	prefixd_load_stir(e, load);
	return true;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

/* Follows another load that brings the next block, or begins itself. */
static void find_front(struct prefixd_engine *e, struct prefixd_load *load)
{
	struct prefixd_load *front;
	struct radix_list *it;

	if (load->ended || load->front || load->n_flying || load->done == load->limit)
		return;
	/* A worker may have stored what another load waits for: where do they all stand now? */
	radix_list_foreach(it, &load->group->loads)
		if (prefixd_load_advance(e, load_of(it, offsetof(struct prefixd_load, link))))
			prefixd_load_stir(e, load_of(it, offsetof(struct prefixd_load, link)));
	front = front_of(load);
	if (!front)
		return;
	leave_line(e, load);
	load->starved = false;
	load->front = front;
	radix_list_add_tail(&front->followers, &load->follow);
	/* What nobody waits for makes way for what somebody does. */
	if (front->ahead && !load->ahead)
		load_end(e, front, PROTO_REASON_NONE);
}

/* Those that wait for this one's blocks see how far it has come; who follows leads nobody. */
static void lead_on(struct prefixd_engine *e, struct prefixd_load *load)
{
	struct radix_list *it, *tmp;

	radix_list_foreach_safe(it, tmp, &load->followers) {
		struct prefixd_load *f = load_of(it, offsetof(struct prefixd_load, follow));

		if (prefixd_load_advance(e, f))
			prefixd_load_stir(e, f);
		if (f->ended || (!load->front && overlaps(load, f)))
			continue;
		radix_list_remove(&f->follow);
		f->front = NULL;
		prefixd_load_stir(e, f);
	}
}

/* Others have come to need what this one brings: they will follow it. */
static void call_others(struct prefixd_engine *e, struct prefixd_load *load)
{
	const struct radix_list *it;
	bool younger = false;

	if (load->ended || load->front)
		return;
	radix_list_foreach(it, &load->group->loads) {
		struct prefixd_load *o = load_of(it, offsetof(struct prefixd_load, link));

		if (o == load)
			younger = true;
		else if ((younger || load->n_flying) && !o->ended && !o->front && !o->n_flying &&
			 overlaps(load, o))
			prefixd_load_stir(e, o);
	}
}

/* As below, for those that somebody waits for, or the others. */
static void wake_some(struct prefixd_engine *e, struct prefixd_group *g, bool ahead, bool *starve)
{
	uint32_t left = prefixd_moves_left_up(e, g, ahead);
	struct radix_list *it;

	radix_list_foreach(it, &g->loads) {
		struct prefixd_load *load = load_of(it, offsetof(struct prefixd_load, link));

		if (load->ahead != ahead || load->ended || load->front ||
		    load->started >= load->limit || radix_list_linked(&load->room.link))
			continue;
		if (load->starved && !*starve) {
			g->loads_starve = true;
			continue;
		}
		if (load->starved) {
			load->starved = *starve = false;
		} else if (left) {
			left--;
		} else {
			g->up_full = true;
			continue;
		}
		prefixd_load_stir(e, load);
	}
}

/*
 * Something of the group became free, or a move has ended: loads that found the window full, and
 * the one that has been without a slot for the longest, try again.
 */
void prefixd_loads_wake(struct prefixd_engine *e, struct prefixd_group *g)
{
	bool starve = g->loads_starve;

	if (!starve && !g->up_full)
		return;
	g->loads_starve = g->up_full = false;
	wake_some(e, g, false, &starve);
	wake_some(e, g, true, &starve);
}

/* Who has nothing to hope for is not kept waiting: his worker would rather compute. */
static void judge(struct prefixd_engine *e, struct prefixd_load *load)
{
	struct radix_list *at = &e->loads_stuck;

	if (load->ended || !load->starved || load->n_flying) {
		radix_list_remove(&load->stuck);
		return;
	}
	if (e->now_ns - load->progress_ns >= PATIENCE_NS) {
		load_end(e, load, PROTO_REASON_NO_ROOM);
		return;
	}
	if (radix_list_linked(&load->stuck))
		return;
	while (at->prev != &e->loads_stuck &&
	       radix_list_entry(at->prev, struct prefixd_load, stuck)->progress_ns >
		       load->progress_ns)
		at = at->prev;
	radix_list_add_tail(at, &load->stuck);
}

static void settle(struct prefixd_engine *e, struct prefixd_load *load)
{
	struct prefixd_group *g;

	if (!load->ended) {
		(void)prefixd_load_advance(e, load);
		find_front(e, load);
		begin(e, load);
		if (load->done >= load->limit)
			load_end(e, load, load->reason);
		judge(e, load);
	}
	lead_on(e, load);
	call_others(e, load);
	if (load->ended && !load->told)
		tell(e, load);
	if (!load->ended || load->n_flying)
		return;
	g = load->group;
	load_free(e, load);
	prefixd_loads_wake(e, g); /* what it pinned may be had */
}

void prefixd_loads_settle(struct prefixd_engine *e)
{
	const struct radix_list *it;

	radix_list_foreach(it, &e->stirred)
		prefixd_loads_wake(e, load_group(it));
	while (!radix_list_empty(&e->loads_stirred)) {
		struct prefixd_load *load = radix_list_first(&e->loads_stirred, struct prefixd_load,
							     stirred);

		radix_list_remove(&load->stirred);
		settle(e, load);
	}
}

bool prefixd_loads_make_way(struct prefixd_engine *e, struct prefixd_group *g)
{
	struct radix_list *it;
	bool any = false;

	radix_list_foreach(it, &g->loads) {
		struct prefixd_load *load = load_of(it, offsetof(struct prefixd_load, link));
		struct radix_place nowhere = radix_place_root(load->root->index_root);

		if (!load->ahead || load->ended)
			continue;
		load_end(e, load, PROTO_REASON_NO_ROOM);
		any = true;
		if (load->n_flying) /* these are attached, and held until the last one is */
			continue;
		/* It goes at the end of the step; what it holds is wanted now. */
		radix_pin_move(g->index, &load->up, &nowhere);
		radix_pin_move(g->index, &load->end, &nowhere);
	}
	return any;
}

void prefixd_loads_end(struct prefixd_engine *e, struct prefixd_group *g)
{
	struct radix_list *it;

	radix_list_foreach(it, &g->loads) {
		struct prefixd_load *load = load_of(it, offsetof(struct prefixd_load, link));

		load_end(e, load, PROTO_REASON_TIER_DOWN);
		prefixd_load_stir(e, load);
	}
}

void prefixd_loads_cut(struct prefixd_engine *e, const struct prefixd_root *root)
{
	struct radix_list *it;

	radix_list_foreach(it, &root->ns->group->loads) {
		struct prefixd_load *load = load_of(it, offsetof(struct prefixd_load, link));

		if (load->root == root)
			prefixd_load_cut(e, load, load->done, PROTO_REASON_NAMESPACE);
	}
}

void prefixd_loads_time(struct prefixd_engine *e)
{
	while (!radix_list_empty(&e->loads_due)) {
		struct prefixd_load *load = radix_list_first(&e->loads_due, struct prefixd_load,
							     due);

		if (load->deadline_ns > e->now_ns)
			break;
		load_end(e, load,
			 load->n_flying || (load->front && load->front->n_flying)
				 ? PROTO_REASON_TIER_DOWN
				 : PROTO_REASON_NO_ROOM);
		/* What is under way lands, too late for this load. */
		if (load->reason == PROTO_REASON_NONE)
			load->reason = PROTO_REASON_TIER_DOWN;
	}
	while (!radix_list_empty(&e->loads_stuck)) {
		struct prefixd_load *load = radix_list_first(&e->loads_stuck, struct prefixd_load,
							     stuck);

		if (e->now_ns - load->progress_ns < PATIENCE_NS)
			break;
		load_end(e, load, PROTO_REASON_NO_ROOM);
	}
}

uint64_t prefixd_loads_deadline(const struct prefixd_engine *e)
{
	uint64_t due = UINT64_MAX;

	if (!radix_list_empty(&e->loads_due))
		due = radix_list_first(&e->loads_due, struct prefixd_load, due)->deadline_ns;
	if (!radix_list_empty(&e->loads_stuck))
		due = radix_min_u64(
			due,
			radix_list_first(&e->loads_stuck, struct prefixd_load, stuck)->progress_ns +
				PATIENCE_NS);
	return due;
}

/* ---- invariants ------------------------------------------------------------------------------ */

static const char *broken(const struct prefixd_load *load, const struct prefixd_group *g)
{
	if (load->done > load->limit || load->limit > load->n || load->done > load->started ||
	    load->started - load->done > load->n_ring)
		return "its counts are out of order";
	if (load->up.at.depth + (load->n - load->done) < load->end.at.depth)
		return "its pin does not stand behind what has come up";
	if (load->lease && load->lease->load != load)
		return "its lease does not know it";
	if (load->ended == radix_list_linked(&load->due))
		return "it has a deadline and has ended, or neither";
	if (load->front && (load->ended || load->n_flying || load->front->front ||
			    radix_list_linked(&load->room.link)))
		return "it follows and does more";
	if (load->ended && (!load->told || radix_list_linked(&load->room.link)))
		return "it has ended and waits";
	if (load->ended && !load->n_flying)
		return "it should be gone";
	if (!load->ended && load->done == load->limit)
		return "it has all it can get and goes on";
	if (load->starved && (load->ended || (load->started < load->limit && !g->loads_starve)))
		return "it starves, and nobody knows";
	if (!load->ended && !load->front && !load->n_flying && !g->up_full && !load->starved &&
	    !radix_list_linked(&load->room.link))
		return "it waits for nothing";
	if (radix_list_linked(&load->stuck) != (load->starved && !load->n_flying))
		return "it has no prospect and will not end, or has one and will";
	return NULL;
}

int prefixd_loads_verify(const struct prefixd_engine *e, const struct prefixd_group *g,
			 uint64_t *pins, uint64_t *slots, char *why, size_t why_len)
{
	const struct radix_list *it;
	uint32_t n_flying = 0, n_due = 0;
	uint64_t last = 0;

	radix_list_foreach(it, &g->loads) {
		const struct prefixd_load *load = load_of(it, offsetof(struct prefixd_load, link));
		const char *text = broken(load, g);

		if (!text && !load->ended && !load->front && front_of(load) && !load->n_flying)
			text = "another one brings its next block";
		if (text) {
			snprintf(why, why_len, "a load of %u blocks, %u up, %u begun, up to %u: %s",
				 load->n, load->done, load->started, load->limit, text);
			return 20;
		}
		n_flying += load->n_flying;
		*pins += 2;
		*slots += load->n_flying;
		for (uint32_t i = load->done; i < load->started; i++)
			*slots += prefixd_load_ring(load, i)->state == PREFIXD_BLOCK_ARRIVED;
	}
	if (n_flying != g->n_moving[RADIX_TIER_HOST][RADIX_TIER_DEVICE] +
				g->n_moving[RADIX_TIER_REDIS][RADIX_TIER_DEVICE]) {
		snprintf(why, why_len, "pool %u: loads wait for %u moves", g->id, n_flying);
		return 20;
	}
	radix_list_foreach(it, &e->loads_due) {
		const struct prefixd_load *load = load_of(it, offsetof(struct prefixd_load, due));

		if (load->deadline_ns < last || n_due++ > e->n_loads) {
			snprintf(why, why_len, "deadlines of loads are out of order");
			return 20;
		}
		last = load->deadline_ns;
	}
	if (!radix_list_empty(&e->loads_stirred)) {
		snprintf(why, why_len, "a load waits to be looked at");
		return 20;
	}
	return 0;
}
