/*
 * metrics.c - see metrics.h.
 *
 * A family is a row of `families`; a series of it is a row of its `series`, which says where in the
 * snapshot the value lies.  A new metric is a new field of the snapshot and a row here; the scrape,
 * its help and the reference follow.
 *
 * Names: prefixd_<thing>_<unit>, seconds and bytes, counters end in _total, gauges never do.  Rates
 * and ratios are left to whoever reads: there is a numerator and a denominator for each.
 */
#include "daemon/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum metric_type {
	COUNTER,
	GAUGE,
	HISTOGRAM
};

static const char *const type_names[] = {
	[COUNTER] = "counter",
	[GAUGE] = "gauge",
	[HISTOGRAM] = "histogram",
};

enum metric_unit {
	PLAIN,
	SECONDS /* the field has nanoseconds */
};

struct series {
	const char *value; /* of the family's label; NULL where it has none */
	size_t offset;     /* in struct prefixd_snapshot, of a uint64_t or a prefixd_histogram */
};

struct family {
	const char *name;
	enum metric_type type;
	enum metric_unit unit;
	const char *fixed; /* a label that all its series share, as text; or NULL */
	const char *label;
	const struct series *series;
	size_t n_series;
	const char *help;
};

/* ---- the table ------------------------------------------------------------------------------- */

#define AT(field)    offsetof(struct prefixd_snapshot, field)
#define DEVICE       "tier=\"device\""
#define LIST(...)    ((const struct series[]){ __VA_ARGS__ })
#define COUNT(...)   (sizeof(LIST(__VA_ARGS__)) / sizeof(struct series))
#define MANY(...)    .series = LIST(__VA_ARGS__), .n_series = COUNT(__VA_ARGS__)
#define ONE(field)   MANY({ NULL, AT(field) })
#define TABLE(array) .series = array, .n_series = radix_array_size(array)

static const struct series slot_states[] = {
#define X(sym, text) { text, AT(slots[RADIX_SLOT_##sym]) },
	RADIX_SLOT_STATES(X)
#undef X
};

static const struct series slot_state_bytes[] = {
#define X(sym, text) { text, AT(slot_bytes[RADIX_SLOT_##sym]) },
	RADIX_SLOT_STATES(X)
#undef X
};

static const struct series remove_reasons[] = {
#define X(sym, text) { text, AT(removed[RADIX_REMOVE_##sym]) },
	RADIX_REMOVE_REASONS(X)
#undef X
};

static const struct series closed_reasons[] = {
#define X(sym, label, text) { label, AT(measures.closed[PREFIXD_CLOSED_##sym]) },
	PREFIXD_CLOSED(X)
#undef X
};

static const struct series operations[] = {
#define X(code, sym, name) { #name, AT(measures.request[PREFIXD_METRIC_OP_##sym]) },
	PROTO_OPS(X)
#undef X
		{ "other", AT(measures.request[PREFIXD_METRIC_OP_other]) },
};

