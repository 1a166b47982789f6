/*
 * restore.c - see restore.h.
 */
#include "daemon/restore.h"

#include "daemon/budget.h"
#include "daemon/keep.h"
#include "daemon/log.h"
#include "daemon/server_internal.h"
#include "radix/crash.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEDGER     "ledger"
#define HEAD_BYTES UINT64_C(65536) /* of a table, where its head is */

/* Descriptors of one group. */
struct found {
	uint32_t group;
	int fds[PREFIXD_N_MEMORIES];
};

struct prefixd_restore {
	struct prefixd_keep *keep;
	struct prefixd_region ledger;
	struct prefixd_ledger_info info;
	struct found *found;
	uint32_t n_found;
	enum prefixd_ledger_content content;
	bool pending; /* the engine was told, and has not come to the end of it */
	uint64_t ns;
	/* CLOCK_MONOTONIC, of the parts of a start */
	uint64_t begun_ns, keeper_ns, ledger_ns, engine_ns;
};

/* ---- what the keeper has --------------------------------------------------------------------- */

static int take_part(struct prefixd_keep *keep, uint32_t group, enum prefixd_memory_part part)
{
	char name[PREFIXD_KEEP_NAME_MAX];

	return prefixd_keep_take(keep, prefixd_memory_name(group, part, name, sizeof(name)));
}

