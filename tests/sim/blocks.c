/*
 * blocks.c - the slots that replies name to a lease, and what they hold.
 *
 * A session that reads a namespace through its window is told slots of the last blocks of its path
 * only, and lets go of those that the window has passed.  Where blocks are coded below the device,
 * one that came up again holds what the codec gives, whole; as many as the reply says do, and none
 * of a lease that wants exact bytes.
 */
#include "tests/sim/sim_internal.h"

struct sim_claim sim_claim_of(struct sim *s, const struct sim_session *se,
			      const struct sim_lease *l, enum sim_use use, uint32_t slot,
			      uint64_t reuse)
{
	uint32_t ns = sim_ns_of(l);

	/* Whoever mapped other memory would look for it there. */
	world_check(&s->w, se->opened[ns] && se->mapped[ns] == s->devices[s->ns_group[ns]].life);
	return (struct sim_claim){
		.use = use,
		.session = sim_session_idx(s, se),
		.lease = l->id,
		.revocable = use == SIM_READS && sim_proc_of(s, se)->copies && s->nature.max_age_ns,
		.reuse = reuse,
		.group = s->ns_group[ns],
		.slot = slot,
		.len = sim_block_bytes(s, ns),
	};
}

/* The bytes that the claim's slot must hold are in it; did the codec make them of these? */
static bool see_coded(struct sim *s, struct sim_claim *c)
{
	uint8_t got[SIM_BYTES], coded[SIM_BYTES];

	world_check(&s->w, c->len <= sizeof(got));
	world_read(&s->w, c->group, c->slot, got, c->len);
	if (memcmp(got, c->bytes, c->len) == 0 || c->bytes[0] == WORLD_UNCODABLE)
		return false;
	memcpy(coded, c->bytes, c->len);
	world_code(coded, c->len);
	if (memcmp(got, coded, c->len) != 0)
		return false; /* whoever looks at claims says so */
	memcpy(c->bytes, coded, c->len);
	return true;
}

bool sim_claim_block(struct sim *s, struct sim_session *se, const struct sim_lease *l, uint32_t j,
		     uint32_t slot, uint64_t reuse)
{
	struct sim_claim c = sim_claim_of(s, se, l, SIM_READS, slot, reuse);

	if (!l->island)
		c.path = sim_path_of(l, j);
	c.at = j;
	sim_content(&l->p, l->epoch, l->p.skip + j, c.len, c.bytes);
	c.lossy = sim_ns_of(l) == s->nature.coded_ns && see_coded(s, &c);
	if (c.lossy && l->exact)
		world_fail(&s->w, "lease %llu wants exact bytes, and is told of slot %u",
			   (unsigned long long)l->id, slot);
	sim_claim(s, se->proc, &c);
	return c.lossy;
}

uint32_t sim_outside(const struct sim_lease *l, uint32_t n)
{
	return l->window && n > l->window ? n - l->window : 0;
}

void sim_claims_slide(struct sim *s, const struct sim_session *se, const struct sim_lease *l,
		      uint32_t n)
{
	struct sim_claims *all = &s->procs[se->proc].claims;
	uint32_t outside = sim_outside(l, n);

	for (uint32_t i = 0; i < all->n;) {
		const struct sim_claim *c = &all->v[i];

		if (c->life == s->life && c->lease == l->id && c->use == SIM_READS &&
		    c->at < outside)
			all->v[i] = all->v[--all->n];
		else
			i++;
	}
}

/* A donor: the first tokens of a block that begins like the next one of this prompt. */
static bool claim_tail(struct sim *s, struct sim_session *se, struct sim_lease *l,
		       const struct proto_match_rep *rep)
{
	struct sim_claim c;

	l->tail_offer = rep->tail_tokens;
	if (!rep->tail_tokens)
		return false;
	c = sim_claim_of(s, se, l, SIM_READS, rep->tail_slot, rep->reuse);
	world_check(&s->w, sim_ns_of(l) == 0 && rep->tail_tokens < UNIVERSE_BT);
	c.lease = ~l->id; /* until the next COMMIT */
	sim_content(&l->p, l->epoch, l->p.skip + l->n_path, c.len, c.bytes);
	c.len = rep->tail_tokens * (UNIVERSE_BYTES / UNIVERSE_BT);
	c.lossy = sim_ns_of(l) == s->nature.coded_ns && see_coded(s, &c);
	if (c.lossy && l->exact)
		world_fail(&s->w, "lease %llu wants exact bytes, and is offered slot %u",
			   (unsigned long long)l->id, rep->tail_slot);
	sim_claim(s, se->proc, &c);
	return c.lossy;
}

/* What the reply says of bytes that a codec has changed, or will; n: such as were seen. */
static void check_lossy(struct sim *s, const struct sim_lease *l, const struct proto_match_rep *rep,
			uint32_t n, uint32_t first, uint32_t n_tail)
{
	uint32_t lower = rep->n_host + rep->n_redis, least, most;

	s->result->lossy += rep->n_lossy;
	if (sim_ns_of(l) != s->nature.coded_ns)
		lower = 0;
	if (l->exact)
		world_check(&s->w, rep->n_host + rep->n_redis == 0 && n + n_tail == 0);
	most = n + lower + n_tail;
	least = l->window ? n + n_tail : most; /* behind a window some lie on the device */
	if (s->marks_hurt && sim_ns_of(l) == s->nature.coded_ns)
		most = l->given + 1;
	if (rep->n_lossy < least || rep->n_lossy > most)
		world_fail(&s->w, "%u blocks are said to be changed by a codec, not %u to %u",
			   rep->n_lossy, least, most);
	if (!rep->n_lossy || s->marks_hurt || (l->window && n == 0))
		return;
	if (rep->first_lossy != first)
		world_fail(&s->w, "block %u is said to be the first that is changed, not %u",
			   rep->first_lossy, first);
}

void sim_claim_found(struct sim *s, struct sim_session *se, struct sim_lease *l,
		     const struct proto_match_rep *rep)
{
	uint32_t n = l->n_path + rep->n_device, outside = sim_outside(l, n);
	uint32_t n_lossy = 0, first = n, n_tail;

	for (uint32_t k = 1; k < rep->runs.n; k++) /* those outside are the first run */
		world_check(&s->w, proto_run_at(rep->runs, k).start != PROTO_SLOT_NONE);
	for (uint32_t i = 0; i < rep->n_device; i++, l->n_path++) {
		uint32_t slot = sim_slot_of(s, rep->runs, i);

		if ((slot == PROTO_SLOT_NONE) != (l->n_path < outside))
			world_fail(&s->w, "block %u of %u, of which %u are read, has slot %u",
				   l->n_path, n, l->window, slot);
		if (slot == PROTO_SLOT_NONE ||
		    !sim_claim_block(s, se, l, l->n_path, slot, rep->reuse))
			continue;
		first = n_lossy++ ? first : l->n_path;
	}
	if (rep->n_device)
		sim_claims_slide(s, se, l, n);
	sim_claims_end(s, se->proc, s->life, ~l->id);
	n_tail = claim_tail(s, se, l, rep);
	check_lossy(s, l, rep, n_lossy, first, n_tail);
}
