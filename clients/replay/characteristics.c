/*
 * characteristics.c - one pass over the requests, one over the blocks, then percentiles.
 *
 * A percentile is the value at position ceil(p x n) of the sorted values.
 */
#include "clients/replay/characteristics.h"

#include "clients/replay/lru.h"
#include "clients/replay/util.h"

#include <math.h>
#include <stdlib.h>

/* A list of values that are wanted sorted. */
struct sample {
	double *v;
	size_t n, cap;
	double sum;
};

static void sample_add(struct sample *s, double value)
{
	s->v = replay_grow(s->v, &s->cap, s->n + 1, sizeof(*s->v));
	s->v[s->n++] = value;
	s->sum += value;
}

static int compare(const void *a, const void *b)
{
	double x, y;

	__builtin_memcpy(&x, a, sizeof(x));
	__builtin_memcpy(&y, b, sizeof(y));
	return (x > y) - (x < y);
}

static void sample_sort(struct sample *s)
{
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), compare);
}

static double sample_at(const struct sample *s, double p)
{
	size_t at = (size_t)ceil(p * (double)s->n);

	return s->n ? s->v[at ? at - 1 : 0] : 0.0;
}

static double sample_mean(const struct sample *s)
{
	return s->n ? s->sum / (double)s->n : 0.0;
}

struct shape {
	const struct replay_trace *trace;
	struct replay_lru_result inf;
	uint32_t *hits;     /* by request, of the unbounded cache */
	uint32_t *refs;     /* by block: requests that contain it */
	uint32_t *children; /* by block */
	bool *ends;         /* by block: a request ends here */
	struct sample prompt, out, new_blocks, hit_share, gap_requests, gap_s;
	struct sample fanout, leaf_depth, branch_depth;
	uint32_t n_sessions, max_blocks;
	uint32_t roots, leaves, branches, edges;
	size_t used_once, used_10, used_100;
	double span_s;
};

static void look_at_requests(struct shape *s)
{
	const struct replay_trace *trace = s->trace;
	uint32_t *touched = replay_alloc(trace->n_blocks, sizeof(*touched)); /* request + 1 */

	for (size_t i = 0; i < trace->n_requests; i++) {
		const struct replay_request *r = &trace->requests[i];
		const uint32_t *blocks = replay_trace_blocks(trace, r);
		uint32_t hit = s->hits[i];

		sample_add(&s->prompt, (double)r->input_tokens);
		sample_add(&s->out, r->output_tokens);
		sample_add(&s->new_blocks, r->n_blocks - hit);
		sample_add(&s->hit_share, r->n_blocks ? hit / (double)r->n_blocks : 0.0);
		if (hit) {
			size_t before = touched[blocks[hit - 1]] - 1;

			sample_add(&s->gap_requests, (double)(i - before));
			sample_add(&s->gap_s,
				   ((double)r->time_us - (double)trace->requests[before].time_us) *
					   1e-6);
		}
		for (uint32_t k = 0; k < r->n_blocks; k++) {
			touched[blocks[k]] = (uint32_t)i + 1;
			s->refs[blocks[k]]++;
		}
		if (r->n_blocks)
			s->ends[blocks[r->n_blocks - 1]] = true;
		s->max_blocks = r->n_blocks > s->max_blocks ? r->n_blocks : s->max_blocks;
		s->n_sessions = r->session + 1 > s->n_sessions ? r->session + 1 : s->n_sessions;
	}
	s->span_s = (double)trace->requests[trace->n_requests - 1].time_us * 1e-6 -
		    (double)trace->requests[0].time_us * 1e-6;
	free(touched);
}

static void look_at_blocks(struct shape *s)
{
	const struct replay_trace *trace = s->trace;

	for (uint32_t b = 0; b < trace->n_blocks; b++) {
		if (trace->parents[b] == REPLAY_NO_BLOCK)
			s->roots++;
		else
			s->children[trace->parents[b]]++;
		s->used_once += s->refs[b] == 1;
		s->used_10 += s->refs[b] >= 10;
		s->used_100 += s->refs[b] >= 100;
	}
	for (uint32_t b = 0; b < trace->n_blocks; b++) {
		if (s->children[b] == 0) {
			s->leaves++;
			sample_add(&s->leaf_depth, trace->depths[b]);
		} else if (s->children[b] > 1) {
			s->branches++;
			sample_add(&s->fanout, s->children[b]);
			sample_add(&s->branch_depth, trace->depths[b]);
		}
		s->edges += s->children[b] != 1 || s->ends[b];
	}
}