/* Return: 0; -ENOMEM. */
static int found_add(struct prefixd_restore *r, const struct found *f)
{
	struct found *v = reallocarray(r->found, r->n_found + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	r->found = v;
	v[r->n_found++] = *f;
	return 0;
}

/* Group numbers are small, and may have gaps: asked for until all that was found is taken. */
static int found_take(struct prefixd_restore *r, uint32_t max_groups)
{
	uint32_t left = prefixd_keep_n_found(r->keep);

	for (uint32_t g = 0; g < max_groups && left > 0; g++) {
		struct found f = { .group = g };
		uint32_t n = 0;

		for (int i = 0; i < PREFIXD_N_MEMORIES; i++) {
			f.fds[i] = take_part(r->keep, g, (enum prefixd_memory_part)i);
			n += f.fds[i] >= 0;
		}
		if (n > 0 && found_add(r, &f) < 0)
			return -ENOMEM;
		left -= radix_min_u32(n, left);
	}
	return 0;
}

static void found_close(struct found *f)
{
	for (int i = 0; i < PREFIXD_N_MEMORIES; i++) {
		if (f->fds[i] >= 0)
			close(f->fds[i]);
		f->fds[i] = -1;
	}
}

void prefixd_restore_drop(struct prefixd_server *s, uint32_t group)
{
	char name[PREFIXD_KEEP_NAME_MAX];

	if (s->restore)
		prefixd_keep_drop(s->restore->keep, prefixd_memory_name(group, PREFIXD_N_MEMORIES,
									name, sizeof(name)));
}

/* What was found and is not wanted. */
static void found_drop(struct prefixd_server *s)
{
	struct prefixd_restore *r = s->restore;

	for (uint32_t i = 0; i < r->n_found; i++) {
		bool any = false;

		for (int k = 0; k < PREFIXD_N_MEMORIES; k++)
			any |= r->found[i].fds[k] >= 0;
		if (!any)
			continue;
		found_close(&r->found[i]);
		prefixd_restore_drop(s, r->found[i].group);
	}
	free(r->found);
	r->found = NULL;
	r->n_found = 0;
	prefixd_keep_drop_rest(r->keep);
}

/* The ledger says how much it is: a descriptor of a GPU's memory does not. */
static void kept_sum(const struct prefixd_restore *r, struct prefixd_kept *sum)
{
	if (r->content != PREFIXD_LEDGER_STATE)
		return;
	for (uint32_t i = 0; i < r->n_found; i++) {
		const int *fds = r->found[i].fds;
		struct prefixd_ledger_group g;
		uint64_t block_bytes;
		uint32_t ranks = 0;

		while (ranks < PREFIXD_RANKS_MAX && fds[prefixd_memory_slab(ranks, 0)] >= 0)
			ranks++;
		if (!prefixd_ledger_group(&r->ledger.store, r->found[i].group, &g))
			continue; /* it will not be taken up */
		if (fds[PREFIXD_MEMORY_HOST] >= 0)
			sum->host_bytes += g.n_host * g.host_slot_bytes;
		if (ranks == 0)
			continue; /* its device was lost: its slots are made anew */
		block_bytes = ranks * g.slot_bytes;
		sum->n_pools++;
		sum->pool_bytes += g.n_slots * block_bytes;
	}
}

/* ---- start ----------------------------------------------------------------------------------- */

static int keeper_start(struct prefixd_server *s, char *why, size_t why_len)
{
	const struct prefixd_options *o = s->options;
	struct prefixd_keep_config config = {
		.keeper = (enum prefixd_keeper)o->keep,
		.admin_socket = o->admin_socket,
		.program = strcmp(o->holder_program, "auto") == 0 ? NULL : o->holder_program,
		.timeout_ns = o->hold_timeout,
		.version = PREFIXD_VERSION_TEXT,
		.base = s->base,
		.handed = s->handed,
	};
	int r = prefixd_keep_start(&s->restore->keep, &config, why, why_len);

	if (r == 0 || config.keeper != PREFIXD_KEEPER_AUTO)
		return r;
	prefixd_warn("nothing is kept beyond this process: %s", why);
	config.keeper = PREFIXD_KEEPER_NONE;
	return prefixd_keep_start(&s->restore->keep, &config, why, why_len);
}

static int ledger_map(struct prefixd_server *s, int fd, char *why, size_t why_len)
{
	struct prefixd_restore *r = s->restore;
	const unsigned flags = s->options->lock_memory ? PREFIXD_REGION_LOCK : 0u;
	int ret = prefixd_region_init(&r->ledger, "prefixd-ledger", fd, prefixd_ledger_len(),
				      flags);

	if (ret == 0)
		return 0;
	if (fd >= 0)
		close(fd);
	snprintf(why, why_len, fd >= 0 ? "the kept ledger cannot be mapped: %s" : "no ledger: %s",
		 strerror(-ret));
	return ret;
}

/* All of it, with a new ledger. */
static int begin_anew(struct prefixd_server *s, char *why, size_t why_len)
{
	struct prefixd_restore *r = s->restore;

	prefixd_region_deinit(&r->ledger);
	prefixd_keep_drop(r->keep, LEDGER);
	found_drop(s);
	r->content = PREFIXD_LEDGER_EMPTY;
	return ledger_map(s, -1, why, why_len);
}

/* The version of a block table; 0: nothing that can be told of. */
static uint32_t table_version(int fd, enum radix_store_content *ret_content)
{
	struct radix_store_info info;
	struct radix_store store = { 0 };
	struct stat st;
	void *p;

	*ret_content = RADIX_STORE_EMPTY;
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_size <= 0)
		return 0;
	store.len = store.committed = radix_min_u64((uint64_t)st.st_size, HEAD_BYTES);
	p = mmap(NULL, store.len, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return 0; /* whoever maps it all will say why */
	store.base = p;
	*ret_content = radix_store_look(&store, NULL, &info);
	(void)munmap(p, store.len);
	return info.version;
}

/*
 * Another program's tables are not this one's to lose.  (Damaged ones are: what hangs on them is
 * lost, and the rest goes on.)  Return: 0, -EPERM.
 */
static int tables_judge(const struct prefixd_restore *r, const char *way_out, char *why,
			size_t why_len)
{
	for (uint32_t i = 0; i < r->n_found; i++) {
		enum radix_store_content content;
		uint32_t version = table_version(r->found[i].fds[PREFIXD_MEMORY_TABLE], &content);

		if (content != RADIX_STORE_VERSION)
			continue;
		snprintf(why, why_len,
			 "the memory that was kept has a block table of version %u, which this "
			 "program does not read: start the one that made it, or give that memory "
			 "up: %s",
			 version, way_out);
		return -EPERM;
	}
	return 0;
}

/* What an operator can type to begin without it. */
static const char *way_out(const struct prefixd_server *s, char *out, size_t out_len)
{
	if (prefixd_keep_state(s->restore->keep) == PREFIXD_KEEPER_SYSTEMD)
		snprintf(out, out_len, "stop the service");
	else
		snprintf(out, out_len, "`prefixctl --admin-socket %s holder release`",
			 s->options->admin_socket);
	return out;
}

/* Return: 0; -EPERM with a sentence in `why`: it is not understood, or does not fit. */
static int ledger_judge(struct prefixd_server *s, const uint8_t key[32], char *why, size_t why_len)
{
	struct prefixd_restore *r = s->restore;
	char said[PREFIXD_WHY_LEN] = "", out[160];

	r->content = prefixd_ledger_look(&r->ledger.store, key, &r->info, said, sizeof(said));
	if (r->content == PREFIXD_LEDGER_EMPTY) {
		found_drop(s); /* memory that no ledger tells of */
		return 0;
	}
	if (r->content != PREFIXD_LEDGER_STATE) {
		snprintf(why, why_len, "%.300s; or give that memory up: %s", said,
			 way_out(s, out, sizeof(out)));
		return -EPERM;
	}
	if (r->info.attempts < PREFIXD_LEDGER_ATTEMPTS)
		return 0;
	prefixd_error("%u starts in a row have not come to an end with what an earlier life left; "
		      "GIVING IT UP: all blocks and leases of it are gone",
		      r->info.attempts);
	return begin_anew(s, why, why_len);
}

int prefixd_restore_start(struct prefixd_server *s, struct prefixd_engine_config *config, char *why,
			  size_t why_len)
{
	struct prefixd_restore *r = calloc(1, sizeof(*r));
	struct prefixd_kept kept = { .on_gpu = s->pools.ops->kind == GPU_KIND_CUDA };
	int ret = -ENOMEM;
	char out[160];

	snprintf(why, why_len, "out of memory");
	if (!r)
		return ret;
	s->restore = r;
	r->begun_ns = prefixd_now_ns();
	ret = keeper_start(s, why, why_len);
	r->keeper_ns = prefixd_now_ns();
	if (ret < 0)
		return ret;
	if (prefixd_keep_state(r->keep) == PREFIXD_KEEPER_NONE) /* asked for, or no other way */
		return prefixd_budget_check(s->options, &kept, why, why_len);
	ret = found_take(r, config->limits.max_groups);
	if (ret == 0)
		ret = ledger_map(s, prefixd_keep_take(r->keep, LEDGER), why, why_len);
	if (ret == 0)
		ret = ledger_judge(s, config->naming_key, why, why_len);
	if (ret < 0)
		return ret;
	kept_sum(r, &kept);
	kept.way_out = way_out(s, out, sizeof(out));
	ret = tables_judge(r, kept.way_out, why, why_len);
	if (ret == 0)
		ret = prefixd_budget_check(s->options, &kept, why, why_len);
	if (ret < 0)
		return ret;
	if (r->content == PREFIXD_LEDGER_STATE)
		prefixd_ledger_begin(&r->ledger.store);
	else
		ret = prefixd_keep_put(r->keep, LEDGER, r->ledger.fd);
	if (ret < 0) /* as good as no keeper; pools find out for themselves */
		prefixd_warn("the ledger is not kept: %s; blocks end with this daemon",
			     strerror(-ret));
	radix_crash_point("restore_begun");
	r->ledger_ns = prefixd_now_ns();
	config->ledger = &r->ledger.store;
	config->verify = (enum prefixd_verify_policy)s->options->recover_verify;
	return 0;
}

void prefixd_restore_go(struct prefixd_server *s)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_RESTORE };
	struct prefixd_restore *r = s->restore;

	if (!r || r->content != PREFIXD_LEDGER_STATE)
		return;
	r->pending = true;
	r->engine_ns = prefixd_now_ns(); /* until the step is over: it may be all */
	prefixd_server_step(s, &event);  /* there is no session yet: all numbers are free */
	r->engine_ns = prefixd_now_ns();
	found_drop(s);
	radix_crash_point("restore_told");
	prefixd_restore_look(s);
}

