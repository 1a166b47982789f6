/*
 * preflight.h - does this machine have what the settings ask for?  Asked before anything is made.
 *
 *     facts (what the machine says)  +  wants (what the settings ask for)  ->  a verdict
 *
 * What it guarantees.  A limit that is too small is found at the start, with a sentence that names
 * the limit, what was asked for, and what to do; not by a signal or the kernel's killer under load.
 * The judgement is a pure function, so that every limit can be tried without such a machine.
 *
 * What it relies on.  /proc and /sys; what they do not tell counts as no limit.
 */
#pragma once

#include "radix/base.h"

#define PREFIXD_NO_LIMIT UINT64_MAX

struct prefixd_facts {
	uint64_t available_bytes; /* MemAvailable */
	uint64_t cgroup_bytes;    /* memory.max less what is used, of the tightest group above us */
	char cgroup[128];         /* its path below /sys/fs/cgroup; empty: the root */
	uint64_t address_bytes;   /* RLIMIT_AS */
	uint64_t lock_bytes;      /* RLIMIT_MEMLOCK; none for those that may ignore it */
	uint64_t huge_free_bytes; /* of 2 MiB pages set aside */
	bool huge_transparent;    /* anonymous memory may have them for the asking */
	uint64_t state_free_bytes; /* of the file system where sockets, key and epochs lie */
	bool state_writable;
};

struct prefixd_wants {
	uint64_t pool_bytes;  /* payload of all pools; 0: not known before they are opened */
	uint64_t host_bytes;  /* of all host slots; likewise */
	uint64_t index_bytes; /* what the index takes beside them, estimated */
	bool lock;            /* pages must stay in memory */
	bool huge;
	const char *state_dir;
};

enum prefixd_verdict {
	PREFIXD_FLY,  /* `text` may hold a hint; empty: none */
	PREFIXD_STAY, /* `text` says why not */
};

/* How much the machine could give now without swapping, cgroups included; PREFIXD_NO_LIMIT. */
uint64_t prefixd_memory_available(void);

/* What the machine says; `state_dir` is the folder that will be written to. */
void prefixd_facts_gather(struct prefixd_facts *ret, const char *state_dir);
enum prefixd_verdict prefixd_preflight(const struct prefixd_facts *facts,
				       const struct prefixd_wants *wants, char *text,
				       size_t text_len);
