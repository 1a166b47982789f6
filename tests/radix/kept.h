/*
 * kept.h - a store and generations for an index whose process is to end: to copy and to damage.
 */
#pragma once

#include "radix/recover.h"

struct kept {
	struct radix_store store;
	uint64_t *generations;
	uint64_t n_generations;
	struct radix_index_config config; /* with both of these; alloc is the caller's to set */
};

/* Empty ones for an index of these numbers. */
void kept_init(struct kept *k, const struct radix_index_config *numbers);
/* What a process that is killed now leaves. */
void kept_copy(struct kept *to, const struct kept *from);
/* As it was when it was copied; `to` came from kept_copy(). */
void kept_restore(struct kept *to, const struct kept *from);
void kept_deinit(struct kept *k);
