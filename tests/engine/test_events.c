/*
 * test_events.c - SUBSCRIBE and its stream: what a follower knows, who sees what, who is told that
 * he lost something.
 */
#include "tests/engine/follower.h"
#include "tests/engine/scene.h"

static struct world w;
static struct follower f;

static void begin(uint32_t ring)
{
	struct world_config config;

	world_config_init(&config);
	config.engine.event_ring = ring;
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static struct world_client *operator(uint32_t pid)
{
	struct world_client *c = world_connect(&w, pid, 0, true);
	struct proto_hello_req m = world_hello_req(c);
	struct proto_hello_rep rep;

	ck_assert_int_eq(world_hello(c, &m, &rep), PROTO_STATUS_OK);
	return c;
}

static struct scene_prompt counting(const struct scene_place *at, uint32_t *tokens, uint32_t first,
				    uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = first + i;
	return scene_tokens(at, tokens, n);
}

static void put(const struct scene_place *at, uint32_t first, uint32_t n_blocks)
{
	uint32_t tokens[256];
	struct scene_prompt p = counting(at, tokens, first, 4 * n_blocks);

	scene_put(at, &p, 1);
}

/* ---- random workers -------------------------------------------------------------------------- */

#define N_HELD 12

static struct {
	const struct scene_place *at; /* NULL: free */
	uint64_t lease;
	uint32_t n_reserved;
} held[N_HELD];

static uint32_t below(uint32_t n)
{
	return test_rng_below(&w.rng, n);
}

/* A walk in a small tree of choices, as token keys or as digests. */
static uint32_t make_keys(const struct scene_place *at, uint8_t *keys)
{
	uint32_t n = 1 + below(12), topic = below(5);
	uint64_t h = 77 + at->ns.ns;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t pick = i ? below(8) == 0 : topic;
		uint32_t tokens[4] = { i, pick, 5, 6 };

		h = (h ^ pick ^ (i << 8)) * 0x9e3779b97f4a7c15u;
		h ^= h >> 31;
		memcpy(keys + 16 * i, tokens, 16);
		if (at->ns.digest.n == 0) /* marks the digest namespace, see rebuilt() */
			continue;
		memset(keys + 16 * i, 0, 16);
		memcpy(keys + 16 * i, &h, 8);
		keys[16 * i + 8] = (uint8_t)i;
	}
	return n;
}

static void begin_lease(const struct scene_place *at, uint32_t k)
{
	uint8_t keys[16 * 12];
	uint32_t n = make_keys(at, keys), skip = 0;
	struct proto_match_req m = {
		.has = PROTO_HAS_ALL, .ns = at->ns.ns, .tenant = at->tenant, .salt = at->salt
	};
	struct proto_match_rep rep;
	int r;

	if (at->ns.digest.n && n > 2 && below(3) == 0) {
		skip = 1 + below(n - 1);
		m.flags = PROTO_MATCH_ISLAND;
		if (below(2))
			m.parent = (struct proto_span){ keys + 16 * (skip - 1), 16 };
	}
	m.keys = (struct proto_span){ keys + 16 * skip, 16 * (n - skip) };
	m.n_tokens = 4 * (uint64_t)(n - skip);
	r = world_match(at->c, &m, &rep);
	if (r == PROTO_STATUS_CONFLICT)
		return;
	ck_assert_int_eq(r, PROTO_STATUS_OK);
	held[k].at = at;
	held[k].lease = rep.lease;
	held[k].n_reserved = 0;
}

