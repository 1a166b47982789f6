/*
 * budget.c - see budget.h.
 */
#include "daemon/budget.h"

#include "daemon/log.h"
#include "daemon/pools.h"
#include "daemon/server_internal.h"

#include <stdio.h>

#define DEFAULT_POOL_BYTES (1ull << 30)
#define ENTRY_BYTES        256u /* of the index, for one block */

uint64_t prefixd_budget_pools(const struct prefixd_options *o)
{
	if (o->pool_bytes != PREFIXD_AUTO)
		return o->pool_bytes;
	return o->pool_blocks == PREFIXD_AUTO ? DEFAULT_POOL_BYTES : 0;
}

uint64_t prefixd_budget_host(const struct prefixd_options *o)
{
	return o->host_bytes == PREFIXD_AUTO || o->host_blocks == 0 ? 0 : o->host_bytes;
}

uint64_t prefixd_budget_desks(const struct prefixd_options *o)
{
	if (o->write_bytes != PREFIXD_AUTO)
		return o->write_bytes;
	return prefixd_budget_pools(o) / 4;
}

uint64_t prefixd_budget_index(uint64_t n_blocks)
{
	return n_blocks * ENTRY_BYTES;
}

/* Slots are counted with the pools that have them, whose sizes nobody knows yet. */
void prefixd_budget_wants(const struct prefixd_options *o, const char *state_dir,
			  struct prefixd_wants *ret)
{
	*ret = (struct prefixd_wants){
		.pool_bytes = prefixd_budget_pools(o),
		.host_bytes = prefixd_budget_host(o),
		.index_bytes = prefixd_budget_index(prefixd_options_index_blocks(o)),
		.lock = o->lock_memory != 0,
		.huge = o->huge_pages == 0,
		.state_dir = state_dir,
	};
}

void prefixd_budget_pools_print(const struct prefixd_options *o, char *out, size_t out_len)
{
	uint64_t budget = prefixd_budget_pools(o);
	char bytes[32];

	prefixd_bytes_print(budget, bytes, sizeof(bytes));
	if (o->pool_blocks == PREFIXD_AUTO)
		snprintf(out, out_len, "%s in all, as many blocks as fit", bytes);
	else
		snprintf(out, out_len, "%llu blocks for each size of block, %s%s",
			 (unsigned long long)o->pool_blocks, budget ? bytes : "no limit in bytes",
			 budget ? " in all" : "");
}

static void host_print(const struct prefixd_options *o, char *out, size_t out_len)
{
	uint64_t budget = prefixd_budget_host(o);
	char bytes[32];

	prefixd_bytes_print(budget, bytes, sizeof(bytes));
	if (prefixd_options_host_blocks(o) == 0 && budget == 0)
		snprintf(out, out_len, "none");
	else if (prefixd_options_host_blocks(o) == 0)
		snprintf(out, out_len, "%s in all, as many blocks as fit", bytes);
	else
		snprintf(out, out_len, "%u blocks for each size of block, %s%s",
			 prefixd_options_host_blocks(o), budget ? bytes : "no limit in bytes",
			 budget ? " in all" : "");
}

static void desks_print(const struct prefixd_options *o, char *out, size_t out_len)
{
	uint64_t budget = prefixd_budget_desks(o);
	char bytes[32];

	prefixd_bytes_print(budget, bytes, sizeof(bytes));
	snprintf(out, out_len, "%llu blocks for each session and size of block, %s%s",
		 (unsigned long long)o->write_blocks, budget ? bytes : "no limit in bytes",
		 budget ? " in all" : "");
}

static void total_print(const struct prefixd_options *o, char *out, size_t out_len)
{
	uint64_t pools = prefixd_budget_pools(o), host = prefixd_budget_host(o);
	char bytes[32];

	if (pools == 0 || (host == 0 && prefixd_options_host_blocks(o) > 0))
		snprintf(out, out_len, "no limit in bytes: set pool-bytes%s",
			 prefixd_options_host_blocks(o) > 0 ? " and host-bytes" : "");
	else
		snprintf(out, out_len, "%s",
			 prefixd_bytes_print(pools + host, bytes, sizeof(bytes)));
}

