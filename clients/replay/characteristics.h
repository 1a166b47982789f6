/*
 * characteristics.h - the shape of a trace, in numbers: how long prompts are, how much they share,
 * how the tree of their blocks looks, and how long a block waits for its next use.
 *
 * The same numbers for a recorded trace and for a generated workload, so that they can be laid side
 * by side.  Computed without a daemon.
 */
#pragma once

#include "clients/replay/trace.h"

#include <stdio.h>

/* Two columns of text; `capacities`: also exact leaf LRU for each of these numbers of blocks. */
void replay_characteristics_print(FILE *out, const struct replay_trace *trace,
				  const uint64_t *capacities, size_t n_capacities);
/* The same as one JSON object. */
void replay_characteristics_print_json(FILE *out, const struct replay_trace *trace,
				       const uint64_t *capacities, size_t n_capacities);
