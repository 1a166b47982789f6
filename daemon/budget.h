/*
 * budget.h - what the settings take of the machine's memory, before any of it is taken.
 *
 * One place for the sums, so that the check at the start, the log and --print-config agree.
 */
#pragma once

#include "daemon/options.h"
#include "daemon/preflight.h"
#include "daemon/restore.h"

/* Payload of all pools; 0: no limit in bytes. */
uint64_t prefixd_budget_pools(const struct prefixd_options *o);
/* Of all host tiers; 0: none, or no limit in bytes. */
uint64_t prefixd_budget_host(const struct prefixd_options *o);
/* Of all desks; 0: no limit in bytes.  They are taken with pool-write staged only. */
uint64_t prefixd_budget_desks(const struct prefixd_options *o);
/*
 * What the index takes for n blocks that it knows, keys of 64 bytes included: an estimate on the
 * safe side (README.md has the measurement).
 */
uint64_t prefixd_budget_index(uint64_t n_blocks);
/* What has to be there at the start.  `state_dir` is kept by pointer. */
void prefixd_budget_wants(const struct prefixd_options *o, const char *state_dir,
			  struct prefixd_wants *ret);
/* "8.0 GiB in all, as many blocks as fit" */
void prefixd_budget_pools_print(const struct prefixd_options *o, char *out, size_t out_len);
/* Can the folder of the sockets be written to?  Return: 0; -EPERM with `why`. */
radix_nodiscard int prefixd_budget_folder_check(const struct prefixd_options *o, char *why,
						size_t why_len);
/*
 * Is there enough of everything?  What an earlier life left is there already, and must fit the
 * limits.  Return: 0, with a hint in the log; -EPERM with `why`.
 */
radix_nodiscard int prefixd_budget_check(const struct prefixd_options *o,
					 const struct prefixd_kept *kept, char *why,
					 size_t why_len);
