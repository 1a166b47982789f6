/*
 * test_transcripts.c - whole conversations, frame by frame, compared as text.
 *
 * Each script's transcript is kept in transcripts/NAME.txt, where it can be read as a description
 * of what the daemon does.  A change of behaviour shows as a difference there.  With
 * WORLD_TRANSCRIPT_WRITE in the environment the files are written instead.
 */
#include "tests/engine/scene.h"

#include <stdio.h>
#include <stdlib.h>

static struct world w;

static void begin(uint32_t n_slots, uint64_t grace_ns)
{
	struct world_config config;

	world_config_init(&config);
	config.record = true;
	config.engine.pool_blocks = n_slots;
	config.engine.grace_ns = grace_ns;
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static char *path_of(const char *name)
{
	const char *dir = getenv("TRANSCRIPTS");
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s.txt", dir ? dir : "transcripts", name);
	return path;
}

/* The first line that differs, for people. */
static void compare(const char *name, const char *want, const char *got)
{
	uint32_t line = 1;

	while (*want && *want == *got) {
		line += *want == '\n';
		want++;
		got++;
	}
	if (*want == *got)
		return;
	while (line > 1 && got > w.log && got[-1] != '\n')
		got--;
	ck_abort_msg("%s.txt, line %u is now: %.*s", name, line, (int)strcspn(got, "\n"), got);
}

static void end(const char *name)
{
	FILE *f;
	static char want[1u << 18];
	size_t n;

	if (getenv("WORLD_TRANSCRIPT_WRITE")) {
		f = fopen(path_of(name), "w");
		ck_assert_ptr_nonnull(f);
		ck_assert_uint_eq(fwrite(w.log, 1, w.log_len, f), w.log_len);
		ck_assert_int_eq(fclose(f), 0);
	} else {
		f = fopen(path_of(name), "r");
		ck_assert_ptr_nonnull(f);
		n = fread(want, 1, sizeof(want) - 1, f);
		ck_assert(n > 0 && feof(f));
		want[n] = '\0';
		fclose(f);
		compare(name, want, w.log);
	}
	world_deinit(&w);
}

static void reserve_commit(const struct scene_place *at, uint64_t lease, uint32_t n_reserve,
			   uint32_t n_commit)
{
	struct proto_reserve_req r = { .lease = lease, .n = n_reserve };
	struct proto_reserve_rep got;
	struct proto_commit_req c = { .lease = lease, .n = n_commit };
	struct proto_commit_rep done;

	world_reserve(at->c, &r, &got);
	if (n_commit)
		world_commit(at->c, &c, &done);
}

/* One stores, another finds and goes on; a third under another tenant sees nothing. */
START_TEST(two_workers)
{
	struct proto_open_req o = world_open_req("llama");
	struct scene_place a, b, c;
	struct scene_prompt p;
	struct proto_match_rep m;
	uint32_t tokens[24];

	begin(64, 0);
	for (uint32_t i = 0; i < 24; i++)
		tokens[i] = i;
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	c = scene_place(&w, 102, 2000, &o);
	c.tenant = 1;
	p = scene_tokens(&a, tokens, 18);
	scene_match(&a, &p, &m);
	reserve_commit(&a, m.lease, 8, 4);
	scene_release(&a, m.lease, NULL);
	p = scene_tokens(&b, tokens, 24);
	scene_match(&b, &p, &m);
	reserve_commit(&b, m.lease, 2, 2);
	scene_release(&b, m.lease, NULL);
	p = scene_tokens(&c, tokens, 24);
	scene_look(&c, &p, NULL);
	world_kill(&w, 100);
	end("two-workers");
}
END_TEST

/* A worker dies in the middle; its slots wait for the grace; the other one goes on. */
START_TEST(death)
{
	struct proto_open_req o = world_open_req("llama");
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep ma, mb;
	uint32_t tokens[24];

	begin(6, 1000000);
	for (uint32_t i = 0; i < 24; i++)
		tokens[i] = i;
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&a, tokens, 24);
	scene_match(&a, &p, &ma);
	reserve_commit(&a, ma.lease, 6, 2);
	scene_match(&b, &p, &mb);
	reserve_commit(&b, mb.lease, 4, 0); /* BUSY */
	world_eof(a.c);
	reserve_commit(&b, mb.lease, 4, 0); /* still: the process may live */
	world_gone(a.c);
	reserve_commit(&b, mb.lease, 4, 0); /* still: the grace */
	world_advance(&w, 1000000);
	reserve_commit(&b, mb.lease, 4, 4);
	scene_release(&b, mb.lease, NULL);
	end("death");
}
END_TEST

