/*
 * engine_commit.c - COMMIT: blocks that a lease has reserved are written, and become everybody's.
 *
 * What it guarantees.  Blocks are stored in path order, each before it is answered.  Where another
 * lease was faster its block counts, and the slot stays the lease's own until it ends.  Of a lease
 * that ranks share a block is stored when the last of them commits it.
 *
 * What it relies on.  engine_lease.c's list of slots, which has room for a duplicate.
 */
#include "daemon/engine_internal.h"
#include "radix/crash.h"

/*
 * The blocks up to where the lease stands before it stores any are hit again: they were worth
 * keeping.  Told once, before its own blocks come behind them.
 */
void prefixd_lease_tell_hit(struct prefixd_engine *e, struct prefixd_lease *l)
{
	if (l->hit_told || e->config.write != PREFIXD_WRITE_SECOND_USE ||
	    !prefixd_tiered(e, l->group))
		return;
	l->hit_told = true;
	radix_hit(l->group->index, &l->pin.at);
}

void prefixd_runs_add(struct radix_runs *runs, uint32_t slot)
{
	if (runs->n && runs->v[runs->n - 1].start + runs->v[runs->n - 1].len == slot) {
		runs->v[runs->n - 1].len++;
		return;
	}
	radix_assert(runs->n < runs->cap);
	runs->v[runs->n++] = (struct radix_run){ .start = slot, .len = 1 };
}

/* One block.  Return: as radix_commit(). */
static int commit_one(struct prefixd_engine *e, struct prefixd_lease *l, struct radix_block *b,
		      struct proto_commit_rep *rep, struct radix_runs *runs)
{
	const struct prefixd_namespace *ns = l->root->ns;
	uint64_t before = (uint64_t)l->n_path * ns->block_tokens;
	enum radix_commit_result result;
	uint32_t slot, first;
	int r;

	b->key = prefixd_lease_key(l);
	b->slot = l->slots[l->res_head];
	b->n_tokens = (uint32_t)radix_min_u64(ns->block_tokens, l->n_tokens - before);
	prefixd_note_commit(e, l, b->key);
	r = radix_commit(l->group->index, &l->pin, l->idx, b, prefixd_tick(e), &slot, &result);
	prefixd_note_committed(e, l, r == 0 && result == RADIX_COMMIT_STORED);
	if (r)
		return r;
	if (result == RADIX_COMMIT_DUPLICATE) {
		prefixd_commit_own(e, l, b->slot);
		if (l->exact && radix_path_lossy(l->group->index, &l->pin.at, 1, &first) > 0)
			slot = b->slot; /* the other's bytes are not for this lease */
		rep->n_duplicate++;
		e->counters.duplicate_blocks++;
	} else {
		rep->n_stored++;
		e->counters.committed_blocks++;
		e->counters.attached_blocks += result == RADIX_COMMIT_ATTACHED;
	}
	prefixd_place_done(l);
	l->res_head++;
	l->n_reserved--;
	l->n_computed += prefixd_lease_lower(l) > 0; /* it might have been brought up */
	prefixd_lease_pop_keys(l, 1);
	if (l->root->busy_depth != RADIX_NONE && l->n_path > l->root->busy_depth)
		l->root->busy_depth = RADIX_NONE;
	prefixd_runs_add(runs, slot);
	return 0;
}

static bool commit_check(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct prefixd_lease *l, const struct proto_commit_req *m)
{
	uint32_t most = (e->config.limits.max_frame - PROTO_HEADER_LEN - e->commit_fixed) / 8;

	if (m->n == 0 && m->tail_tokens == 0) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "n",
			       "'n' is 0 and so is 'tail_tokens': nothing to commit");
		return false;
	}
	if (m->n > l->n_reserved) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "n",
			       "%u blocks are to be committed, but %u are reserved; RESERVE first",
			       m->n, l->n_reserved);
		return false;
	}
	if (m->n > most) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "n",
			       "at most %u blocks go into one COMMIT; send several", most);
		return false;
	}
	if (m->tail_tokens > l->tail_offer) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "tail_tokens",
			       "%u tokens of a partly matching block were used, but %u are offered",
			       m->tail_tokens, l->tail_offer);
		return false;
	}
	if (m->checksum_kind > PROTO_CHECKSUM_KERNEL ||
	    m->checksums.n != (m->checksum_kind ? (uint64_t)m->n * 16 : 0)) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY,
			       m->checksum_kind > PROTO_CHECKSUM_KERNEL ? "checksum_kind"
									: "checksums",
			       "kinds are 0 (no checksums), 1 (XXH3-128) and 2 (kernels'); 1 and 2 "
			       "come with 16 bytes per block");
		return false;
	}
	return true;
}

