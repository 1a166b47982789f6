/*
 * progress.h - one line on a terminal that says how far a replay is.
 */
#pragma once

#include "clients/replay/run.h"

/* Draws over the line drawn before. */
void replay_progress_draw(const struct replay_shared *shared, const struct replay_options *options,
			  size_t n_requests, double elapsed_s);
/* Takes the line away. */
void replay_progress_clear(void);
