/*
 * report.h - the results of a replay, for programs and for people.
 */
#pragma once

#include "clients/replay/lru.h"
#include "clients/replay/run.h"

#include <stdio.h>

struct replay_report {
	const struct replay_options *options;
	const struct replay_trace *trace;
	const struct replay_result *result;
	struct replay_lru_result unbounded; /* what a cache of any size could have answered */
	struct replay_lru_result leaf_lru;  /* and exact leaf LRU of the pool's size */
};

/* Simulates the two caches for comparison. */
void replay_report_init(struct replay_report *report, const struct replay_options *options,
			const struct replay_trace *trace, const struct replay_result *result);
/* Nothing corrupt, no call failed, nobody died, everything was replayed. */
bool replay_report_is_good(const struct replay_report *report);

/* `-` is standard output.  Return: 0, or a negative errno after a message. */
int replay_report_write_json(const struct replay_report *report, const char *path);
void replay_report_print(const struct replay_report *report, FILE *out);