/* The same block may be offered, and used, again: its longest use counts, once. */
static void use_tail(struct prefixd_lease *l, uint32_t tokens)
{
	if (tokens > l->tail_last) {
		l->tail_used += tokens - l->tail_last;
		l->tail_last = tokens;
	}
	l->shared -= radix_min_u32(l->shared, tokens);
}

void prefixd_commit_now(struct prefixd_engine *e, struct prefixd_request *rq,
			struct prefixd_lease *l, const struct proto_commit_req *m, uint32_t n_now)
{
	struct proto_commit_rep rep = { 0 };
	/* From a desk nothing is left to read exact bytes from, where changed ones stay. */
	struct radix_block b = { .checksum_kind = m->checksum_kind,
				 .or_refuse = l->exact && l->desk };
	struct radix_member fresh[PREFIXD_THROUGH_MAX];
	struct prefixd_reply rp;
	struct radix_runs runs;
	const uint8_t *keys = prefixd_lease_key(l);
	uint32_t i, n_fresh = 0;
	bool through = e->config.write == PREFIXD_WRITE_THROUGH && prefixd_tiered(e, l->group);
	int r = 0;

	prefixd_lease_tell_hit(e, l);
	prefixd_lease_lower_look(l);
	prefixd_reply_begin(e, &rp, e->commit_fixed);
	runs = prefixd_reply_runs(e, &rp, e->commit_fixed, 0, m->n);
	for (i = 0; i < n_now; i++) {
		if (l->stripe)
			prefixd_stripe_block_sum(l, &b);
		else if (m->checksum_kind)
			memcpy(b.checksum, (const uint8_t *)m->checksums.p + (size_t)i * 16, 16);
		r = commit_one(e, l, &b, &rep, &runs);
		if (r)
			break;
		if (through && n_fresh < PREFIXD_THROUGH_MAX)
			n_fresh += radix_path_members(l->group->index, &l->pin.at, 1,
						      &fresh[n_fresh]);
	}
	if (l->stripe)
		prefixd_stripe_committed(l, rq->seat->rank, r ? i : m->n, i, &runs);
	prefixd_name_members(e, l->root, &l->pin.at, keys, i);
	prefixd_lease_lower_passed(l);
	if (n_fresh)
		prefixd_write_through(e, l->group, fresh, n_fresh);
	prefixd_pending_changed(e, l);
	radix_crash_point("engine_committed");
	if (r) {
		prefixd_refuse(e, rq, r < 0 ? PROTO_STATUS_NO_MEMORY : PROTO_STATUS_CONFLICT, "n",
			       "%u of %u blocks were committed; the next one %s; RELEASE the lease "
			       "and go on without storing the rest",
			       i, m->n, prefixd_commit_stop_to_string(r));
		return;
	}
	use_tail(l, m->tail_tokens);
	if (m->n)
		l->tail_last = 0; /* that block is ours now, and cannot be found any more */
	l->tail_offer = 0;
	prefixd_lease_drop_donor(l);
	prefixd_note_lease_moved(e, l);
	rep.reuse = radix_reuse_counter(l->group->index);
	proto_commit_rep_encode(&rp.w, &rep);
	prefixd_reply_add_runs(&rp, runs.n);
	prefixd_reply_send(e, rq, &rp);
}

void prefixd_op_commit(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct proto_commit_req m;
	struct prefixd_lease *l;
	const char *bad;
	uint32_t n_now;

	if (proto_commit_req_decode_as(rq->s->version, rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (!prefixd_word_check(e, rq, m.word))
		return;
	if (prefixd_op_replayed(e, rq, &m.op_id))
		return;
	l = prefixd_lease_of(e, rq, m.lease);
	if (!l || !commit_check(e, rq, l, &m))
		return;
	n_now = m.n;
	if (l->stripe && !prefixd_stripe_commit(e, rq, l, &m, &n_now))
		return;
	if (prefixd_op_prepare(e, rq, &m.op_id, e->commit_fixed + 8 * m.n) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	if (l->desk && m.n) {
		prefixd_take_begin(e, rq, l, &m);
		return;
	}
	if (prefixd_names_path(e, l->root, &l->pin.at) < 0 || prefixd_names_room(e, m.n) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	prefixd_commit_now(e, rq, l, &m, n_now);
}
