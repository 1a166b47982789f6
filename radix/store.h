/*
 * store.h - memory that outlives the process, as the index sees it.
 *
 * One flat piece of memory that reads as zero where nothing was written yet.  Whoever gives it
 * keeps it (a file without a name, in the hands of a process that does nothing else); after a
 * crash the same bytes come back, at another address: nothing in it is a pointer.
 *
 * A process that is killed stops between two instructions, and all that it had stored is there. So
 * only the order of stores counts, as the compiler leaves it: radix_publish() is the store that
 * makes what was written before it count, radix_retract() the one after which it does not any more
 * and whose successors may overwrite it.  Neither costs an instruction more than the store.
 */
#pragma once

#include "radix/base.h"

struct radix_store {
	void *base;         /* aligned to 64 bytes */
	uint64_t len;       /* that many bytes may be asked for */
	uint64_t committed; /* that many can be read and written now; never less */
	/* Raises it to `len` at least.  Return: 0, -ENOMEM.  NULL: all is there. */
	int (*commit)(struct radix_store *s, uint64_t len);
	void *ctx;
};

/* Everything that was stored before is there when this is. */
#define radix_publish(at, value) __atomic_store_n((at), (value), __ATOMIC_RELEASE)

/* This is there before anything that is stored later. */
#define radix_retract(at, value)                                   \
	do {                                                       \
		__atomic_store_n((at), (value), __ATOMIC_RELAXED); \
		__atomic_signal_fence(__ATOMIC_SEQ_CST);           \
	} while (0)