static void go_on(uint32_t k)
{
	struct proto_reserve_req reserve = { .lease = held[k].lease, .n = 1 + below(12) };
	struct proto_reserve_rep reserved;
	struct proto_commit_req commit = { .lease = held[k].lease };
	struct proto_commit_rep committed;
	struct world_client *c = held[k].at->c;

	switch (below(4)) {
	case 0:
	case 1:
		if (world_reserve(c, &reserve, &reserved) == PROTO_STATUS_OK)
			held[k].n_reserved += reserved.n;
		break;
	case 2:
		if (!held[k].n_reserved)
			return;
		commit.n = 1 + below(held[k].n_reserved);
		if (world_commit(c, &commit, &committed) == PROTO_STATUS_OK) {
			held[k].n_reserved -= commit.n;
			break;
		}
		scene_release(held[k].at, held[k].lease, NULL); /* CONFLICT */
		held[k].at = NULL;
		break;
	default:
		scene_release(held[k].at, held[k].lease, NULL);
		held[k].at = NULL;
	}
}

static void some_work(const struct scene_place *places, uint32_t n_places)
{
	uint32_t k = below(N_HELD), what = below(200);

	if (what == 0)
		world_flush(&w, below(2) ? RADIX_NONE : places[below(n_places)].ns.ns);
	else if (what < 4)
		world_evict(&w, 0, 1 + below(10));
	else if (!held[k].at)
		begin_lease(&places[below(n_places)], k);
	else
		go_on(k);
}

/* Duplicates, islands, evictions, flushes with leases held: the follower always knows. */
START_TEST(rebuilt)
{
	struct proto_open_req tokens = world_open_req("m"), digests = world_open_req("d");
	struct prefixd_counters counters;
	struct scene_place places[5];

	begin(1024);
	digests.key_mode = PROTO_KEYS_DIGEST;
	digests.digest_len = 16;
	digests.seed_probe = world_text("0123456789abcdef");
	places[0] = scene_place(&w, 1, 1000, &tokens);
	places[1] = scene_place(&w, 2, 1000, &tokens);
	places[1].salt = world_text("s");
	places[2] = scene_place(&w, 3, 2000, &tokens);
	places[2].tenant = 1;
	places[3] = scene_place(&w, 4, 1000, &digests);
	places[4] = scene_place(&w, 5, 1000, &digests);
	places[0].ns.digest.n = places[1].ns.digest.n = places[2].ns.digest.n = 0;
	ck_assert_uint_eq(places[3].ns.digest.n, 32);
	ck_assert_int_eq(follower_begin(&f, operator(9), 0, 0, NULL), PROTO_STATUS_OK);
	for (uint32_t i = 0; i < 30000; i++) {
		some_work(places, radix_array_size(places));
		if (below(30))
			continue;
		follower_listen(&f);
		follower_check(&f, 0);
	}
	follower_listen(&f);
	follower_check(&f, 0);
	counters = world_counters(&w);
	/* It was no idle life. */
	ck_assert_uint_gt(f.most_taken, 10);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 0);
	ck_assert_uint_ge(f.n[PROTO_CHANGE_STORED], counters.committed_blocks);
	ck_assert_uint_gt(counters.committed_blocks, 3000);
	ck_assert_uint_gt(f.n[PROTO_CHANGE_CLEARED], 50);
	ck_assert_uint_gt(f.removed[PROTO_REMOVAL_CAPACITY], 500);
	ck_assert_uint_gt(f.removed[PROTO_REMOVAL_EVICT], 500);
	ck_assert_uint_eq(f.removed[PROTO_REMOVAL_FLUSH], 0); /* told by `cleared` */
	ck_assert_uint_gt(counters.duplicate_blocks, 100);
	ck_assert_uint_eq(counters.events_dropped, 0);
	ck_assert_uint_eq(counters.events_emitted, f.n_events);
	memset(held, 0, sizeof(held));
	world_deinit(&w);
}
END_TEST

/* ---- clears ---------------------------------------------------------------------------------- */