static void shape_init(struct shape *s, const struct replay_trace *trace)
{
	*s = (struct shape){
		.trace = trace,
		.hits = replay_alloc(trace->n_requests, sizeof(*s->hits)),
		.refs = replay_alloc(trace->n_blocks, sizeof(*s->refs)),
		.children = replay_alloc(trace->n_blocks, sizeof(*s->children)),
		.ends = replay_alloc(trace->n_blocks, sizeof(*s->ends)),
	};
	replay_lru_run(trace, 0, s->hits, &s->inf);
	look_at_requests(s);
	look_at_blocks(s);
	struct sample *all[] = { &s->prompt,    &s->out,          &s->new_blocks,
				 &s->hit_share, &s->gap_requests, &s->gap_s,
				 &s->fanout,    &s->leaf_depth,   &s->branch_depth };
	for (size_t i = 0; i < replay_array_size(all); i++)
		sample_sort(all[i]);
}

static void shape_deinit(struct shape *s)
{
	struct sample *all[] = { &s->prompt,    &s->out,          &s->new_blocks,
				 &s->hit_share, &s->gap_requests, &s->gap_s,
				 &s->fanout,    &s->leaf_depth,   &s->branch_depth };

	for (size_t i = 0; i < replay_array_size(all); i++)
		free(all[i]->v);
	free(s->hits);
	free(s->refs);
	free(s->children);
	free(s->ends);
}

/* Where the numbers go: text or JSON. */
struct sheet {
	FILE *out;
	bool json;
	bool any;
};

static void put(struct sheet *sheet, const char *name, int decimals, double value)
{
	if (sheet->json)
		fprintf(sheet->out, "%s\n  \"%s\": %.*f", sheet->any ? "," : "{", name, decimals,
			value);
	else
		fprintf(sheet->out, "%-28s %15.*f\n", name, decimals, value);
	sheet->any = true;
}

static void put_requests(struct sheet *o, const struct shape *s)
{
	const struct replay_trace *t = s->trace;

	put(o, "block_tokens", 0, t->block_tokens);
	put(o, "requests", 0, (double)t->n_requests);
	put(o, "sessions", 0, s->n_sessions);
	put(o, "span_s", 0, s->span_s);
	put(o, "req_per_s", 3, s->span_s > 0 ? (double)t->n_requests / s->span_s : 0.0);
	put(o, "prompt_tokens", 0, (double)s->inf.queried_tokens);
	put(o, "prompt_mean", 0, sample_mean(&s->prompt));
	put(o, "prompt_p50", 0, sample_at(&s->prompt, 0.50));
	put(o, "prompt_p95", 0, sample_at(&s->prompt, 0.95));
	put(o, "prompt_p99", 0, sample_at(&s->prompt, 0.99));
	put(o, "prompt_max", 0, sample_at(&s->prompt, 1.0));
	put(o, "out_mean", 0, sample_mean(&s->out));
	put(o, "out_p50", 0, sample_at(&s->out, 0.50));
	put(o, "out_p95", 0, sample_at(&s->out, 0.95));
	put(o, "block_refs", 0, (double)t->n_refs);
	put(o, "max_blocks_per_req", 0, s->max_blocks);
	put(o, "new_blocks_per_req_mean", 1, sample_mean(&s->new_blocks));
	put(o, "new_blocks_p50", 0, sample_at(&s->new_blocks, 0.50));
	put(o, "new_blocks_p95", 0, sample_at(&s->new_blocks, 0.95));
	put(o, "prefix_hit_frac_p10", 3, sample_at(&s->hit_share, 0.10));
	put(o, "prefix_hit_frac_p50", 3, sample_at(&s->hit_share, 0.50));
	put(o, "prefix_hit_frac_p90", 3, sample_at(&s->hit_share, 0.90));
	put(o, "reuse_gap_req_p50", 0, sample_at(&s->gap_requests, 0.50));
	put(o, "reuse_gap_req_p90", 0, sample_at(&s->gap_requests, 0.90));
	put(o, "reuse_gap_s_p50", 1, sample_at(&s->gap_s, 0.50));
	put(o, "reuse_gap_s_p90", 1, sample_at(&s->gap_s, 0.90));
	put(o, "reuse_gap_s_p99", 1, sample_at(&s->gap_s, 0.99));
}

