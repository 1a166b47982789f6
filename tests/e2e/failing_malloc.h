/*
 * failing_malloc.h - what the test and the preloaded allocator share, in a mapped file.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

struct failing {
	atomic_int armed;
	atomic_long countdown; /* the call that makes it 0 fails; below 0: none any more */
	atomic_long calls;     /* while it was armed */
	atomic_long failed;
};
