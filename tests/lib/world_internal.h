/*
 * world_internal.h - shared by the files of the simulated world.
 */
#pragma once

#include "tests/lib/world.h"

/* A line of the transcript, when one is kept. */
__attribute__((format(printf, 2, 3))) void world_note(struct world *w, const char *fmt, ...);
/* A reply lies in c->h and c->body: print it, and decode an error. */
void world_client_got(struct world_client *c);
/* An EVENT came: checked, noted, kept for world_event(). */
void world_client_event(struct world_client *c, const struct proto_header *h, const void *body);
/* LOST came: checked, noted, counted. */
void world_client_lost(struct world_client *c, const struct proto_header *h, const void *body);
/* True: the reply is of a RESERVE that was put off; it is kept for world_reserve_reply(). */
bool world_client_late(struct world_client *c, const struct proto_header *h, const void *body);
void world_client_late_drop(struct world_client *c);
/* Bytes of a device slot from `off` on, to or from the caller; complete when it returns. */
void world_device(struct world *w, uint32_t group, uint32_t slot, uint64_t off, void *bytes,
		  uint32_t len, bool write);

/* A pool goes, with its block table. */
void world_pool_drop(struct world *w, uint32_t group);

/* ---- world_desk.c ---- */

void world_desk_act(struct world *w, const struct prefixd_action *a);
/* Answers that nobody holds back. */
void world_desks_deliver(struct world *w);
void world_desks_drop(struct world *w);

/* ---- world_life.c ---- */

void world_life_init(struct world *w);
void world_life_deinit(struct world *w);
void world_store_new(struct world_store *st, uint64_t len);
void world_store_free(struct world_store *st); /* idempotent */
/* Between these two the daemon may be killed at a crash point: world_life_point() does not return
   then, but jumps to w->life.env, and world_life_died() clears up. */
void world_life_step_begins(struct world *w);
void world_life_step_ends(struct world *w);
void world_life_point(const char *name);
void world_life_died(struct world *w);
#define WORLD_ANY_TIME UINT64_MAX

/* A process begins or ends; all of one number end, if they began at WORLD_ANY_TIME. */
void world_life_process(struct world *w, uint32_t pid, uint64_t start_time, bool lives);
void world_life_watch(struct world *w, const struct prefixd_action *a);
/* False: it is no orphan of an earlier life. */
bool world_life_forget(struct world *w, uint32_t session);
void world_life_verify(struct world *w, const struct prefixd_action *a);
/* When the next VERIFY is answered (UINT64_MAX: never), and the answer. */
uint64_t world_life_due(const struct world *w);
void world_life_deliver(struct world *w);
/* PROCESS_GONE for watched processes that ended. */
void world_life_tell_gone(struct world *w);

/* ---- world_tiers.c; each does nothing in a world without tiers ---- */

void world_tiers_init(struct world *w);
void world_tiers_begin(struct world *w);
void world_tiers_deinit(struct world *w);
/* The daemon was killed: what was under way arrived or did not, by the seed; nobody is told. */
void world_tiers_killed(struct world *w);
void world_tiers_pool(struct world *w, uint32_t group, uint32_t n_host, uint64_t slot_bytes,
		      bool coded, bool adopted);
void world_tiers_act(struct world *w, const struct prefixd_action *a);
/* What is under way from or to the group's device fails. */
void world_tiers_lost(struct world *w, uint32_t group);
/* A device slot was granted or freed: it is no part of a move. */
void world_tiers_given(struct world *w, uint32_t group, uint32_t slot, const char *how);
/* Epochs that were kept longer than the engine knows of, right after the step that asked. */
void world_tiers_tell(struct world *w);
/* At the end of each step. */
void world_tiers_verify(struct world *w);
/* When the next answer comes (UINT64_MAX: never), and the answer itself. */
uint64_t world_tiers_due(const struct world *w);
void world_tiers_deliver(struct world *w);