void prefixd_restore_take(struct prefixd_server *s, uint32_t group, int ret_fds[PREFIXD_N_MEMORIES])
{
	struct prefixd_restore *r = s->restore;

	for (int i = 0; i < PREFIXD_N_MEMORIES; i++)
		ret_fds[i] = -1;
	for (uint32_t i = 0; r && i < r->n_found; i++) {
		if (r->found[i].group != group)
			continue;
		for (int k = 0; k < PREFIXD_N_MEMORIES; k++) {
			ret_fds[k] = r->found[i].fds[k];
			r->found[i].fds[k] = -1; /* the caller's */
		}
	}
}

bool prefixd_restore_devices(const struct prefixd_server *s, uint32_t group,
			     struct proto_id ret_ids[PREFIXD_RANKS_MAX])
{
	struct prefixd_ledger_group g;

	if (!s->restore || !prefixd_ledger_group(&s->restore->ledger.store, group, &g))
		return false;
	memcpy(ret_ids, g.device_ids, sizeof(g.device_ids));
	return g.on_devices;
}

struct prefixd_keep *prefixd_restore_keep(const struct prefixd_server *s)
{
	return s->restore && s->restore->ledger.store.len > 0 ? s->restore->keep : NULL;
}

/* ---- what came back -------------------------------------------------------------------------- */

