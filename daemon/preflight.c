/*
 * preflight.c - see preflight.h.
 */
#include "daemon/preflight.h"

#include "daemon/pools.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
#define STATE_BYTES (UINT64_C(64) << 10) /* key, epochs, their copies while they are replaced */

/* ---- what the machine says ------------------------------------------------------------------- */

/* Return: length of what was read, ended with a 0; 0 when there is nothing. */
static size_t file_text(const char *path, char *out, size_t out_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	out[0] = '\0';
	if (fd < 0)
		return 0;
	n = read(fd, out, out_len - 1);
	(void)close(fd); /* it was only read */
	if (n <= 0)
		return 0;
	out[n] = '\0';
	return (size_t)n;
}

static uint64_t number_in(const char *path)
{
	char text[64];

	if (file_text(path, text, sizeof(text)) == 0 || text[0] < '0' || text[0] > '9')
		return PREFIXD_NO_LIMIT; /* "max" too */
	return strtoull(text, NULL, 10);
}

/* The number behind `name` in a file of lines "name number"; `none` where there is none. */
static uint64_t number_behind(const char *path, const char *name, uint64_t none)
{
	char text[8192];
	const char *at;

	(void)file_text(path, text, sizeof(text)); /* empty: the name is not in it */
	at = strstr(text, name);
	return at ? strtoull(at + strlen(name), NULL, 10) : none;
}

static uint64_t meminfo(const char *name, uint64_t unit)
{
	uint64_t n = number_behind("/proc/meminfo", name, PREFIXD_NO_LIMIT);

	return n == PREFIXD_NO_LIMIT ? n : n * unit;
}

/* Our group of the unified hierarchy, "/a/b"; empty where there is none. */
static void cgroup_path(char *out, size_t out_len)
{
	char text[1024], *line, *end;

	out[0] = '\0';
	if (file_text("/proc/self/cgroup", text, sizeof(text)) == 0)
		return;
	line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
	if (!line)
		return;
	line = strstr(line, "0::") + 3;
	end = strchr(line, '\n');
	if (end)
		*end = '\0';
	if (strlen(line) < out_len && strcmp(line, "/") != 0)
		memcpy(out, line, strlen(line) + 1);
}

/* What the tightest of our group and those above it leaves; its path into `path`. */
static uint64_t cgroup_left(char *path, size_t path_len)
{
	uint64_t least = PREFIXD_NO_LIMIT;
	char group[512], name[600], *cut;

	path[0] = '\0';
	cgroup_path(group, sizeof(group));
	for (;;) {
		uint64_t max, used, cache, left;

		snprintf(name, sizeof(name), CGROUP_ROOT "%s/memory.max", group);
		max = number_in(name);
		snprintf(name, sizeof(name), CGROUP_ROOT "%s/memory.current", group);
		used = number_in(name);
		/* Cached files count as used there, and go when they are in the way. */
		snprintf(name, sizeof(name), CGROUP_ROOT "%s/memory.stat", group);
		cache = number_behind(name, "\ninactive_file ", 0) +
			number_behind(name, "\nactive_file ", 0);
		if (used != PREFIXD_NO_LIMIT)
			used -= radix_min_u64(used, cache);
		left = max == PREFIXD_NO_LIMIT || used == PREFIXD_NO_LIMIT
			       ? max
			       : max - radix_min_u64(max, used);
		if (left < least) {
			least = left;
			snprintf(path, path_len, "%.100s", group);
		}
		cut = strrchr(group, '/');
		if (!cut)
			return least;
		*cut = '\0';
	}
}

uint64_t prefixd_memory_available(void)
{
	char path[128];

	return radix_min_u64(meminfo("MemAvailable:", 1024), cgroup_left(path, sizeof(path)));
}

/* Whether we may lock more than RLIMIT_MEMLOCK says. */
static bool may_lock(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };

	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	return data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

static uint64_t limit_of(__rlimit_resource_t what)
{
	struct rlimit rl;

	if (getrlimit(what, &rl) < 0 || rl.rlim_cur == RLIM_INFINITY)
		return PREFIXD_NO_LIMIT;
	return rl.rlim_cur;
}

void prefixd_facts_gather(struct prefixd_facts *ret, const char *state_dir)
{
	char text[64];
	struct statvfs fs;

	*ret = (struct prefixd_facts){
		.available_bytes = meminfo("MemAvailable:", 1024),
		.address_bytes = limit_of(RLIMIT_AS),
		.lock_bytes = may_lock() ? PREFIXD_NO_LIMIT : limit_of(RLIMIT_MEMLOCK),
		.huge_free_bytes = meminfo("HugePages_Free:", UINT64_C(2) << 20),
		.state_free_bytes = PREFIXD_NO_LIMIT,
		.state_writable = access(state_dir, W_OK | X_OK) == 0,
	};
	ret->cgroup_bytes = cgroup_left(ret->cgroup, sizeof(ret->cgroup));
	(void)file_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text));
	ret->huge_transparent = strstr(text, "[madvise]") || strstr(text, "[always]");
	if (statvfs(state_dir, &fs) == 0)
		ret->state_free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