START_TEST(clear_empties)
{
	struct proto_open_req a = world_open_req("a"), b = world_open_req("b");
	struct scene_place pa, pb;
	struct scene_prompt p;
	struct proto_match_rep lease;
	uint32_t t[16];

	begin(1024);
	pa = scene_place(&w, 1, 1000, &a);
	pb = scene_place(&w, 2, 1000, &b);
	ck_assert_int_eq(follower_begin(&f, operator(9), 0, 0, NULL), PROTO_STATUS_OK);
	put(&pa, 0, 8);
	put(&pa, 500, 3);
	put(&pb, 0, 5);
	follower_listen(&f);
	ck_assert_uint_eq(follower_n(&f), 16);
	ck_assert_uint_eq(world_flush(&w, pa.ns.ns), 11);
	follower_listen(&f);
	ck_assert_uint_eq(follower_n(&f), 5);
	ck_assert_uint_eq(f.revision, 1);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_REMOVED], 0);
	follower_check(&f, 0);
	/* What a lease holds stays, and is told again. */
	put(&pa, 0, 8);
	p = counting(&pa, t, 0, 12);
	scene_match(&pa, &p, &lease);
	ck_assert_uint_eq(lease.n_device, 3);
	ck_assert_uint_eq(world_flush(&w, pa.ns.ns), 5);
	follower_listen(&f);
	ck_assert_uint_eq(follower_n(&f), 8);
	ck_assert_uint_eq(f.revision, 2);
	follower_check(&f, 0);
	scene_release(&pa, lease.lease, NULL);
	world_flush(&w, RADIX_NONE);
	follower_listen(&f);
	ck_assert_uint_eq(follower_n(&f), 0);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_CLEARED], 4);
	follower_check(&f, 0);
	world_deinit(&w);
}
END_TEST

/* ---- who sees what --------------------------------------------------------------------------- */

