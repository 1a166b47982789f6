/*
 * kept.h - what a daemon that was killed left with its holder, for a test that damages it.
 *
 * Between two lives this process is the daemon that the holder speaks to: it takes the descriptors,
 * maps them, changes what it likes, and lets go.  The holder still has them then.
 */
#pragma once

#include "tests/e2e/harness.h"

#include "daemon/engine_ledger.h"
#include "daemon/keep.h"
#include "daemon/region.h"
#include "radix/head.h"
#include "radix/table.h"

struct kept {
	struct prefixd_keep *keep;
	struct prefixd_region ledger_file, table_file;
	struct prefixd_ledger ledger;
	/* Of the first group. */
	char prefix[16]; /* "g0" */
	struct radix_ground table;
	uint8_t *pool; /* NULL: it is no file */
	uint64_t *generations;
	size_t pool_len, generations_len;
	uint64_t stride;
};

/* Writes the naming key that the daemon has to be started with (--naming-key-file): a ledger of
 * another one is not read. */
void kept_naming_key(const struct e2e_daemon *d, char *ret_path, size_t len);
/* Fails the test when anything is not there.  The daemon must be dead. */
void kept_open(struct kept *k, const struct e2e_daemon *d, uint32_t block_bytes);
/* Puts a file of these bytes in place of what is kept under prefix.`part`, or "ledger" (NULL). */
void kept_replace(struct kept *k, const char *part, const void *bytes, size_t len);
void kept_close(struct kept *k);

/* The entry of the READY block with this key; fails the test when there is not exactly one. */
struct radix_entry *kept_entry(const struct kept *k, const void *key, uint32_t key_len);
void *kept_key(const struct kept *k, const struct radix_entry *e);