static const struct family families[] = {
	/* ---- use: everything here is counted when a lease ends ---- */
	{ "prefixd_lookups_total", COUNTER, .label = "result",
	  MANY({ "full", AT(counters.lookups_full) }, { "partial", AT(counters.lookups_partial) },
	       { "miss", AT(counters.lookups_miss) }),
	  .help = "Leases that ended, by how many of their tokens were served: all, some, none." },
	{ "prefixd_lookup_tokens_total", COUNTER, ONE(counters.queried_tokens),
	  .help = "Tokens that leases which ended had asked for: prefixd_hit_tokens_total plus "
		  "prefixd_miss_tokens_total." },
	/* Each tier that can serve is a row: the sum above is checked by a test. */
	{ "prefixd_hit_tokens_total", COUNTER, .label = "tier",
	  MANY({ "device", AT(counters.hit_device_tokens) },
	       { "pending", AT(counters.hit_pending_tokens) }),
	  .help = "Tokens served, by where they were; pending: another worker committed them while "
		  "the lease lasted." },
	{ "prefixd_hit_tail_tokens_total", COUNTER, ONE(counters.hit_tail_tokens),
	  .help = "Of the hits on the device, tokens of blocks that match in part." },
	{ "prefixd_miss_tokens_total", COUNTER, .label = "reason",
	  MANY({ "never_seen", AT(counters.miss_never_seen) },
	       { "diverged", AT(counters.miss_diverged) },
	       { "below_block", AT(counters.miss_below_block) },
	       { "no_room", AT(counters.miss_no_room) }, { "pending", AT(counters.miss_pending) },
	       { "seed_mismatch", AT(counters.miss_seed_mismatch) }),
	  .help = "Tokens not served: nothing like it was stored, something else follows there, "
		  "the rest is shorter than a block, no slot was to be had, another worker was "
		  "computing it, the worker hashes with another seed." },
	{ "prefixd_waits_total", COUNTER, ONE(counters.waits),
	  .help = "WAITs that had to wait for another worker." },
	{ "prefixd_waits_ended_total", COUNTER, .label = "state",
	  MANY({ "ready", AT(counters.waits_ready) }, { "lead", AT(counters.waits_lead) }),
	  .help = "Of those, the ones that ended with the blocks there, or with the lead." },
	{ "prefixd_leaders_late_total", COUNTER, ONE(counters.leaders_late),
	  .help = "Workers that took longer than pending-deadline to compute what they had said." },
	/* ---- store ---- */
	{ "prefixd_reserved_blocks_total", COUNTER, ONE(counters.reserved_blocks),
	  .help = "Slots granted to workers." },
	{ "prefixd_reserve_busy_total", COUNTER, ONE(counters.reserve_busy),
	  .help = "RESERVE requests answered BUSY." },
	{ "prefixd_commits_total", COUNTER, ONE(counters.committed_blocks),
	  .help = "Blocks that became ready to be read." },
	{ "prefixd_duplicate_stores_total", COUNTER, ONE(counters.duplicate_blocks),
	  .help = "Commits of blocks that another worker had committed before." },
	{ "prefixd_attached_stores_total", COUNTER, ONE(counters.attached_blocks),
	  .help = "Commits of blocks that were known, without a copy on the device." },
	{ "prefixd_discards_total", COUNTER, ONE(counters.discarded_blocks),
	  .help = "Reserved slots given back without a commit." },
	{ "prefixd_quarantined_blocks_total", COUNTER, ONE(counters.quarantined_blocks),
	  .help = "Slots kept back because a process that could still write them had ended." },
	{ "prefixd_copied_bytes_total", COUNTER, ONE(counters.bytes_copied),
	  .help = "Payload that the daemon itself copied." },
	/* ---- eviction ---- */
	{ "prefixd_evicted_blocks_total", COUNTER, .fixed = DEVICE, .label = "reason",
	  TABLE(remove_reasons),
	  .help = "Blocks that left: for room, by a flush, by the operator's evict, found corrupt, "
		  "over a quota." },
	{ "prefixd_evicted_bytes_total", COUNTER, .fixed = DEVICE, ONE(removed_bytes),
	  .help = "Memory of the blocks that left." },
	/* ---- space ---- */
	{ "prefixd_pools", GAUGE, ONE(pools), .help = "Pools: one for each size of block." },
	{ "prefixd_pool_slots", GAUGE, .fixed = DEVICE, .label = "state", TABLE(slot_states),
	  .help = "Slots by state, over all pools." },
	{ "prefixd_pool_capacity_slots", GAUGE, .fixed = DEVICE, ONE(capacity_slots),
	  .help = "Slots of all pools: the sum of prefixd_pool_slots." },
	{ "prefixd_pool_bytes", GAUGE, .fixed = DEVICE, .label = "state", TABLE(slot_state_bytes),
	  .help = "Memory of the slots by state." },
	{ "prefixd_pool_capacity_bytes", GAUGE, .fixed = DEVICE, ONE(capacity_bytes),
	  .help = "Memory of all pools: the sum of prefixd_pool_bytes." },
	{ "prefixd_blocks", GAUGE, ONE(blocks), .help = "Blocks that the index knows." },
	{ "prefixd_radix_nodes", GAUGE, ONE(nodes), .help = "Nodes of the index." },
	{ "prefixd_radix_roots", GAUGE, ONE(roots),
	  .help = "Trees of the index: one for each namespace, tenant and salt in use." },
	{ "prefixd_index_bytes", GAUGE, .label = "part",
	  MANY({ "tree", AT(tree_bytes) }, { "table", AT(table_bytes) }, { "keys", AT(key_bytes) }),
	  .help = "Memory of the index: its tree, its table of blocks, the keys of the blocks." },
	{ "prefixd_heap_bytes", GAUGE, ONE(heap_bytes),
	  .help = "Memory that the deciding part of the daemon holds, the index included." },
	{ "prefixd_key_mismatches_total", COUNTER, ONE(collisions),
	  .help = "Lookups whose address agreed and whose key did not; each was caught." },
	/* ---- subscribers ---- */
	{ "prefixd_events_emitted_total", COUNTER, ONE(counters.events_emitted),
	  .help = "Events sent to subscribers." },
	{ "prefixd_events_dropped_total", COUNTER, ONE(counters.events_dropped),
	  .help = "Events that subscribers were too slow or too late for." },
	{ "prefixd_resyncs_total", COUNTER, ONE(counters.resyncs),
	  .help = "Times that a subscriber was told that it lost events." },
	/* ---- sessions and leases ---- */
	{ "prefixd_sessions", GAUGE, .label = "state",
	  MANY({ "connected", AT(sessions_connected) }, { "orphaned", AT(sessions_orphaned) }),
	  .help = "Sessions, prefixctl's too; orphaned: the socket ended, the process lives." },
	{ "prefixd_sessions_opened_total", COUNTER, ONE(counters.sessions_opened),
	  .help = "Sessions begun." },
	{ "prefixd_sessions_orphaned_total", COUNTER, ONE(counters.sessions_orphaned),
	  .help = "Sessions whose socket ended before their process." },
	{ "prefixd_leases", GAUGE, ONE(leases), .help = "Leases that are held now." },
	{ "prefixd_leases_begun_total", COUNTER, ONE(counters.lookups),
	  .help = "Leases begun by MATCH." },
	{ "prefixd_leases_ended_total", COUNTER, .label = "reason",
	  MANY({ "released", AT(counters.leases_released) }, { "died", AT(counters.leases_died) },
	       { "quiesced", AT(counters.leases_quiesced) },
	       { "revoked", AT(counters.leases_revoked) }),
	  .help = "Leases ended: by RELEASE, by the end of their process, by QUIESCED of an "
		  "orphan, taken back." },
	{ "prefixd_pins", GAUGE, ONE(pins),
	  .help = "Blocks that leases keep from leaving, counted once per lease." },
	{ "prefixd_pin_age_max_seconds", GAUGE, SECONDS, ONE(lease_age_max_ns),
	  .help = "Age of the oldest lease; 0 without leases." },
	{ "prefixd_pin_errors_total", COUNTER, .label = "kind",
	  MANY({ "unknown_lease", AT(counters.unknown_lease) }),
	  .help = "Requests that name a lease which is not there." },
	/* ---- requests and time ---- */
	{ "prefixd_requests_total", COUNTER, ONE(counters.requests),
	  .help = "Requests of workers that were answered, replays apart." },
	{ "prefixd_request_errors_total", COUNTER, ONE(counters.errors),
	  .help = "Requests answered with an error." },
	{ "prefixd_request_replays_total", COUNTER, ONE(counters.op_replays),
	  .help = "Requests answered from the memory of operation ids." },
	{ "prefixd_requests_refused_total", COUNTER, .label = "reason",
	  MANY({ "forbidden", AT(counters.forbidden) },
	       { "self_test", AT(counters.self_test_failed) }),
	  .help = "Requests for tenants that the peer may not name; wrong self-tests." },
	{ "prefixd_request_duration_seconds", HISTOGRAM, .label = "op", TABLE(operations),
	  .help = "Time that deciding a request took, until its reply was queued." },
	{ "prefixd_loop_iteration_seconds", HISTOGRAM, ONE(measures.turn),
	  .help = "Time that one turn of the loop kept others waiting, from the first event that "
		  "was decided to the next wait." },
	/* ---- health ---- */
	{ "prefixd_draining", GAUGE, ONE(draining),
	  .help = "1 from the signal or request to stop on: no new work is taken." },
	{ "prefixd_start_time_seconds", GAUGE, SECONDS, ONE(started_ns),
	  .help = "When the daemon started, since 1970." },
	{ "prefixd_config_last_reload_successful", GAUGE, ONE(reload_ok),
	  .help = "1 if the last reading of the configuration was taken over; the start is one." },
	{ "prefixd_config_last_reload_success_timestamp_seconds", GAUGE, SECONDS, ONE(reload_ns),
	  .help = "When the configuration was last taken over, since 1970." },
	{ "prefixd_namespace_seed_mismatch_total", COUNTER, ONE(counters.seed_mismatch),
	  .help = "Namespaces opened by workers that hash with different seeds." },
	{ "prefixd_log_messages_total", COUNTER, .label = "level",
	  MANY({ "error", AT(log_lines[PREFIXD_LOG_ERROR]) },
	       { "warn", AT(log_lines[PREFIXD_LOG_WARN]) },
	       { "info", AT(log_lines[PREFIXD_LOG_INFO]) },
	       { "debug", AT(log_lines[PREFIXD_LOG_DEBUG]) }),
	  .help = "Lines written to the log." },
	{ "process_cpu_seconds_total", COUNTER, SECONDS, ONE(cpu_ns),
	  .help = "Processor time, user and system." },
	{ "process_resident_memory_bytes", GAUGE, ONE(resident_bytes),
	  .help = "Resident memory, pages of the pools included." },
	{ "process_virtual_memory_bytes", GAUGE, ONE(virtual_bytes), .help = "Virtual memory." },
	{ "process_open_fds", GAUGE, ONE(open_fds), .help = "Open descriptors." },
	{ "process_max_fds", GAUGE, ONE(max_fds), .help = "Most descriptors that may be open." },
	{ "process_start_time_seconds", GAUGE, SECONDS, ONE(started_ns),
	  .help = "When the process started, since 1970." },
	/* ---- connections ---- */
	{ "prefixd_connections_closed_total", COUNTER, .label = "reason", TABLE(closed_reasons),
	  .help = "Connections that ended, by why." },
	{ "prefixd_connections_rejected_total", COUNTER, .label = "reason",
	  MANY({ "no_descriptor", AT(measures.rejected_no_descriptor) },
	       { "no_memory", AT(measures.rejected_no_memory) },
	       { "max_sessions", AT(counters.refused_sessions) },
	       { "max_sessions_per_process", AT(counters.refused_process) },
	       { "max_sessions_per_user", AT(counters.refused_user) },
	       { "forbidden", AT(counters.refused_forbidden) },
	       { "version", AT(counters.refused_version) },
	       { "self_test", AT(counters.self_test_failed) },
	       { "draining", AT(counters.refused_draining) }),
	  .help = "Connections that got no session: closed at once, or told so in answer to "
		  "HELLO." },
	{ "prefixd_matches_rejected_total", COUNTER, .label = "reason",
	  MANY({ "orphans", AT(counters.refused_orphans) }),
	  .help = "MATCH requests of processes that left too many sessions behind." },
	{ "prefixd_scrape_duration_seconds", GAUGE, SECONDS, ONE(scrape_ns),
	  .help = "How long collecting the values of this scrape took." },
};