void prefixd_server_memory_table(const struct prefixd_options *o,
				 void (*line)(void *ctx, const char *text), void *ctx)
{
	char text[256], part[160], bytes[32], entry[32];
	uint32_t n = prefixd_options_index_blocks(o);

	prefixd_budget_pools_print(o, part, sizeof(part));
	snprintf(text, sizeof(text), "memory: pools: %s", part);
	line(ctx, text);
	if (prefixd_options_staged(o)) {
		desks_print(o, part, sizeof(part));
		snprintf(text, sizeof(text), "memory: to write in: %s", part);
		line(ctx, text);
	}
	host_print(o, part, sizeof(part));
	snprintf(text, sizeof(text), "memory: host tier: %s", part);
	line(ctx, text);
	total_print(o, part, sizeof(part));
	snprintf(text, sizeof(text), "memory: blocks in all: %s", part);
	line(ctx, text);
	snprintf(text, sizeof(text),
		 "memory: index: about %s for each block that it knows; %u in Redis alone: at most "
		 "%s",
		 prefixd_bytes_print(prefixd_budget_index(1), entry, sizeof(entry)), n,
		 prefixd_bytes_print(prefixd_budget_index(n), bytes, sizeof(bytes)));
	line(ctx, text);
	snprintf(text, sizeof(text),
		 "memory: sessions: at most %llu, %s each to read, %s unsent each",
		 (unsigned long long)o->max_sessions,
		 prefixd_bytes_print(PREFIXD_CONN_IN, bytes, sizeof(bytes)), "1.0 MiB");
	line(ctx, text);
	line(ctx, "memory: a pool, its host tier, its generations and its index are taken when a "
		  "worker opens the first namespace of that block size");
}

/* Return: 0; -EPERM: more of it was kept than `limit` allows (0: no limit). */
static int limit_check(const char *what, const char *option, uint64_t have, uint64_t limit,
		       const struct prefixd_kept *kept, char *why, size_t why_len)
{
	char a[32], b[32];

	if (limit == 0 || have <= limit)
		return 0;
	snprintf(why, why_len,
		 "an earlier life left %s of %s, and %s is %s: raise it to %llu at least, or give "
		 "that memory up: %s",
		 prefixd_bytes_print(have, a, sizeof(a)), what, option,
		 prefixd_bytes_print(limit, b, sizeof(b)), (unsigned long long)have, kept->way_out);
	return -EPERM;
}

static uint64_t less(uint64_t bytes, uint64_t there)
{
	return bytes - radix_min_u64(bytes, there);
}

static void folder_of(const struct prefixd_options *o, char *dir, size_t len)
{
	char *slash;

	snprintf(dir, len, "%s", o->admin_socket);
	slash = strrchr(dir, '/');
	if (slash)
		slash[slash == dir] = '\0';
	else
		snprintf(dir, len, ".");
}

/* Return: 0; -EPERM. */
static int judge(const struct prefixd_wants *wants, char *why, size_t why_len)
{
	struct prefixd_facts facts;

	prefixd_facts_gather(&facts, wants->state_dir);
	if (prefixd_preflight(&facts, wants, why, why_len) == PREFIXD_STAY)
		return -EPERM;
	return 0;
}

int prefixd_budget_folder_check(const struct prefixd_options *o, char *why, size_t why_len)
{
	char dir[4096];
	const struct prefixd_wants wants = { .state_dir = dir };

	folder_of(o, dir, sizeof(dir));
	return judge(&wants, why, why_len);
}

int prefixd_budget_check(const struct prefixd_options *o, const struct prefixd_kept *kept,
			 char *why, size_t why_len)
{
	struct prefixd_wants wants;
	char dir[4096];
	int r;

	r = limit_check("pools", "pool-bytes", kept->pool_bytes, prefixd_budget_pools(o), kept, why,
			why_len);
	if (r == 0)
		r = limit_check("host tiers", "host-bytes", kept->host_bytes,
				prefixd_budget_host(o), kept, why, why_len);
	if (r < 0)
		return r;
	folder_of(o, dir, sizeof(dir));
	prefixd_budget_wants(o, dir, &wants);
	/* Memory that exists is not asked for again, and a GPU's is none of this machine's. */
	wants.pool_bytes = kept->on_gpu ? 0 : less(wants.pool_bytes, kept->pool_bytes);
	wants.host_bytes = less(wants.host_bytes, kept->host_bytes);
	if (prefixd_options_staged(o) && !kept->on_gpu) /* what workers write in is slots too */
		wants.pool_bytes += prefixd_budget_desks(o);
	r = judge(&wants, why, why_len);
	if (r == 0 && why[0])
		prefixd_info("hint: %s", why);
	return r;
}