static const char *damage_text(enum radix_damage d)
{
	static const char *const texts[] = {
		[RADIX_DAMAGE_CHECK] = "their entries do not agree with their checks",
		[RADIX_DAMAGE_ROOT] = "what they belong to was not restored",
		[RADIX_DAMAGE_KEY] = "their keys lie where none can be",
		[RADIX_DAMAGE_COPY] = "no copy of them is left",
		[RADIX_DAMAGE_PARENT] = "the block before them cannot be told",
		[RADIX_DAMAGE_ORPHAN] = "the block before them was lost",
		[RADIX_DAMAGE_ROOM] = "only Redis has them, and index-blocks is too small",
	};

	return texts[d];
}

static double ms(uint64_t from_ns, uint64_t to_ns)
{
	return (double)(to_ns - from_ns) / 1e6;
}

/* Beside the engine's line, which has the sums: how long it took, and what was damaged how. */
static void restored_log(const struct prefixd_server *s, const struct prefixd_restored *got)
{
	const struct prefixd_restore *r = s->restore;
	const struct radix_recovered *ix = &got->index;

	prefixd_info(
		"restored in %.3f s from the start on, from %s (ms: before the keeper %.1f, he "
		"%.1f, ledger %.1f, engine %.1f, pools and their indexes %.1f)",
		(double)r->ns / 1e9, prefixd_keeper_to_string(prefixd_keep_state(r->keep)),
		ms(s->started_ns, r->begun_ns), ms(r->begun_ns, r->keeper_ns),
		ms(r->keeper_ns, r->ledger_ns), ms(r->ledger_ns, r->engine_ns),
		ms(r->engine_ns, s->started_ns + r->ns));
	for (int d = 0; d < RADIX_N_DAMAGES; d++)
		if (ix->damaged[d] > 0)
			prefixd_warn("restore: %llu blocks were lost: %s",
				     (unsigned long long)ix->damaged[d],
				     damage_text((enum radix_damage)d));
	if (ix->n_copies_lost > 0 || ix->n_sums_lost > 0)
		prefixd_warn("restore: %llu copies of blocks and %llu checksums were damaged",
			     (unsigned long long)ix->n_copies_lost,
			     (unsigned long long)ix->n_sums_lost);
}