/* ---- measuring ------------------------------------------------------------------------------- */

static const struct {
	uint64_t ns;
	const char *text;
} buckets[PREFIXD_N_BUCKETS] = {
#define X(ns_, text_) { ns_, text_ },
	PREFIXD_BUCKETS(X)
#undef X
};

/* Most requests take a few microseconds, so the first comparison decides. */
void prefixd_histogram_add(struct prefixd_histogram *h, uint64_t ns)
{
	size_t i = 0;

	while (i < PREFIXD_N_BUCKETS && ns > buckets[i].ns)
		i++;
	h->n[i]++;
	h->sum_ns += ns;
}

void prefixd_measure_request(struct prefixd_measures *m, uint16_t op, uint64_t ns)
{
	enum prefixd_metric_op i = PREFIXD_METRIC_OP_other;

	switch (op) {
#define X(code, sym, name)                   \
	case code:                           \
		i = PREFIXD_METRIC_OP_##sym; \
		break;
		PROTO_OPS(X)
#undef X
	default:
		break;
	}
	prefixd_histogram_add(&m->request[i], ns);
}

/* ---- text ------------------------------------------------------------------------------------ */

struct writer {
	FILE *f;
	const struct prefixd_snapshot *s;
	enum prefixd_exposition how;
};

static const void *series_field(const struct writer *w, const struct series *v)
{
	return (const char *)w->s + v->offset;
}