/* What is refused, and in which words. */
START_TEST(refusals)
{
	struct proto_open_req o = world_open_req("llama");
	struct proto_open_rep rep;
	struct proto_match_req m = { .has = PROTO_HAS_NS | PROTO_HAS_TENANT };
	struct proto_match_rep mr;
	struct proto_reserve_req r = { .lease = 1, .n = 1 };
	struct proto_reserve_rep rr;
	struct world_client *c;
	struct proto_empty ping = {}, pong;
	uint8_t junk[3] = { 1, 2, 3 };

	begin(4, 0);
	c = world_connect(&w, 100, 1000, false);
	world_ping(c, &ping, &pong);
	c = world_worker(&w, 100, 1000);
	o.dtype = world_text("auto");
	world_open(c, &o, &rep);
	o.dtype = world_text("bfloat16");
	o.block_bytes = 100;
	world_open(c, &o, &rep);
	o.block_bytes = 64;
	o.tp_size = 2;
	world_open(c, &o, &rep);
	o.tp_size = 1;
	world_open(c, &o, &rep);
	m.ns = rep.ns;
	world_match(c, &m, &mr);
	m.has = PROTO_HAS_ALL;
	m.tenant = 1;
	world_match(c, &m, &mr);
	m.tenant = 0;
	m.keys = (struct proto_span){ junk, 3 };
	world_match(c, &m, &mr);
	world_reserve(c, &r, &rr);
	world_raw(c, PROTO_OP_COMMIT, junk, 3);
	world_raw(c, PROTO_OP_WAIT, junk, 3);
	world_raw(c, PROTO_OP_ADMIN, junk, 3);
	world_raw(c, 99, junk, 3);
	world_drain(&w, 0);
	m.keys.n = 0;
	world_match(c, &m, &mr);
	end("refusals");
}
END_TEST

static void wait_on(const struct scene_place *at, uint64_t lease, uint32_t deadline_us)
{
	struct proto_wait_req m = { .lease = lease, .deadline_us = deadline_us };
	struct proto_wait_rep rep;

	world_wait(at->c, &m, &rep);
}

static uint64_t ask(const struct scene_place *at, const struct scene_prompt *p, uint32_t flags)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = at->ns.ns,
				     .flags = flags,
				     .n_tokens = p->n_keys * at->ns.block_tokens,
				     .keys = { p->keys, p->n_keys * at->ns.key_len } };
	struct proto_match_rep rep;

	world_match(at->c, &m, &rep);
	return rep.lease;
}

/* Three ask for the same; the first computes half of it and dies, the second goes on. */
START_TEST(single_flight)
{
	struct proto_open_req o = world_open_req("llama");
	struct proto_extend_req x = { .flags = PROTO_MATCH_LEAD };
	struct proto_commit_req c = { .n = 1 };
	struct proto_commit_rep done;
	struct proto_match_rep m;
	struct scene_place at[3];
	struct scene_prompt p;
	uint64_t lease[3];
	uint32_t tokens[24];

	begin(64, 0);
	for (uint32_t i = 0; i < 24; i++)
		tokens[i] = i;
	for (uint32_t i = 0; i < 3; i++) {
		at[i] = scene_place(&w, 100 + i, 1000, &o);
		p = scene_tokens(&at[i], tokens, 24);
		lease[i] = ask(&at[i], &p, PROTO_MATCH_LEAD);
	}
	wait_on(&at[1], lease[1], 0);
	wait_on(&at[2], lease[2], 3000000);
	reserve_commit(&at[0], lease[0], 6, 3);
	wait_on(&at[0], lease[0], 0); /* not while others wait for it */
	world_kill(&w, 100);
	x.lease = lease[1];
	world_extend(at[1].c, &x, &m);
	reserve_commit(&at[1], lease[1], 3, 2);
	world_advance(&w, 3000000000); /* the third one's patience ends */
	wait_on(&at[2], lease[2], 0);
	c.lease = lease[1];
	world_commit(at[1].c, &c, &done);
	x.lease = lease[2];
	world_extend(at[2].c, &x, &m);
	scene_release(&at[1], lease[1], NULL);
	scene_release(&at[2], lease[2], NULL);
	end("single-flight");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("transcripts");

	scene_case(s, "transcripts", two_workers);
	scene_case(s, "transcripts", death);
	scene_case(s, "transcripts", refusals);
	scene_case(s, "transcripts", single_flight);
	return scene_main(s);
}
