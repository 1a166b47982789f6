/*
 * show.c - status and stat for people.
 *
 * Everything on the page comes out of one reply, so that its numbers belong together.
 */
#include "clients/ctl/ctl.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum ctl_exit ctl_show_ping(const struct ctl *ctl, const json_t *r)
{
	printf("prefixd %s answers%s: up %s, boot %s\n", ctl_str(r, "version"),
	       ctl_bool(r, "draining") ? " and is draining" : "", ctl_age(ctl_real(r, "uptime_s")),
	       ctl_str(r, "boot"));
	return CTL_OK;
}

/* A bar of all slots: what is in use, what is free. */
static void show_slots(const json_t *slots, uint64_t n_slots)
{
	static const struct {
		const char *state;
		char mark;
	} marks[] = { { "ready", '#' },
		      { "leaving", '-' },
		      { "reserved", '+' },
		      { "own", '+' },
		      { "quarantined", 'x' } };
	char bar[51];
	size_t at = 0;

	if (!n_slots)
		return;
	memset(bar, '.', sizeof(bar) - 1);
	bar[sizeof(bar) - 1] = 0;
	for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
		uint64_t n = ctl_u64(slots, marks[i].state);
		size_t width = (size_t)llround((double)n / (double)n_slots * 50);

		if (n && !width)
			width = 1; /* what is there is seen */
		for (; width && at < sizeof(bar) - 1; width--)
			bar[at++] = marks[i].mark;
	}
	ctl_line("", "[%s] %s ready", bar,
		 ctl_percent((double)ctl_u64(slots, "ready") / (double)n_slots));
}

/* Of pools with one rank in this machine's memory nobody asks where they lie. */
static bool ranks_matter(const json_t *ranks)
{
	return json_array_size(ranks) > 1 ||
	       strncmp(ctl_str(json_array_get(ranks, 0), "device"), "GPU-", 4) == 0;
}

static void show_ranks(const json_t *groups)
{
	static const char *const titles[] = { "GROUP", "RANK", "POOL", "<DEVICE" };
	const json_t *g, *rank;
	struct ctl_table t;
	size_t i, k;

	ctl_table_init(&t, titles, sizeof(titles) / sizeof(titles[0]));
	json_array_foreach((json_t *)(uintptr_t)groups, i, g)
	{
		json_t *ranks = json_object_get(g, "ranks");

		if (!ranks_matter(ranks))
			continue;
		json_array_foreach(ranks, k, rank)
		{
			const char *cells[] = {
				ctl_count(ctl_u64(g, "id")),
				ctl_count(k),
				ctl_bytes(ctl_u64(rank, "pool_bytes")),
				ctl_str(rank, "device"),
			};

			ctl_table_row(&t, cells);
		}
	}
	if (t.n_rows > 0)
		ctl_table_print(&t, "Ranks");
}

static void show_groups(const json_t *groups)
{
	static const char *const titles[] = { "GROUP", "RANKS", "SLOTS",  "BLOCK", "POOL",
					      "PAGE",  "READY", "BLOCKS", "PINS",  "INDEX" };
	struct ctl_table t;
	const json_t *g;
	size_t i;

	ctl_table_init(&t, titles, sizeof(titles) / sizeof(titles[0]));
	json_array_foreach((json_t *)(uintptr_t)groups, i, g)
	{
		double n = (double)ctl_u64(g, "n_slots");
		const json_t *slots = json_object_get(g, "slots");
		const char *cells[] = {
			ctl_count(ctl_u64(g, "id")),
			ctl_count(json_array_size(json_object_get(g, "ranks"))),
			ctl_brief(ctl_u64(g, "n_slots")),
			ctl_bytes(ctl_u64(g, "slot_bytes")),
			ctl_bytes(ctl_u64(g, "pool_bytes")),
			ctl_u64(g, "page_bytes") >= 1u << 20 ? "2M" : "4K",
			ctl_percent(n > 0 ? (double)ctl_u64(slots, "ready") / n : 0),
			ctl_brief(ctl_u64(g, "blocks")),
			ctl_brief(ctl_u64(g, "pins")),
			ctl_bytes(ctl_u64(g, "index_bytes")),
		};

		ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, "Pool groups");
	show_ranks(groups);
}

