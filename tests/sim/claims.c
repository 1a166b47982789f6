/*
 * claims.c - see claims.h.
 */
#include "tests/sim/claims.h"

#include <stdlib.h>

#include "gpu/gpu_internal.h"
#include "tests/sim/sim_internal.h"

static const char *const uses[] = { "read", "kept", "written" };

/* ---- truth ----------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h)
{
	h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
	h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
	return h ^ (h >> 31);
}

uint64_t sim_path(const struct universe_prompt *p, uint64_t epoch, uint32_t j)
{
	return mix(p->chain[j + 1] ^ epoch * 0x9e3779b97f4a7c15u) | 1;
}

/* A longer block is the same twice, the second time with other bits. */
void sim_content(const struct universe_prompt *p, uint64_t epoch, uint32_t j, uint32_t len,
		 uint8_t *out)
{
	universe_content(p, j, out);
	for (uint32_t i = UNIVERSE_BYTES; i < len; i++)
		out[i] = (uint8_t)~out[i - UNIVERSE_BYTES];
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t v, e = mix(epoch + i);

		memcpy(&v, out + i, 8);
		v ^= e;
		memcpy(out + i, &v, 8);
	}
	/* How a block begins says whether it can be coded. */
	if (len == SIM_CODED_BYTES)
		out[0] = (out[1] & 15) == 0 ? WORLD_UNCODABLE : out[0] & 0x3f;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool stale(const struct sim *s, const struct sim_claim *c)
{
	const struct world_pool *p = &s->w.pools[c->group];

	return c->revocable && p->generations[c->slot] > c->reuse;
}

static void check_possible(struct sim *s, uint32_t proc, const struct sim_claim *c)
{
	for (uint32_t i = 0; i < s->ghosts.n; i++)
		if (s->ghosts.v[i].memory == c->memory && s->ghosts.v[i].until_ns > s->w.now_ns)
			world_fail(&s->w,
				   "slot %u of pool %u is to be %s by worker %u, and the device of "
				   "a dead process may still write it",
				   c->slot, c->group, uses[c->use], proc);
	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++) {
		const struct sim_claims *all = &s->procs[i].claims;

		for (uint32_t k = 0; k < all->n; k++) {
			const struct sim_claim *o = &all->v[k];

			if (o->memory != c->memory || stale(s, o))
				continue;
			/* Readers do not disturb each other, nor those who wrote and are done. */
			if (c->use != SIM_WRITES && o->use != SIM_WRITES)
				continue;
			world_fail(&s->w,
				   "slot %u of pool %u is to be %s by worker %u, and is %s by "
				   "worker %u since life %u (now %u)",
				   c->slot, c->group, uses[c->use], proc, uses[o->use], i, o->life,
				   s->life);
		}
	}
}

static struct sim_claim *claim_room(struct sim_claims *all)
{
	if (all->n == all->cap) {
		all->cap = all->cap ? 2 * all->cap : 32;
		all->v = realloc(all->v, all->cap * sizeof(*all->v));
		if (!all->v)
			abort();
	}
	return &all->v[all->n];
}

void sim_claim(struct sim *s, uint32_t proc, const struct sim_claim *c)
{
	struct sim_claims *all = &s->procs[proc].claims;
	struct sim_claim *mine = claim_room(all);

	*mine = *c;
	if (s->w.pools[c->group].lost)
		world_fail(&s->w, "slot %u of pool %u is named, and its device is lost", c->slot,
			   c->group);
	mine->life = s->life;
	mine->memory = (const char *)s->w.pools[c->group].pool->shm.base +
		       c->slot * s->w.pools[c->group].pool->slot_stride + c->offset;
	check_possible(s, proc, mine);
	all->n++;
}

void sim_claims_end(struct sim *s, uint32_t proc, uint32_t life, uint64_t lease)
{
	struct sim_claims *all = &s->procs[proc].claims;

	for (uint32_t i = 0; i < all->n;)
		if (all->v[i].life == life && all->v[i].lease == lease)
			all->v[i] = all->v[--all->n];
		else
			i++;
}

void sim_claims_deinit(struct sim *s)
{
	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++)
		free(s->procs[i].claims.v);
	free(s->ghosts.v);
}

/* ---- devices of dead processes --------------------------------------------------------------- */

static void ghosts_leave(struct sim *s)
{
	for (uint32_t i = 0; i < s->ghosts.n;)
		if (s->ghosts.v[i].until_ns <= s->w.now_ns)
			s->ghosts.v[i] = s->ghosts.v[--s->ghosts.n];
		else
			i++;
}

void sim_ghosts_rise(struct sim *s, uint32_t proc)
{
	const struct sim_claims *all = &s->procs[proc].claims;

	for (uint32_t i = 0; i < all->n; i++) {
		if (all->v[i].use != SIM_WRITES)
			continue;
		*claim_room(&s->ghosts) = all->v[i];
		s->ghosts.v[s->ghosts.n++].until_ns =
			s->down ? UINT64_MAX : s->w.now_ns + s->w.config.engine.grace_ns;
	}
}

/* Nobody counts the time; when it goes on, the clock may have begun anew. */
void sim_ghosts_stay(struct sim *s)
{
	ghosts_leave(s);
	for (uint32_t i = 0; i < s->ghosts.n; i++)
		s->ghosts.v[i].until_ns = UINT64_MAX;
}

void sim_ghosts_told(struct sim *s)
{
	for (uint32_t i = 0; i < s->ghosts.n; i++)
		s->ghosts.v[i].until_ns = s->w.now_ns + s->w.config.engine.grace_ns;
}

void sim_ghosts_act(struct sim *s)
{
	ghosts_leave(s);
	for (uint32_t i = 0; i < s->ghosts.n; i++)
		memset((void *)(uintptr_t)s->ghosts.v[i].memory, 0x6b, s->ghosts.v[i].len);
}

bool sim_read(struct sim *s, const struct sim_claim *c, uint8_t *out)
{
	memcpy(out, c->memory, c->len);
	return !stale(s, c);
}

void sim_claims_check(struct sim *s)
{
	uint8_t got[SIM_BYTES];

	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++) {
		const struct sim_claims *all = &s->procs[i].claims;

		for (uint32_t k = 0; k < all->n; k++) {
			const struct sim_claim *c = &all->v[k];

			if (!sim_read(s, c, got) || memcmp(got, c->bytes, c->len) == 0)
				continue;
			world_fail(&s->w,
				   "slot %u of pool %u, %s by worker %u since life %u (now %u), "
				   "holds other bytes: %02x%02x.. instead of %02x%02x..",
				   c->slot, c->group, uses[c->use], i, c->life, s->life, got[0],
				   got[1], c->bytes[0], c->bytes[1]);
		}
		s->result->reads += all->n;
	}
}