/* {a="b",c="d"}, without braces when there is nothing to say. */
static void labels_write(const struct writer *w, const struct family *m, const struct series *v,
			 const char *le)
{
	const char *open = "{";

	if (m->fixed) {
		fprintf(w->f, "%s%s", open, m->fixed);
		open = ",";
	}
	if (m->label) {
		fprintf(w->f, "%s%s=\"%s\"", open, m->label, v->value);
		open = ",";
	}
	if (le) {
		fprintf(w->f, "%sle=\"%s\"", open, le);
		open = ",";
	}
	if (*open == ',')
		fputc('}', w->f);
}

static void number_write(const struct writer *w, enum metric_unit unit, uint64_t v)
{
	if (unit == SECONDS)
		fprintf(w->f, " %llu.%09llu\n", (unsigned long long)(v / 1000000000u),
			(unsigned long long)(v % 1000000000u));
	else
		fprintf(w->f, " %llu\n", (unsigned long long)v);
}

static void histogram_write(const struct writer *w, const struct family *m, const struct series *v)
{
	const struct prefixd_histogram *h = series_field(w, v);
	uint64_t n = 0;

	for (size_t i = 0; i <= PREFIXD_N_BUCKETS; i++) {
		n += h->n[i];
		fprintf(w->f, "%s_bucket", m->name);
		labels_write(w, m, v, i < PREFIXD_N_BUCKETS ? buckets[i].text : "+Inf");
		number_write(w, PLAIN, n);
	}
	fprintf(w->f, "%s_sum", m->name);
	labels_write(w, m, v, NULL);
	number_write(w, SECONDS, h->sum_ns);
	fprintf(w->f, "%s_count", m->name);
	labels_write(w, m, v, NULL);
	number_write(w, PLAIN, n);
}