static void put_blocks(struct sheet *o, const struct shape *s)
{
	double n = s->trace->n_blocks ? (double)s->trace->n_blocks : 1.0;

	put(o, "unique_blocks", 0, s->trace->n_blocks);
	put(o, "unique_Mtok", 2, s->trace->n_blocks * (double)s->trace->block_tokens * 1e-6);
	put(o, "sharing_refs_per_block", 2, (double)s->trace->n_refs / n);
	put(o, "blocks_used_once", 4, (double)s->used_once / n);
	put(o, "blocks_used_>=10", 4, (double)s->used_10 / n);
	put(o, "blocks_used_>=100", 4, (double)s->used_100 / n);
	put(o, "roots", 0, s->roots);
	put(o, "leaves", 0, s->leaves);
	put(o, "branch_nodes", 0, s->branches);
	put(o, "radix_edges", 0, s->edges);
	put(o, "blocks_per_edge", 2, s->edges ? s->trace->n_blocks / (double)s->edges : 0.0);
	put(o, "fanout_mean", 2, sample_mean(&s->fanout));
	put(o, "fanout_p50", 0, sample_at(&s->fanout, 0.50));
	put(o, "fanout_p99", 0, sample_at(&s->fanout, 0.99));
	put(o, "fanout_max", 0, sample_at(&s->fanout, 1.0));
	put(o, "leaf_depth_p50", 0, sample_at(&s->leaf_depth, 0.50));
	put(o, "leaf_depth_p95", 0, sample_at(&s->leaf_depth, 0.95));
	put(o, "leaf_depth_max", 0, sample_at(&s->leaf_depth, 1.0));
	put(o, "branch_depth_p50", 0, sample_at(&s->branch_depth, 0.50));
	put(o, "ids_under_two_parents", 0, (double)s->trace->n_conflicts);
}

static void put_hits(struct sheet *o, const struct shape *s, const uint64_t *capacities, size_t n)
{
	double queried = (double)s->inf.queried_tokens;
	double requests = (double)s->trace->n_requests;

	put(o, "unbounded_token_hit_ratio", 5, (double)s->inf.hit_tokens / queried);
	put(o, "unbounded_request_hit_ratio", 5, (double)s->inf.hit_requests / requests);
	put(o, "unbounded_hit_tokens", 0, (double)s->inf.hit_tokens);
	for (size_t i = 0; i < n; i++) {
		struct replay_lru_result lru;
		char name[64];

		replay_lru_run(s->trace, capacities[i], NULL, &lru);
		(void)snprintf(name, sizeof(name), "lru_%llu_token_hit_ratio",
			       (unsigned long long)capacities[i]);
		put(o, name, 5, (double)lru.hit_tokens / queried);
		(void)snprintf(name, sizeof(name), "lru_%llu_request_hit_ratio",
			       (unsigned long long)capacities[i]);
		put(o, name, 5, (double)lru.hit_requests / requests);
		(void)snprintf(name, sizeof(name), "lru_%llu_hit_tokens",
			       (unsigned long long)capacities[i]);
		put(o, name, 0, (double)lru.hit_tokens);
		(void)snprintf(name, sizeof(name), "lru_%llu_hit_blocks",
			       (unsigned long long)capacities[i]);
		put(o, name, 0, (double)lru.hit_blocks);
	}
}

static void print(struct sheet *o, const struct replay_trace *trace, const uint64_t *capacities,
		  size_t n)
{
	struct shape s;

	shape_init(&s, trace);
	put_requests(o, &s);
	put_blocks(o, &s);
	put_hits(o, &s, capacities, n);
	shape_deinit(&s);
}

void replay_characteristics_print(FILE *out, const struct replay_trace *trace,
				  const uint64_t *capacities, size_t n_capacities)
{
	struct sheet o = { .out = out };

	fprintf(out, "%-28s %15s\n", "source", trace->name);
	print(&o, trace, capacities, n_capacities);
}

void replay_characteristics_print_json(FILE *out, const struct replay_trace *trace,
				       const uint64_t *capacities, size_t n_capacities)
{
	struct sheet o = { .out = out, .json = true };

	print(&o, trace, capacities, n_capacities);
	fputs("\n}\n", out);
}
