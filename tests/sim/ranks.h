/*
 * ranks.h - workers that are the ranks of one model: ranks.c; part of sim_internal.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sim;
struct sim_session;

/* One of them does something. */
void sim_ranks_act(struct sim *s);
/* OPEN of the rank whose session this is. */
void sim_rank_open(struct sim *s, struct sim_session *se);
/* The session is over, or its process: what it had not released is broken. */
void sim_rank_left(struct sim *s, struct sim_session *se);
/* The daemon is gone, and with it what was decided. */
void sim_ranks_gone(struct sim *s);
/* The device under their pools is lost; and everybody heard of it. */
void sim_ranks_lost(struct sim *s);
void sim_ranks_told(struct sim *s);
/* Replies that came late, and EVENTs. */
void sim_ranks_hear(struct sim *s);
