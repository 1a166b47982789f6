/*
 * write.c - RESERVE, COMMIT, RELEASE, REPORT: the calls of a worker that computes.
 *
 * None of them is sent twice: a lease does not outlive its connection, and a reply that was lost on
 * a living connection leaves the lease in doubt (lease.c).
 */
#include "clients/c/internal.h"

int pfx_reserve(pfx_namespace *ns, uint64_t lease, uint32_t n, uint32_t deadline_ms,
		pfx_reserve_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	pfx_reserve_result out = { .struct_size = sizeof(out) };
	struct proto_reserve_req req;
	struct proto_reserve_rep rep;
	struct pfx_lease *l;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if (!ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "ret or its struct_size is missing");
	r = pfx_lease_use(c, ns, lease, false, &l);
	if (r)
		return r;
	req = (struct proto_reserve_req){ pfx_op_id(c), l->wire, n, pfx_deadline_us(c) };
	r = pfx_request(c, PROTO_OP_RESERVE, &req, &f);
	l = pfx_lease_find(c, lease);
	if (l) /* who computes does not wait: the daemon tells the end of the load to nobody */
		l->load_seq = 0;
	if (r) {
		pfx_lease_failed(c, lease, r, false);
		if (r == PFX_BUSY) { /* the one failure with a number to act on */
			out.retry_after_us = c->retry_after_us;
			pfx_struct_out(ret, &out, sizeof(out));
		}
		return pfx_lease_gone(c, r);
	}
	if (proto_reserve_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_RESERVE, bad);
	if (rep.n > n || !pfx_write_runs_ok(ns, rep.runs, rep.n))
		return pfx_bad_reply(c, PROTO_OP_RESERVE, "runs");
	c->n_runs = 0;
	r = pfx_runs_append(c, rep.runs);
	if (r) {
		l->doubtful = true; /* slots are reserved that the caller will not know of */
		return r;
	}
	out.n = rep.n;
	out.first = rep.first;
	out.reuse = pfx_reuse(ns, rep.reuse);
	out.runs = c->runs;
	out.n_runs = c->n_runs;
	pfx_struct_out(ret, &out, sizeof(out));
	return 0;
}

/* ---- COMMIT ---------------------------------------------------------------------------------- */

/* What a request waits for; word 0: nothing. */
struct after {
	uint32_t word;
	uint64_t value;
};

/* One frame's worth.  Return: as pfx_request. */
static int commit_part(struct pfx_namespace *ns, uint64_t wire, uint32_t n,
		       const uint8_t *checksums, uint32_t tail_tokens, struct after after,
		       pfx_commit_result *out)
{
	struct pfx_client *c = ns->client;
	struct proto_commit_req req = {
		.op_id = pfx_op_id(c),
		.lease = wire,
		.n = n,
		.tail_tokens = tail_tokens,
		.checksum_kind = checksums ? PROTO_CHECKSUM_XXH3_128 : PROTO_CHECKSUM_NONE,
		.checksums = { checksums, checksums ? 16 * n : 0 },
		.word = after.word,
		.value = after.value,
	};
	struct proto_commit_rep rep;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_request(c, PROTO_OP_COMMIT, &req, &f);

	if (r)
		return r;
	if (proto_commit_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_COMMIT, bad);
	if (!pfx_runs_ok(ns, rep.runs, n) || rep.n_stored > n || rep.n_duplicate > n)
		return pfx_bad_reply(c, PROTO_OP_COMMIT, "runs");
	r = pfx_runs_append(c, rep.runs);
	out->n_stored += rep.n_stored;
	out->n_duplicate += rep.n_duplicate;
	out->reuse = pfx_reuse(ns, rep.reuse);
	return r;
}

/* Blocks per frame, so that neither the checksums nor a reply of one run per block is too long. */
static uint32_t blocks_per_frame(const struct pfx_client *c)
{
	return (c->wire.max_frame - PROTO_HEADER_LEN - 128) / 16;
}

int pfx_commit_after(pfx_namespace *ns, uint64_t lease, uint32_t n, const void *checksums,
		     uint32_t tail_tokens, uint32_t word, uint64_t value, uint32_t deadline_ms,
		     pfx_commit_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	pfx_commit_result out = { .struct_size = sizeof(out) };
	const uint8_t *sums = checksums;
	struct pfx_lease *l;
	uint32_t done = 0;
	uint64_t wire;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if (!ret || !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "ret or its struct_size is missing");
	r = pfx_lease_use(c, ns, lease, false, &l);
	if (r == 0)
		r = pfx_word_check(c, word);
	if (r)
		return r;
	wire = l->wire;
	c->n_runs = 0;
	do {
		uint32_t part = radix_min_u32(n - done, blocks_per_frame(c));

		r = commit_part(ns, wire, part, sums ? sums + 16 * (size_t)done : NULL,
				done ? 0 : tail_tokens, (struct after){ word, value }, &out);
		if (r) {
			pfx_lease_failed(c, lease, r, done > 0 || r == PFX_NO_MEMORY);
			return pfx_lease_gone(c, r);
		}
		done += part;
	} while (done < n);
	out.runs = c->runs;
	out.n_runs = c->n_runs;
	pfx_struct_out(ret, &out, sizeof(out));
	return 0;
}

