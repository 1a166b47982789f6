/*
 * region.h - a radix_store in a file without a name: what block tables and the ledger lie in.
 *
 * A memfd of this process or of an earlier life.  Addresses for all that may be asked for are
 * reserved at once, so that nothing moves; the file grows as it is asked for, and each page is
 * there before anybody is told so: memory that the machine cannot give is an error then, not a
 * signal later.
 *
 * What it guarantees.  Left out of core dumps; a child does not inherit the mapping.  The file only
 * grows.
 */
#pragma once

#include "radix/store.h"

enum {
	PREFIXD_REGION_LOCK = 1, /* mlock: never to swap */
	PREFIXD_REGION_HUGE = 2, /* huge pages where the kernel grants them for the asking */
};

struct prefixd_region {
	struct radix_store store; /* ctx is the region; it must not move */
	int fd;
	unsigned flags;
};

/*
 * Makes a new file, empty, or maps one of an earlier life (fd >= 0, the region's from then on).
 * `len`: what may be asked for; an old file that is longer is mapped whole.  Return: 0; -ENOMEM;
 * -EINVAL: `fd` is no such file; -EPERM: RLIMIT_MEMLOCK; another negative errno of the making.
 * Nothing is left behind, but for `fd`, which stays the caller's.
 */
radix_nodiscard int prefixd_region_init(struct prefixd_region *r, const char *name, int fd,
					uint64_t len, unsigned flags);
void prefixd_region_deinit(struct prefixd_region *r); /* idempotent, accepts a zeroed one */