/* OpenMetrics names a counter's family without its _total. */
static int family_name_len(const struct family *m, enum prefixd_exposition how)
{
	size_t len = strlen(m->name);

	if (how == PREFIXD_OPENMETRICS_1_0_0 && m->type == COUNTER)
		len -= strlen("_total");
	return (int)len;
}

static void family_write(const struct writer *w, const struct family *m)
{
	int len = family_name_len(m, w->how);

	fprintf(w->f, "# HELP %.*s %s\n# TYPE %.*s %s\n", len, m->name, m->help, len, m->name,
		type_names[m->type]);
	for (size_t i = 0; i < m->n_series; i++) {
		const struct series *v = &m->series[i];
		uint64_t number;

		if (m->type == HISTOGRAM) {
			histogram_write(w, m, v);
			continue;
		}
		memcpy(&number, series_field(w, v), sizeof(number));
		fputs(m->name, w->f);
		labels_write(w, m, v, NULL);
		number_write(w, m->unit, number);
	}
}

/* The one whose labels are texts of the build. */
#define BUILD_HELP "1; what runs here."

static void build_write(const struct writer *w)
{
	fprintf(w->f,
		"# HELP prefixd_build_info " BUILD_HELP "\n# TYPE prefixd_build_info gauge\n"
		"prefixd_build_info{version=\"%s\",protocol=\"%u\",device=\"%s\"} 1\n",
		w->s->version, PROTO_VERSION, w->s->device);
}

