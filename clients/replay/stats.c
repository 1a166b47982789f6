/*
 * stats.c - counting and adding up.
 */
#include "clients/replay/stats.h"

const char *replay_op_to_string(enum replay_op op)
{
	static const char *const names[] = {
#define X(sym, name) [REPLAY_OP_##sym] = #name,
		REPLAY_OPS(X)
#undef X
	};

	return op < REPLAY_N_OPS ? names[op] : "?";
}

/*
 * Below STEPS ns a bucket is one ns.  Above, ns >> octave lies in [STEPS, 2 x STEPS), and octaves
 * follow each other without a gap.
 */
static size_t bucket_of(uint64_t ns)
{
	unsigned int octave;
	size_t at;

	if (ns < REPLAY_LATENCY_STEPS)
		return (size_t)ns;
	octave = 63u - (unsigned int)__builtin_clzll(ns) - 6u;
	at = (size_t)octave * REPLAY_LATENCY_STEPS + (size_t)(ns >> octave);
	return at < REPLAY_LATENCY_BUCKETS ? at : REPLAY_LATENCY_BUCKETS - 1;
}

/* The middle of a bucket. */
static double bucket_ns(size_t at)
{
	size_t octave = at < REPLAY_LATENCY_STEPS ? 0 : at / REPLAY_LATENCY_STEPS - 1;

	return ((double)(at - octave * REPLAY_LATENCY_STEPS) + 0.5) * (double)(1ull << octave);
}

void replay_latency_add(struct replay_latency *latency, uint64_t ns)
{
	latency->buckets[bucket_of(ns)]++;
	latency->n++;
}

void replay_latency_merge(struct replay_latency *to, const struct replay_latency *from)
{
	for (size_t i = 0; i < REPLAY_LATENCY_BUCKETS; i++)
		to->buckets[i] += from->buckets[i];
	to->n += from->n;
}

double replay_latency_at(const struct replay_latency *latency, double p)
{
	double want = p * (double)latency->n;
	uint64_t seen = 0;

	for (size_t i = 0; i < REPLAY_LATENCY_BUCKETS; i++) {
		seen += latency->buckets[i];
		if (seen && (double)seen >= want)
			return bucket_ns(i) * 1e-3;
	}
	return 0.0;
}

void replay_stats_merge(struct replay_stats *to, const struct replay_stats *from)
{
#define X(name) to->name += from->name;
	REPLAY_COUNTERS(X)
#undef X
	for (uint32_t i = 0; i < REPLAY_N_REASONS; i++)
		to->cut_by[i] += from->cut_by[i];
	for (int op = 0; op < REPLAY_N_OPS; op++)
		replay_latency_merge(&to->latency[op], &from->latency[op]);
	if (from->end_ns > to->end_ns)
		to->end_ns = from->end_ns;
	if (from->rss_kib > to->rss_kib)
		to->rss_kib = from->rss_kib;
}
