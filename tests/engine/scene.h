/*
 * scene.h - what the scenario tests share: storing a prompt, looking one up, running one case.
 */
#pragma once

#include <check.h>

#include "tests/lib/world.h"

/* Where prompts live, as a worker names it. */
struct scene_place {
	struct world_client *c;
	struct proto_open_rep ns;
	uint32_t tenant;
	struct proto_span salt;
};

struct scene_prompt {
	const uint8_t *keys; /* n_keys x ns.key_len */
	uint32_t n_keys;
	const uint32_t *tail;
	uint32_t n_tail;
	uint64_t n_tokens; /* 0: keys and tail */
};

/* A worker with one namespace, under tenant 0 and the empty salt. */
struct scene_place scene_place(struct world *w, uint32_t pid, uint32_t uid,
			       const struct proto_open_req *o);
/* n tokens first, first + 1, ... as a prompt of plain token keys; the rest is the tail. */
struct scene_prompt scene_tokens(const struct scene_place *at, const uint32_t *tokens, uint32_t n);

void scene_match(const struct scene_place *at, const struct scene_prompt *p,
		 struct proto_match_rep *ret);
void scene_release(const struct scene_place *at, uint64_t lease, struct proto_release_rep *ret);
/* MATCH, RESERVE, write `fill` into what was missing, COMMIT, RELEASE; returns blocks stored. */
uint32_t scene_put(const struct scene_place *at, const struct scene_prompt *p, uint8_t fill);
/* MATCH and RELEASE; returns blocks found.  ret may be NULL. */
uint32_t scene_look(const struct scene_place *at, const struct scene_prompt *p,
		    struct proto_match_rep *ret);

/* ---- tiers ---- */

/* MATCH with flags and a deadline; returns its seq, which a load's EVENT will carry. */
uint64_t scene_match_with(const struct scene_place *at, const struct scene_prompt *p,
			  uint32_t flags, uint32_t deadline_us, struct proto_match_rep *ret);
/* Turns the clock until the load that request `seq` began has ended. */
void scene_loaded(const struct scene_place *at, uint64_t seq, struct proto_event *ret);
/* EXTEND without keys. */
void scene_extend(const struct scene_place *at, uint64_t lease, struct proto_match_rep *ret);
/* The runs hold blocks full of `fill`; returns how many. */
uint32_t scene_check_fill(const struct scene_place *at, struct proto_span runs, uint8_t fill);
/*
 * A prompt comes up from wherever it lies: MATCH, the load, EXTEND, and every byte.  Returns its
 * blocks on the device; the lease stays, in *ret_lease.
 */
uint32_t scene_bring_up(const struct scene_place *at, const struct scene_prompt *p, uint8_t fill,
			uint64_t *ret_lease);

/* Adds a case under a scenario's number: the meson test picks it with CK_RUN_CASE. */
static inline void scene_case(Suite *s, const char *id, const TTest *test)
{
	TCase *t = tcase_create(id);

	tcase_set_timeout(t, 120);
	tcase_add_test(t, test);
	suite_add_tcase(s, t);
}

/* Runs the suite.  A name in CK_RUN_CASE that fits no case is a failure, not a success. */
int scene_main(Suite *s);