START_TEST(who_sees_what)
{
	static struct follower red, blue, other, one;
	struct proto_open_req a = world_open_req("a"), b = world_open_req("b"), late;
	struct scene_place ra, rb, ba, again;
	struct world_client *c;

	begin(1024);
	ra = scene_place(&w, 1, 1000, &a);
	rb = scene_place(&w, 2, 1000, &b);
	ba = scene_place(&w, 3, 2000, &a);
	ba.tenant = 1;
	ck_assert_int_eq(follower_begin(&red, ra.c, 0, 0, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(follower_begin(&blue, ba.c, 0, 0, NULL), PROTO_STATUS_OK);
	c = world_worker(&w, 4, 1000); /* opens nothing, sees nothing */
	ck_assert_int_eq(follower_begin(&other, c, 0, 0, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(follower_begin(&one, operator(8), rb.ns.ns, 0, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(follower_begin(&f, operator(9), 0, 0, NULL), PROTO_STATUS_OK);
	/* Requests go on as ever on a session that listens. */
	put(&ra, 0, 2);
	put(&rb, 0, 3);
	put(&ba, 0, 4);
	follower_listen(&f);
	follower_listen(&red);
	follower_listen(&blue);
	follower_listen(&other);
	follower_listen(&one);
	ck_assert_uint_eq(follower_n(&f), 9);
	ck_assert_uint_eq(follower_n(&red), 2);
	ck_assert_uint_eq(follower_n(&blue), 4);
	ck_assert_uint_eq(follower_n(&one), 3);
	ck_assert_uint_eq(other.n_events, 0);
	for (uint32_t i = 0; i < FOLLOWER_SLOTS; i++) {
		ck_assert(!red.blocks[0][i].used || red.blocks[0][i].tenant == 0);
		ck_assert(!blue.blocks[0][i].used || blue.blocks[0][i].tenant == 1);
	}
	/* A namespace is seen from when it is opened. */
	again = (struct scene_place){ .c = ra.c };
	ck_assert_int_eq(world_open(ra.c, &b, &again.ns), PROTO_STATUS_OK);
	put(&rb, 700, 1);
	world_flush(&w, ra.ns.ns);
	follower_listen(&red);
	follower_listen(&blue);
	ck_assert_uint_eq(follower_n(&red), 1);
	ck_assert_uint_eq(follower_n(&blue), 0); /* a clear is of all tenants */
	ck_assert_uint_eq(red.n[PROTO_CHANGE_CLEARED], 1);
	/* A pool that is made after the subscription is followed as well. */
	late = world_open_req("late");
	late.block_bytes = 128;
	late.head_dim = 8;
	again = scene_place(&w, 5, 1000, &late);
	ck_assert_uint_eq(again.ns.group, 1);
	f.pool_of[again.ns.ns] = 1;
	put(&again, 0, 6);
	follower_listen(&f);
	follower_check(&f, 0);
	follower_check(&f, 1);
	world_deinit(&w);
}
END_TEST

static int match_as(const struct scene_place *at)
{
	uint32_t tokens[8];
	struct scene_prompt p = counting(at, tokens, 0, 8);
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = at->ns.ns,
				     .salt = at->salt,
				     .n_tokens = 8,
				     .keys = { p.keys, 2 * at->ns.key_len } };
	struct proto_match_rep rep;
	int r = world_match(at->c, &m, &rep);

	if (r == 0)
		scene_release(at, rep.lease, NULL);
	return r;
}

/*
 * The memory of a pool is lost and made again.  Who listens hears what went with it and what comes
 * after, though its namespaces are no more open to him than to others.
 */
START_TEST(a_loss_is_heard)
{
	struct proto_open_req a = world_open_req("a");
	struct scene_place pa, listener;

	begin(1024);
	pa = scene_place(&w, 1, 1000, &a);
	listener = scene_place(&w, 2, 1000, &a);
	f.pool_of[pa.ns.ns] = 0;
	ck_assert_int_eq(follower_begin(&f, listener.c, 0, 0, NULL), PROTO_STATUS_OK);
	put(&pa, 0, 6);
	follower_listen(&f);
	ck_assert_uint_eq(follower_n(&f), 6);
	for (uint32_t i = 1; i <= 2; i++) {
		put(&pa, 900 * i, 2);
		world_pool_lost(&w, 0);
		follower_listen(&f);
		ck_assert_uint_eq(f.removed[PROTO_REMOVAL_LOST], 6 + 2 * i);
		ck_assert_uint_eq(follower_n(&f), 0);
		ck_assert_uint_eq(listener.c->n_lost, 1);
		ck_assert_int_eq(match_as(&listener), PROTO_STATUS_UNKNOWN_NAMESPACE);
		ck_assert_int_eq(match_as(&pa), PROTO_STATUS_UNKNOWN_NAMESPACE);
		ck_assert_int_eq(world_open(pa.c, &a, &pa.ns), PROTO_STATUS_OK);
	}
	put(&pa, 0, 4);
	follower_listen(&f);
	ck_assert_uint_eq(follower_n(&f), 4);
	follower_check(&f, 0);
	ck_assert_int_eq(world_open(listener.c, &a, &listener.ns), PROTO_STATUS_OK);
	ck_assert_int_eq(match_as(&listener), PROTO_STATUS_OK);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 0);
	world_deinit(&w);
}
END_TEST

/* ---- slow and late --------------------------------------------------------------------------- */

START_TEST(slow_is_told)
{
	static struct follower quick;
	struct proto_open_req a = world_open_req("a");
	struct prefixd_counters n;
	struct scene_place pa;
	uint64_t live;

	begin(64);
	pa = scene_place(&w, 1, 1000, &a);
	ck_assert_int_eq(follower_begin(&f, operator(8), 0, 0, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(follower_begin(&quick, operator(9), 0, 0, NULL), PROTO_STATUS_OK);
	f.c->slow = true;
	put(&pa, 0, 10);
	follower_listen(&f); /* one frame is under way, and stays so */
	ck_assert_uint_eq(follower_n(&f), 10);
	live = w.heap.live_bytes;
	for (uint32_t i = 1; i < 40; i++) {
		put(&pa, 1000 * i, 10);
		follower_listen(&quick);
	}
	ck_assert_uint_eq(f.c->changes_len, 0);
	follower_check(&quick, 0);
	n = world_counters(&w);
	ck_assert_uint_gt(n.events_dropped, 300);
	ck_assert_uint_eq(n.resyncs, 0);
	ck_assert_uint_le(w.heap.live_bytes,
			  live + 65536); /* keys in the index; no queue of ours */
	f.c->slow = false;
	world_evict(&w, 0, 0); /* any step: the world says that the socket has room */
	follower_listen(&f);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 1);
	ck_assert_uint_eq(world_counters(&w).resyncs, 1);
	ck_assert_uint_eq(quick.n[PROTO_CHANGE_RESYNC], 0);
	/* From here on both hear the same; after a clear they know the same. */
	world_flush(&w, RADIX_NONE);
	put(&pa, 7, 10);
	follower_listen(&f);
	follower_listen(&quick);
	ck_assert_uint_eq(f.last, quick.last);
	follower_check(&f, 0);
	follower_check(&quick, 0);
	/* Numbers tell the whole: what was heard and what was dropped. */
	ck_assert_uint_eq(f.n_events - 1 + n.events_dropped +
				  (world_counters(&w).events_dropped - n.events_dropped),
			  quick.n_events);
	world_deinit(&w);
}
END_TEST

/* The session ends with its socket full; its ring goes on for the others. */
START_TEST(ends_while_busy)
{
	struct proto_open_req a = world_open_req("a");
	struct world_client *c;
	struct scene_place pa;

	begin(64);
	pa = scene_place(&w, 1, 1000, &a);
	c = operator(8);
	ck_assert_int_eq(follower_begin(&f, c, 0, 0, NULL), PROTO_STATUS_OK);
	c->slow = true;
	put(&pa, 0, 10);
	world_advance(&w, 3000000);
	put(&pa, 1000, 10);
	world_eof(c);
	world_gone(c);
	c->ready_due = c->slow = false;
	put(&pa, 2000, 10);
	world_advance(&w, 3000000);
	/* A worker that holds leases stops listening with its socket, and stays as an orphan. */
	ck_assert_int_eq(follower_begin(&f, pa.c, 0, 0, NULL), PROTO_STATUS_OK);
	{
		struct scene_prompt p = { 0 };
		struct proto_match_rep rep;

		p.n_tokens = 1;
		scene_match(&pa, &p, &rep);
	}
	world_eof(pa.c);
	ck_assert(pa.c->used);
	world_evict(&w, 0, 100);
	world_advance(&w, 3000000);
	world_gone(pa.c);
	world_deinit(&w);
}
END_TEST

/* Asks from `from` on a fresh connection, hears what comes, and hangs up. */
static void ask_from(uint64_t from, const struct proto_id *life)
{
	struct world_client *c = operator(50);

	ck_assert_int_eq(follower_begin(&f, c, 0, from, life), PROTO_STATUS_OK);
	follower_listen(&f);
	world_eof(c);
}

START_TEST(from_a_number)
{
	struct proto_open_req a = world_open_req("a");
	struct proto_id other = { { 1 } };
	const struct proto_id *life;
	struct scene_place pa;
	uint64_t last;

	begin(64);
	life = &w.config.engine.boot;
	pa = scene_place(&w, 1, 1000, &a);
	put(&pa, 9000, 1); /* before anybody listened */
	ask_from(1, life);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 1);
	ask_from(0, NULL);
	ck_assert_uint_eq(f.n_events, 0);
	last = f.last;
	put(&pa, 0, 20); /* nobody is there: it is kept */
	ask_from(last + 1, life);
	ck_assert_uint_eq(f.n_events, 20);
	ck_assert_uint_eq(f.last, last + 20);
	ask_from(last + 11, life);
	ck_assert_uint_eq(f.n_events, 10);
	ask_from(last + 21, life); /* the next one to come */
	ck_assert_uint_eq(f.n_events, 0);
	ask_from(last + 22, life);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 1);
	ck_assert_uint_eq(f.last, last + 20);
	ask_from(last + 1, &other);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 1);
	ck_assert_uint_eq(f.n_events, 1);
	ask_from(last + 1, NULL);
	ck_assert_uint_eq(f.n_events, 1);
	put(&pa, 1000, 20);
	put(&pa, 2000, 20);
	ask_from(last + 1, life); /* 60 of 64 */
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 0);
	/* Alone for a whole ring: it stops recording and gives the memory back. */
	ck_assert_ptr_nonnull(w.engine);
	last = f.last;
	for (uint32_t i = 0; i < 5; i++)
		put(&pa, 3000 + 100 * i, 20);
	ask_from(last + 1, life);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_RESYNC], 1);
	world_deinit(&w);
}
END_TEST