static void show_namespaces(const json_t *namespaces)
{
	static const char *const titles[] = { "NS",     "GROUP",    "<MODEL", "<REVISION",
					      "<DTYPE", "<ADAPTER", "<COLD",  "<KEYS",
					      "TOK",    "SESS",     "BLOCKS" };
	struct ctl_table t;
	const json_t *n;
	size_t i;

	ctl_table_init(&t, titles, 11);
	json_array_foreach((json_t *)(uintptr_t)namespaces, i, n)
	{
		const char *adapter = ctl_str(n, "adapter"), *cold = ctl_str(n, "cold_codec");
		const char *cells[] = {
			ctl_count(ctl_u64(n, "id")),
			ctl_count(ctl_u64(n, "group")),
			ctl_str(n, "model"),
			ctl_str(n, "revision"),
			ctl_str(n, "dtype"),
			adapter[0] ? adapter : "-",
			strcmp(cold, "none") == 0 ? "-" : cold,
			ctl_str(n, "key_mode"),
			ctl_count(ctl_u64(n, "block_tokens")),
			ctl_brief(ctl_u64(n, "sessions")),
			ctl_brief(ctl_u64(n, "blocks")),
		};

		ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, "Namespaces");
}

static void show_sessions(const json_t *sessions)
{
	static const char *const titles[] = { "SESSION", "PID",      "UID", "<NAME", "AGE",
					      "LEASES",  "REQUESTS", "RUN", "TTFT",  "TPOT" };
	struct ctl_table t;
	const json_t *s;
	size_t i;

	ctl_table_init(&t, titles, 10);
	json_array_foreach((json_t *)(uintptr_t)sessions, i, s)
	{
		uint64_t ttft = ctl_u64(s, "ttft_us"), tpot = ctl_u64(s, "tpot_us");
		const char *cells[] = {
			ctl_format("%llu", (unsigned long long)ctl_u64(s, "session")),
			ctl_format("%llu", (unsigned long long)ctl_u64(s, "pid")),
			ctl_format("%llu", (unsigned long long)ctl_u64(s, "uid")),
			ctl_format("%s%s", ctl_bool(s, "orphan") ? "(orphan) " : "",
				   ctl_str(s, "name")),
			ctl_age(ctl_real(s, "age_s")),
			ctl_brief(ctl_u64(s, "leases")),
			ctl_brief(ctl_u64(s, "requests")),
			ctl_brief(ctl_u64(s, "running")),
			ttft ? ctl_format("%.0fms", (double)ttft / 1000) : "-",
			tpot ? ctl_format("%.1fms", (double)tpot / 1000) : "-",
		};

		if (ctl_u64(s, "pid") != (uint64_t)getpid()) /* not this very question */
			ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, "Sessions");
}

/* One line per tier that lost something; the device's always. */
static void show_removed(const json_t *removed)
{
	const char *tier;
	json_t *reasons, *n;

	json_object_foreach((json_t *)(uintptr_t)removed, tier, reasons)
	{
		bool device = strcmp(tier, "device") == 0;
		uint64_t sum = 0;
		const char *name;

		json_object_foreach(reasons, name, n) sum += (uint64_t)json_integer_value(n);
		if (device || sum)
			ctl_print_members(device ? "removed" : ctl_format("  %s", ctl_clean(tier)),
					  reasons);
	}
}

/* What a tier copied to or from others: "1,234 host, 5 redis", or "-". */
static const char *moves(const json_t *by_to)
{
	const char *all = "", *to;
	json_t *n;

	json_object_foreach((json_t *)(uintptr_t)by_to, to, n)
	{
		if (json_integer_value(n) <= 0)
			continue;
		all = ctl_format("%s%s%s %s", all, *all ? ", " : "",
				 ctl_brief((uint64_t)json_integer_value(n)), ctl_clean(to));
	}
	return *all ? all : "-";
}