void prefixd_restore_look(struct prefixd_server *s)
{
	struct prefixd_restore *r = s->restore;
	struct prefixd_restored got;

	if (!r || !r->pending)
		return;
	prefixd_engine_restored(s->engine, &got);
	if (!got.done)
		return;
	r->pending = false;
	r->ns = prefixd_now_ns() - s->started_ns;
	radix_crash_point("restore_done");
	prefixd_ledger_settled(&r->ledger.store);
	restored_log(s, &got);
}

void prefixd_restore_info(const struct prefixd_server *s, struct prefixd_restore_info *ret)
{
	const struct prefixd_restore *r = s->restore;
	enum prefixd_keeper state = r ? prefixd_keep_state(r->keep) : PREFIXD_KEEPER_NONE;

	*ret = (struct prefixd_restore_info){
		.keeper = state,
		.lost = state == PREFIXD_KEEPER_NONE && s->options->keep != PREFIXD_KEEPER_NONE,
		.state = r && r->content == PREFIXD_LEDGER_STATE,
		.ns = r ? r->ns : 0,
	};
	if (s->engine)
		prefixd_engine_restored(s->engine, &ret->restored);
}

/* ---- for another program --------------------------------------------------------------------- */

uint32_t prefixd_restore_fds(const struct prefixd_server *s, int *ret_fds, uint32_t cap)
{
	uint32_t n = 0;

	if (!prefixd_restore_keep(s))
		return 0;
	ret_fds[n++] = s->restore->ledger.fd;
	for (uint32_t i = 0; i < s->pools.n && n < cap; i++)
		if (s->pools.v[i] && s->pools.v[i]->table.store.len > 0)
			ret_fds[n++] = s->pools.v[i]->table.fd;
	return n;
}

/* Return: 0; -EPERM. */
static int ledger_check(const struct prefixd_options *o, int fd, char *why, size_t why_len)
{
	struct prefixd_ledger_info info;
	struct radix_store store = { 0 };
	enum prefixd_ledger_content content;
	uint8_t key[32];
	struct stat st;
	void *p;
	int r = prefixd_naming_key(o, key, why, why_len);

	if (r < 0 || fstat(fd, &st) < 0 || st.st_size <= 0)
		return r; /* nothing was written yet */
	store.len = store.committed = (uint64_t)st.st_size;
	p = mmap(NULL, store.len, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return 0;
	store.base = p;
	content = prefixd_ledger_look(&store, key, &info, why, why_len);
	explicit_bzero(key, sizeof(key));
	(void)munmap(p, store.len);
	return content == PREFIXD_LEDGER_EMPTY || content == PREFIXD_LEDGER_STATE ? 0 : -EPERM;
}

/* Return: 0, -EPERM. */
static int device_check(const struct prefixd_options *o, char *why, size_t why_len)
{
	struct prefixd_pools pools;
	int r = prefixd_pools_init(&pools, o->values[PREFIXD_OPTION_device].text, why, why_len);

	if (r < 0)
		return -EPERM;
	prefixd_pools_deinit(&pools);
	return 0;
}

int prefixd_restore_check(const struct prefixd_options *o, const char *fds, char *why,
			  size_t why_len)
{
	enum radix_store_content content;
	char *end;
	int fd;

	for (bool first = true; *fds; first = false, fds = end) {
		fd = (int)strtol(fds, &end, 10);
		if (end == fds)
			break;
		if (first && ledger_check(o, fd, why, why_len) < 0)
			return -EPERM;
		if (!first && table_version(fd, &content) && content == RADIX_STORE_VERSION) {
			snprintf(why, why_len, "the block tables are of another version");
			return -EPERM;
		}
	}
	return device_check(o, why, why_len);
}

/* ---- end ------------------------------------------------------------------------------------- */

void prefixd_restore_stop(struct prefixd_server *s, bool release)
{
	struct prefixd_restore *r = s->restore;

	if (!r)
		return;
	for (uint32_t i = 0; i < r->n_found; i++)
		found_close(&r->found[i]);
	free(r->found);
	prefixd_region_deinit(&r->ledger);
	r->keep = prefixd_keep_stop(r->keep, release);
	free(r);
	s->restore = NULL;
}