struct sizes {
	char want[32], have[32], pools[32], host[32], index[32];
};

static const char *print(uint64_t bytes, char out[32])
{
	return prefixd_bytes_print(bytes, out, 32);
}

static void sizes_print(struct sizes *z, const struct prefixd_wants *w, uint64_t want,
			uint64_t have)
{
	print(want, z->want);
	print(have, z->have);
	print(w->pool_bytes, z->pools);
	print(w->host_bytes, z->host);
	print(w->index_bytes, z->index);
}

static enum prefixd_verdict memory_judge(const struct prefixd_facts *f,
					 const struct prefixd_wants *w, char *text, size_t len)
{
	uint64_t blocks = w->pool_bytes + w->host_bytes, all = blocks + w->index_bytes;
	struct sizes z;

	if (all > f->cgroup_bytes) {
		sizes_print(&z, w, all, f->cgroup_bytes);
		snprintf(
			text, len,
			"the memory limit of the control group leaves %s (" CGROUP_ROOT
			"%s/memory.max), but %s are asked for: pools %s, host tier %s, index about "
			"%s; raise the limit (systemd: MemoryMax=) or lower pool-bytes or "
			"host-bytes",
			z.have, f->cgroup, z.want, z.pools, z.host, z.index);
		return PREFIXD_STAY;
	}
	if (all > f->available_bytes) {
		sizes_print(&z, w, all, f->available_bytes);
		snprintf(text, len,
			 "the machine can give %s of memory now (MemAvailable), but %s are asked "
			 "for: pools %s, host tier %s, index about %s; lower pool-bytes or "
			 "host-bytes",
			 z.have, z.want, z.pools, z.host, z.index);
		return PREFIXD_STAY;
	}
	if (all > f->address_bytes) {
		sizes_print(&z, w, all, f->address_bytes);
		snprintf(
			text, len,
			"the limit of address space is %s (ulimit -v, RLIMIT_AS), but %s are asked "
			"for: pools %s, host tier %s, index about %s; raise the limit (systemd: "
			"LimitAS=) or lower pool-bytes or host-bytes",
			z.have, z.want, z.pools, z.host, z.index);
		return PREFIXD_STAY;
	}
	if (w->lock && blocks > f->lock_bytes) {
		sizes_print(&z, w, blocks, f->lock_bytes);
		snprintf(text, len,
			 "lock-memory: the limit of locked memory is %s (ulimit -l, "
			 "RLIMIT_MEMLOCK), but pools (%s) and host tier (%s) are %s; raise the "
			 "limit (systemd: LimitMEMLOCK=infinity), give CAP_IPC_LOCK, or set "
			 "lock-memory=no",
			 z.have, z.pools, z.host, z.want);
		return PREFIXD_STAY;
	}
	return PREFIXD_FLY;
}

static enum prefixd_verdict state_judge(const struct prefixd_facts *f,
					const struct prefixd_wants *w, char *text, size_t len)
{
	char have[32], want[32];

	if (!f->state_writable) {
		snprintf(text, len,
			 "the folder %s is not there or may not be written by this user: sockets, "
			 "key and epochs go there; make it (systemd: RuntimeDirectory=prefixd), or "
			 "set socket and admin-socket",
			 w->state_dir);
		return PREFIXD_STAY;
	}
	if (f->state_free_bytes < STATE_BYTES) {
		snprintf(text, len,
			 "the file system of %s has %s free, and key and epochs need %s; make room "
			 "there or set admin-socket and naming-key-file",
			 w->state_dir, print(f->state_free_bytes, have), print(STATE_BYTES, want));
		return PREFIXD_STAY;
	}
	return PREFIXD_FLY;
}

enum prefixd_verdict prefixd_preflight(const struct prefixd_facts *facts,
				       const struct prefixd_wants *wants, char *text,
				       size_t text_len)
{
	uint64_t blocks = wants->pool_bytes + wants->host_bytes;

	text[0] = '\0';
	if (state_judge(facts, wants, text, text_len) == PREFIXD_STAY ||
	    memory_judge(facts, wants, text, text_len) == PREFIXD_STAY)
		return PREFIXD_STAY;
	if (wants->huge && blocks >= UINT64_C(2) << 20 && facts->huge_free_bytes < blocks &&
	    facts->huge_free_bytes != PREFIXD_NO_LIMIT) {
		char have[32];

		snprintf(text, text_len,
			 "pools will lie in 4 KiB pages: %s of huge pages are set aside; for huge "
			 "ones: sysctl vm.nr_hugepages=%llu%s",
			 print(facts->huge_free_bytes, have),
			 (unsigned long long)((wants->pool_bytes + (2u << 20) - 1) >> 21),
			 facts->huge_transparent ? ""
						 : ", and for the host tier echo madvise > "
						   "/sys/kernel/mm/transparent_hugepage/enabled");
	}
	return PREFIXD_FLY;
}