/* ---- frames, refusals ------------------------------------------------------------------------ */

/* More events than a frame holds, for more subscribers than a step has room for. */
START_TEST(many_frames)
{
	static struct follower many[3];
	struct proto_open_req a = world_open_req("a");
	struct world_config config;
	struct scene_place pa;

	world_config_init(&config);
	config.engine.limits.max_frame = 16384;
	ck_assert_int_eq(world_init(&w, &config), 0);
	pa = scene_place(&w, 1, 1000, &a);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(follower_begin(&many[i], operator(10 + i), 0, 0, NULL),
				 PROTO_STATUS_OK);
	for (uint32_t i = 0; i < 40; i++) /* about 80 KiB of events, within 2 ms */
		put(&pa, 1000 * i, 20);
	for (uint32_t k = 0; k < 20; k++)
		for (uint32_t i = 0; i < 3; i++)
			follower_listen(&many[i]);
	for (uint32_t i = 0; i < 3; i++) {
		follower_check(&many[i], 0);
		ck_assert_uint_gt(many[i].n_events, 1000);
		ck_assert_uint_eq(many[i].n[PROTO_CHANGE_RESYNC], 0);
	}
	world_deinit(&w);
}
END_TEST

START_TEST(refusals)
{
	struct proto_open_req a = world_open_req("a");
	struct scene_place pa;
	struct world_client *c;

	begin(0);
	c = world_worker(&w, 1, 1000);
	ck_assert_int_eq(follower_begin(&f, c, 0, 0, NULL), PROTO_STATUS_UNSUPPORTED);
	world_deinit(&w);
	begin(64);
	pa = scene_place(&w, 1, 1000, &a);
	c = world_worker(&w, 2, 1000);
	ck_assert_int_eq(follower_begin(&f, c, pa.ns.ns, 0, NULL), PROTO_STATUS_UNKNOWN_NAMESPACE);
	ck_assert_str_eq(c->error_field, "ns");
	ck_assert_int_eq(follower_begin(&f, operator(9), 77, 0, NULL),
			 PROTO_STATUS_UNKNOWN_NAMESPACE);
	test_heap_fail_at(&w.heap, 1);
	ck_assert_int_eq(follower_begin(&f, c, 0, 0, NULL), PROTO_STATUS_NO_MEMORY);
	test_heap_fail_at(&w.heap, 2);
	ck_assert_int_eq(follower_begin(&f, c, 0, 0, NULL), PROTO_STATUS_NO_MEMORY);
	ck_assert_int_eq(follower_begin(&f, c, 0, 0, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(follower_begin(&f, c, 0, 0, NULL), PROTO_STATUS_WRONG_STATE);
	ck_assert_int_eq(world_raw(c, PROTO_OP_CHANGES, NULL, 0), PROTO_STATUS_UNKNOWN_OP);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("events");

	scene_case(s, "stream", rebuilt);
	scene_case(s, "T42", clear_empties);
	scene_case(s, "stream", who_sees_what);
	scene_case(s, "stream", a_loss_is_heard);
	scene_case(s, "T34", slow_is_told);
	scene_case(s, "T34", ends_while_busy);
	scene_case(s, "stream", from_a_number);
	scene_case(s, "stream", many_frames);
	scene_case(s, "stream", refusals);
	return scene_main(s);
}