static int text_close(FILE *f, char **text)
{
	bool failed = ferror(f) != 0;

	if (fclose(f) == 0 && !failed)
		return 0;
	free(*text);
	return -ENOMEM;
}

int prefixd_metrics_write(const struct prefixd_snapshot *s, enum prefixd_exposition how,
			  char **ret_text, size_t *ret_len)
{
	char *text = NULL;
	size_t len = 0;
	struct writer w = { .f = open_memstream(&text, &len), .s = s, .how = how };
	int r;

	if (!w.f)
		return -ENOMEM;
	build_write(&w);
	for (size_t i = 0; i < radix_array_size(families); i++)
		family_write(&w, &families[i]);
	if (how == PREFIXD_OPENMETRICS_1_0_0)
		fputs("# EOF\n", w.f);
	r = text_close(w.f, &text);
	if (r < 0)
		return r;
	*ret_text = text;
	*ret_len = len;
	return 0;
}

int prefixd_metrics_reference(char **ret_text)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	int r;

	if (!f)
		return -ENOMEM;
	fputs("| metric | type | labels | what |\n|---|---|---|---|\n", f);
	fputs("| `prefixd_build_info` | gauge | `version`, `protocol`, `device` | " BUILD_HELP
	      " |\n",
	      f);
	for (size_t i = 0; i < radix_array_size(families); i++) {
		const struct family *m = &families[i];

		fprintf(f, "| `%s` | %s | ", m->name, type_names[m->type]);
		if (m->fixed)
			fprintf(f, "`%s`%s", m->fixed, m->label ? "; " : "");
		if (m->label) {
			fprintf(f, "`%s`:", m->label);
			for (size_t k = 0; k < m->n_series; k++)
				fprintf(f, "%s %s", k ? "," : "", m->series[k].value);
		}
		fprintf(f, " | %s |\n", m->help);
	}
	r = text_close(f, &text);
	if (r == 0)
		*ret_text = text;
	return r;
}

/* ---- negotiation ----------------------------------------------------------------------------- */

enum prefixd_exposition prefixd_exposition_choose(const char *accept)
{
	static const char type[] = "application/openmetrics-text";

	/* A list of types with weights; who names this one reads it, unless he says 0.0.1 alone. */
	for (const char *p = accept; p && (p = strcasestr(p, type)) != NULL; p += strlen(type)) {
		size_t len = strcspn(p, ",");
		const char *version = memmem(p, len, "version=", 8);

		if (!version || strncmp(version + 8, "1.0.0", 5) == 0 ||
		    strncmp(version + 8, "\"1.0.0\"", 7) == 0)
			return PREFIXD_OPENMETRICS_1_0_0;
	}
	return PREFIXD_TEXT_0_0_4;
}

const char *prefixd_exposition_content_type(enum prefixd_exposition how)
{
	return how == PREFIXD_OPENMETRICS_1_0_0
		       ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
		       : "text/plain; version=0.0.4; charset=utf-8";
}