/* Of a daemon that has more than one. */
static void show_tiers(const json_t *r)
{
	static const char *const titles[] = { "<TIER",      "BLOCKS",          "BYTES",
					      "HIT TOKENS", "<COPIED DOWN TO", "<BROUGHT UP TO" };
	const json_t *demoted = json_object_get(r, "demoted_blocks");
	const json_t *promoted = json_object_get(r, "promoted_blocks");
	struct ctl_table t;
	const char *name;
	json_t *tier;

	if (!ctl_u64(json_object_get(r, "host"), "n_slots") &&
	    !ctl_bool(json_object_get(r, "redis"), "configured"))
		return;
	ctl_table_init(&t, titles, 6);
	json_object_foreach((json_t *)(uintptr_t)json_object_get(r, "tiers"), name, tier)
	{
		const char *cells[] = {
			ctl_clean(name),
			ctl_brief(ctl_u64(tier, "blocks")),
			ctl_bytes(ctl_u64(tier, "bytes")),
			ctl_brief(ctl_u64(tier, "hit_tokens")),
			moves(json_object_get(demoted, name)),
			moves(json_object_get(promoted, name)),
		};

		ctl_table_row(&t, cells);
	}
	ctl_table_print(&t, "Tiers");
	if (ctl_u64(json_object_get(r, "host"), "n_slots")) {
		ctl_print_members("host slots",
				  json_object_get(json_object_get(r, "host"), "slots"));
		ctl_line("", "%s of them second copies",
			 ctl_count(ctl_u64(json_object_get(r, "host"), "second_copies")));
	}
}

static void show_redis(const json_t *redis)
{
	if (!ctl_bool(redis, "configured"))
		return;
	puts("\nRedis");
	ctl_line("state", "%s, breaker %s (opened %s times), %.0f us a command",
		 ctl_bool(redis, "connected") ? "connected" : "NOT connected",
		 ctl_str(redis, "breaker"), ctl_count(ctl_u64(redis, "breaker_opened")),
		 ctl_real(redis, "latency_us"));
	ctl_line("values", "%s stored, %s fetched, %s lost", ctl_count(ctl_u64(redis, "stored")),
		 ctl_count(ctl_u64(redis, "fetched")), ctl_count(ctl_u64(redis, "lost")));
	ctl_line("traffic", "%s out, %s in; %s commands in %s round trips",
		 ctl_bytes(ctl_u64(redis, "bytes_out")), ctl_bytes(ctl_u64(redis, "bytes_in")),
		 ctl_brief(ctl_u64(redis, "commands")), ctl_brief(ctl_u64(redis, "round_trips")));
	ctl_line("in flight", "%s commands, %s; %s wait", ctl_count(ctl_u64(redis, "in_flight")),
		 ctl_bytes(ctl_u64(redis, "in_flight_bytes")), ctl_count(ctl_u64(redis, "queued")));
	ctl_print_members("bad values", json_object_get(redis, "bad_values"));
	ctl_print_members("errors", json_object_get(redis, "errors"));
	if (ctl_str(redis, "policy")[0])
		ctl_line("evicts by", "%s", ctl_str(redis, "policy"));
}

enum ctl_exit ctl_show_status(const struct ctl *ctl, const json_t *r)
{
	const json_t *memory = json_object_get(r, "memory");
	const json_t *sockets = json_object_get(r, "sockets");
	const json_t *counters = json_object_get(r, "counters");
	uint64_t queried = ctl_u64(counters, "queried_tokens");

