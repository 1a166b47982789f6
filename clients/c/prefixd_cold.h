/*
 * prefixd_cold.h - libprefixd: blocks that a codec has changed.
 *
 * A namespace may have its blocks coded below the pool, where they take about half as much.  What
 * comes up again is not bit for bit what was committed; how far it may be away is said in
 * proto/README.md, rule 104.  Nothing is declared here: all of it is in prefixd.h.
 *
 *     pfx_namespace_options.cold_codec    "none", "int8" or "fp8"; NULL: as the daemon was told to.
 *                                         Part of the namespace: who codes and who does not share
 *                                         no block.  PFX_BAD_NAMESPACE where it cannot be done
 *     pfx_namespace_options.exact_layers  layers that stay exact all the same: "0-1,31"
 *     pfx_namespace_info.cold_bytes       of a block below the pool; block_bytes: nothing is coded
 *     pfx_match_result.n_lossy            of the blocks that the result tells of, in all tiers and
 *                                         with that of tail_slot: those that were changed, or would
 *                                         be on their way up; 0: every byte is as committed
 *     pfx_match_result.first_lossy        path position of the first of them
 *     PFX_MATCH_EXACT                     to pfx_match, and it counts for the lease: end before the
 *                                         first of them.  pfx_reserve starts there, and what is
 *                                         committed takes its place unless somebody reads it
 */
#ifndef PREFIXD_COLD_H
#define PREFIXD_COLD_H

#include <stddef.h>

#endif
