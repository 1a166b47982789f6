/*
 * found.c - what may be found of a prompt, and what must be.
 *
 * Nothing is found that was never committed.  What a process that lives reads is on the device, so
 * whoever asks for it finds it: to the end of the longest beginning of which all that the asker
 * needs is read by somebody.  Who reads through a window needs its last blocks; who wants exact
 * bytes ends before the first block that a codec has changed.
 */
#include "tests/sim/sim_internal.h"

#include <stdlib.h>

/* Bit j: block j is read by somebody, under whatever life. */
static uint64_t read_blocks(const struct sim *s, const uint64_t *paths, uint32_t n, bool exact)
{
	uint64_t bits = 0;

	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++) {
		const struct sim_claims *all = &s->procs[i].claims;

		for (uint32_t k = 0; k < all->n; k++) {
			const struct sim_claim *c = &all->v[k];

			if (c->use != SIM_READS || c->path == 0 || c->revocable ||
			    (exact && c->lossy))
				continue;
			for (uint32_t j = 0; j < n; j++)
				bits |= (uint64_t)(paths[j] == c->path) << j;
		}
	}
	return bits;
}

uint32_t sim_held(const struct sim *s, const struct universe_prompt *p, uint64_t epoch, uint32_t n,
		  uint32_t window, bool exact)
{
	uint64_t paths[UNIVERSE_MAX], bits;
	uint32_t best = 0, run = 0;

	if (n > UNIVERSE_MAX) /* never; gcc asks, with sanitizers */
		abort();
	for (uint32_t j = 0; j < n; j++)
		paths[j] = sim_path(p, epoch, j);
	bits = read_blocks(s, paths, n, exact);
	for (uint32_t j = 0; j < n; j++) {
		run = bits >> j & 1 ? run + 1 : 0;
		if (run == j + 1 || (window && run >= window))
			best = j + 1;
	}
	return best;
}

/* All blocks found, from the path's beginning, of which n_device lie on the device. */
void sim_found_check(struct sim *s, const struct sim_lease *l, uint32_t n_device, uint32_t n_all)
{
	uint32_t may = 0, least = 0;

	while (may < l->given && oracle_may(&s->oracle, sim_path(&l->p, l->epoch, l->p.skip + may)))
		may++;
	if (n_all > may)
		world_fail(&s->w, "%u blocks are found, only %u were ever committed", n_all, may);
	if (l->epoch == s->epochs[universe_roots[l->p.root].ns] && !l->p.skip &&
	    !(l->exact && s->marks_hurt))
		least = sim_held(s, &l->p, l->epoch, l->given, l->window, l->exact);
	if (n_device < least)
		world_fail(&s->w, "%u blocks are on the device, %u are held there", n_device,
			   least);
}