	printf("prefixd %s, pid %llu, up %s, device %s%s\n", ctl_str(r, "version"),
	       (unsigned long long)ctl_u64(r, "pid"), ctl_age(ctl_real(r, "uptime_s")),
	       ctl_str(r, "device"), ctl_bool(r, "draining") ? ", DRAINING" : "");
	ctl_line("boot", "%s", ctl_str(r, "boot"));
	ctl_line("sockets", "%s", ctl_str(sockets, "worker"));
	ctl_line("", "%s (admin)", ctl_str(sockets, "admin"));
	puts("");
	ctl_line("hits", "%s of tokens, %s of requests",
		 ctl_percent(ctl_real(r, "token_hit_ratio")),
		 ctl_percent(ctl_real(r, "request_hit_ratio")));
	ctl_line("tokens", "%s asked for: %s served, %s missed", ctl_count(queried),
		 ctl_count(queried - ctl_u64(counters, "miss_tokens")),
		 ctl_count(ctl_u64(counters, "miss_tokens")));
	ctl_line("blocks", "%s committed, %s duplicate, %s discarded",
		 ctl_count(ctl_u64(counters, "committed_blocks")),
		 ctl_count(ctl_u64(counters, "duplicate_blocks")),
		 ctl_count(ctl_u64(counters, "discarded_blocks")));
	ctl_line("requests", "%s answered, %s with an error, %s times busy",
		 ctl_count(ctl_u64(counters, "requests")), ctl_count(ctl_u64(counters, "errors")),
		 ctl_count(ctl_u64(counters, "reserve_busy")));
	ctl_print_members("slots", json_object_get(r, "slots"));
	show_slots(json_object_get(r, "slots"), ctl_u64(r, "n_slots"));
	show_removed(json_object_get(r, "removed_blocks"));
	ctl_line(
		"memory", "pool %s, index %s, block table %s, keys %s,",
		ctl_bytes(ctl_u64(memory, "pool_bytes")), ctl_bytes(ctl_u64(memory, "index_bytes")),
		ctl_bytes(ctl_u64(memory, "table_bytes")), ctl_bytes(ctl_u64(memory, "key_bytes")));
	ctl_line("", "generations %s, heap %s", ctl_bytes(ctl_u64(memory, "generation_bytes")),
		 ctl_bytes(ctl_u64(memory, "heap_bytes")));
	ctl_line("leases", "%s", ctl_count(ctl_u64(r, "leases")));
	show_tiers(r);
	show_redis(json_object_get(r, "redis"));
	show_groups(json_object_get(r, "groups"));
	show_namespaces(json_object_get(r, "namespaces"));
	show_sessions(json_object_get(r, "sessions"));
	return CTL_OK;
}

/* ---- stat ------------------------------------------------------------------------------------ */

void ctl_show_stat_title(void)
{
	printf("%8s %7s %8s %7s %6s %7s %5s %5s %4s %7s %6s\n", "requests", "lookups", "tokens/s",
	       "hits", "stored", "removed", "down", "up", "busy", "ready", "leases");
}

static uint64_t diff(const json_t *before, const json_t *now, const char *name)
{
	uint64_t a = before ? ctl_u64(before, name) : 0, b = ctl_u64(now, name);

	return b > a ? b - a : 0;
}

static uint64_t hits(const json_t *stat)
{
	const json_t *h = json_object_get(stat, "hit_tokens");
	const char *name;
	json_t *v;
	uint64_t n = 0;

	if (json_is_integer(h))
		return (uint64_t)json_integer_value(h);
	json_object_foreach((json_t *)(uintptr_t)h, name, v) n += (uint64_t)json_integer_value(v);
	return n;
}

void ctl_show_stat_line(const json_t *before, const json_t *now)
{
	double seconds = before ? ctl_real(now, "time_s") - ctl_real(before, "time_s") : 0;
	uint64_t queried = diff(before, now, "queried_tokens");
	uint64_t hit = hits(now) - (before && hits(before) <= hits(now) ? hits(before) : 0);
	uint64_t n_slots = ctl_u64(now, "n_slots");
	const json_t *slots = json_object_get(now, "slots");

	printf("%8s %7s %8s %7s %6s %7s %5s %5s %4s %7s %6s\n",
	       ctl_brief(diff(before, now, "requests")), ctl_brief(diff(before, now, "lookups")),
	       seconds > 0 ? ctl_brief((uint64_t)((double)queried / seconds)) : "-",
	       queried ? ctl_percent((double)hit / (double)queried) : "-",
	       ctl_brief(diff(before, now, "committed_blocks")),
	       ctl_brief(diff(before, now, "removed_blocks")),
	       ctl_brief(diff(before, now, "demoted_blocks")),
	       ctl_brief(diff(before, now, "promoted_blocks")),
	       ctl_brief(diff(before, now, "reserve_busy")),
	       n_slots ? ctl_percent((double)ctl_u64(slots, "ready") / (double)n_slots) : "-",
	       ctl_brief(ctl_u64(now, "leases")));
}