int pfx_commit(pfx_namespace *ns, uint64_t lease, uint32_t n, const void *checksums,
	       uint32_t tail_tokens, uint32_t deadline_ms, pfx_commit_result *ret)
{
	return pfx_commit_after(ns, lease, n, checksums, tail_tokens, 0, 0, deadline_ms, ret);
}

/* ---- RELEASE, REPORT ------------------------------------------------------------------------- */

static int release(struct pfx_namespace *ns, uint64_t lease, uint32_t flags, uint32_t next_use_ms,
		   struct after after, pfx_release_result *ret)
{
	struct pfx_client *c = ns->client;
	pfx_release_result out = { .struct_size = sizeof(out) };
	const uint32_t word = after.word;
	struct proto_release_req req;
	struct proto_release_rep rep;
	struct pfx_lease *l;
	struct pfx_frame f;
	const char *bad;
	int r = pfx_lease_use(c, ns, lease, true, &l);

	if (r) {
		/* What its connection took along is given back by QUIESCED, when all is done with;
		 * of what waited for a word of that connection nobody knows whether it is. */
		if (!word && pfx_lease_forget(c, lease))
			pfx_quiesce(c);
		return r;
	}
	r = pfx_word_check(c, word);
	if (r)
		return r;
	req = (struct proto_release_req){ pfx_op_id(c), l->wire, flags,
					  next_use_ms,  word,    after.value };
	r = pfx_request(c, PROTO_OP_RELEASE, &req, &f);
	l = pfx_lease_find(c, lease);
	/* Gone with an answer, and also without one: the request is on its way, to be obeyed.  But
	 * not where it waits for a word, which may end with the connection. */
	if (l && (r == 0 || r == PFX_UNKNOWN_LEASE || r == PFX_REVOKED || r == PFX_DEVICE_LOST ||
		  (c->in_doubt && !word)))
		pfx_lease_remove(c, l);
	if (r == PFX_LOST && !word)
		(void)pfx_lease_forget(c, lease); /* HELLO's reply tells that it is left */
	c->n_left_behind += r == PFX_REVOKED; /* slots of its own are kept back until he is done */
	if (c->connected)
		pfx_quiesce(c);
	if (r)
		return pfx_lease_gone(c, r);
	if (proto_release_rep_decode(f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_RELEASE, bad);
	if (ret) {
		out.queried_tokens = rep.queried_tokens;
		out.hit_device_tokens = rep.hit_device_tokens;
		out.hit_host_tokens = rep.hit_host_tokens;
		out.hit_redis_tokens = rep.hit_redis_tokens;
		out.hit_pending_tokens = rep.hit_pending_tokens;
		out.miss_tokens = rep.miss_tokens;
		pfx_struct_out(ret, &out, sizeof(out));
	}
	return 0;
}

int pfx_release_after(pfx_namespace *ns, uint64_t lease, uint32_t flags, uint32_t next_use_ms,
		      uint32_t word, uint64_t value, uint32_t deadline_ms, pfx_release_result *ret)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	int r = pfx_begin(c, deadline_ms);

	if (r)
		return r;
	if (ret && !pfx_struct_ok(ret))
		return pfx_fail(c, PFX_ARGUMENT, "ret's struct_size is missing");
	r = release(ns, lease, flags, next_use_ms, (struct after){ word, value }, ret);
	pfx_let_go(c);
	return r;
}

int pfx_release(pfx_namespace *ns, uint64_t lease, uint32_t flags, uint32_t next_use_ms,
		uint32_t deadline_ms, pfx_release_result *ret)
{
	return pfx_release_after(ns, lease, flags, next_use_ms, 0, 0, deadline_ms, ret);
}

int pfx_report(pfx_namespace *ns, uint32_t ttft_us, uint32_t tpot_us, uint32_t input_tokens,
	       uint32_t running, uint32_t waiting)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	struct pfx_frame f;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	for (int round = 0;; round++) {
		struct proto_report_req req;

		r = pfx_ready(c, ns);
		if (r)
			return r;
		req = (struct proto_report_req){ ns->info.id,  ttft_us, tpot_us,
						 input_tokens, running, waiting };
		r = pfx_request(c, PROTO_OP_REPORT, &req, &f);
		if (r != PFX_LOST || round)
			return pfx_gone(c, r);
	}
}
