/*
 * carrier.h - the thread that carries blocks: copies between device, host tier and buffers, sums
 * them, and makes the memory of pools.
 *
 *     loop --- COPY, VERIFY, POOL_NEW, POOL_FREE ---> `copy`: gpu submit and reap, XXH3-128, mmap
 *     loop <-- the same messages, answered ---------- `copy`
 *
 * What it guarantees.  Every request is answered once, in no particular order: copies that somebody
 * waits for go first, and what is verified goes in small steps between all others.  While it runs,
 * nobody else uses the device.  A block whose bytes are not the ones that are known of it is
 * answered CORRUPT.  Blocks that lie side by side at both ends travel as one; those of coded pools
 * are coded one by one (carrier_code.h).  A block of several ranks has arrived when the pieces of
 * all have, and has failed if one of them failed.  An operation that failed is counted with its
 * error and fails alone.
 *
 * When a device is lost, all of them are: copies fail with -ENODEV, and WATCH is answered.  They
 * are opened again where POOL_NEW or POOL_AGAIN allow it, at most once a second.
 *
 * What it relies on.  Slots of a COPY are used by nobody else until it is answered.  The pools that
 * messages name stay in place; a pool is not freed before the copies on it were answered.  The sim
 * device's clock is moved on by the time that really passes, by this thread alone.
 */
#pragma once

#include "daemon/helper.h"
#include "daemon/pools.h"

struct prefixd_carrier;

#define PREFIXD_CARRIER_OPS(X)                                                   \
	X(COPY, "copy")             /* a block from one place to another */      \
	X(POOL_NEW, "pool_new")     /* make the memory of a group */             \
	X(POOL_FREE, "pool_free")   /* give it back */                           \
	X(VERIFY, "verify")         /* compare blocks with their checksums */    \
	X(TAKE, "take")             /* a block from a desk into the pool */      \
	X(DESK_NEW, "desk_new")     /* make the memory of a desk */              \
	X(DESK_FREE, "desk_free")   /* give it back */                           \
	X(POOL_AGAIN, "pool_again") /* new slots, after the devices were lost */ \
	X(WATCH, "watch")           /* answered when a device is lost */

enum prefixd_carrier_op {
#define X(sym, text) PREFIXD_CARRIER_##sym,
	PREFIXD_CARRIER_OPS(X)
#undef X
	PREFIXD_CARRIER_N_OPS
};

/* Where one end of a copy lies. */
enum prefixd_place {
	PREFIXD_PLACE_DEVICE,
	PREFIXD_PLACE_HOST,
	PREFIXD_PLACE_STAGE,
	PREFIXD_PLACE_DESK,
};

/* A request, and its answer in the same memory: from malloc, for prefixd_carrier_message_free(). */
struct prefixd_carrier_message {
	struct prefixd_message message; /* .kind: enum prefixd_carrier_op */
	uint32_t id;                    /* the sender's own; so is ctx */
	void *ctx;
	/* COPY, TAKE; POOL_FREE and DESK_NEW have the pool too */
	struct prefixd_pool *pool;
	enum prefixd_place from, to;
	uint32_t src, dst;
	/* TAKE, whose source is a place of it; DESK_FREE; answered to DESK_NEW: NULL, with a
	   sentence in `why`.  What to make is in the plan's group, n_slots and slot_bytes. */
	struct prefixd_desk_memory *desk;
	bool urgent;           /* somebody waits for it */
	uint8_t checksum_kind; /* what is known already, as in struct prefixd_carry */
	uint8_t checksum[16];  /* answered: of the block, if summed */
	/* of a coded pool: */
	bool coded;          /* what lies in the buffer is; answered of what went into one */
	uint32_t entry;      /* whose block it is, for the seal in a host slot */
	uint64_t generation; /* likewise */
	/* VERIFY: blocks of the pool, in the memory behind the message */
	const struct radix_sum *sums;
	uint32_t n_sums;    /* at most PREFIXD_VERIFY_MAX */
	uint32_t n_looked;  /* the carrier's */
	uint64_t bad, done; /* answered, as in struct prefixd_event */
	/* POOL_NEW; answered: the pool above, or NULL with a sentence.  POOL_AGAIN has the pool. */
	struct prefixd_pool_plan plan;
	char why[320];                    /* of WATCH: what was lost by what */
	int kept;                         /* negative errno: the keeper does not have it */
	struct prefixd_pool_slots *slots; /* of POOL_AGAIN: behind the message; answered */
	/* Both: the sender knows that the devices of this life are lost, and uses them no more;
	   they may be closed and opened again.  0: they may not.  Answered: what there is now. */
	uint32_t life;
	bool tried;                 /* of -ENODEV: `why` is what the last try to open them said */
	struct gpu_devices devices; /* none: they could not be opened */
	/* answers */
	enum prefixd_move_result result; /* of COPY */
	bool summed;
	bool lossy;  /* it came up decoded */
	int error;   /* negative errno of what failed, 0 */
	uint64_t ns; /* from the moment it was handed to the device to its end */
	/* the carrier's while it has the message */
	uint64_t begun_ns;
	bool by_cpu; /* the device could not code it */
	struct prefixd_carrier *carrier;
};

void prefixd_carrier_message_free(struct prefixd_carrier_message *m); /* not its pool */

struct prefixd_carrier_config {
	const struct gpu_devices *devices; /* its user until prefixd_carrier_stop() */
	const char *device;       /* opens them again, kept by pointer; NULL: nothing does */
	uint32_t ring;            /* 0: the default */
	uint64_t run_bytes;       /* longest run of blocks copied as one; 0: 4 MiB */
	uint64_t in_flight_bytes; /* handed to the device at a time; 0: 32 MiB */
};

/* Why a copy failed. */
#define PREFIXD_COPY_ERRORS(X)                                                 \
	X(IO, "copy")         /* this one, or those that travelled with it */  \
	X(DEVICE, "device")   /* the device is lost, and all copies with it */ \
	X(MEMORY, "memory")   /* the driver had none */                        \
	X(INVALID, "invalid") /* the driver will not do it */                  \
	X(CORRUPT, "corrupt") /* what arrived is not what was written */       \
	X(OTHER, "other")

enum prefixd_copy_error {
#define X(sym, text) PREFIXD_COPY_ERROR_##sym,
	PREFIXD_COPY_ERRORS(X)
#undef X
	PREFIXD_COPY_N_ERRORS
};

/* One kind of operation so far. */
struct prefixd_carrier_op_stats {
	uint64_t done, failed;
	int last_error;         /* negative errno; 0: none failed yet */
	uint64_t last_error_ns; /* CLOCK_MONOTONIC */
};

/* Kept by the thread with relaxed atomics, read by anyone. */
struct prefixd_carrier_stats {
	struct prefixd_carrier_op_stats ops[PREFIXD_CARRIER_N_OPS];
	uint64_t jobs;               /* handed to a device: runs, not blocks, for each rank */
	uint64_t bytes;              /* payload copied */
	uint64_t corrupt;            /* blocks whose sum was wrong */
	uint64_t in_flight, waiting; /* blocks: at the device, before it */
	uint64_t errors[PREFIXD_COPY_N_ERRORS];
	uint64_t losses, opened;  /* times that devices were lost, and were opened again */
	bool lost;                /* a device is gone */
	uint64_t coded, decoded;  /* blocks of coded pools, on their way down and up */
	uint64_t uncodable;       /* of those down, that no codec takes */
	uint64_t saved_bytes;     /* what the coded ones are shorter than blocks */
	uint64_t coded_by_device; /* of those coded and decoded, by a GPU's kernels */
	bool making;              /* a pool is being made: the heart may beat seldom */
};

/* Return: 0; negative errno, nothing is left behind. */
radix_nodiscard int prefixd_carrier_start(struct prefixd_carrier **ret_c,
					  const struct prefixd_carrier_config *config);
/*
 * Ends the thread.  Copies may still be at the device: its close() ends them, after which
 * prefixd_carrier_free() may come, which frees the pools that messages still had.  Idempotent;
 * accepts NULL.
 */
void prefixd_carrier_stop(struct prefixd_carrier *c);
struct prefixd_carrier *prefixd_carrier_free(struct prefixd_carrier *c); /* accepts NULL */
/* On the loop's thread: hands a request over; the oldest answer, NULL: none. */
void prefixd_carrier_send(struct prefixd_carrier *c, struct prefixd_carrier_message *m);
struct prefixd_carrier_message *prefixd_carrier_receive(struct prefixd_carrier *c);
/* After prefixd_carrier_stop(): the devices as they are now, which are the caller's again. */
struct gpu_devices prefixd_carrier_devices(const struct prefixd_carrier *c);
/* For its descriptor, its heart and its restart.  NULL once stopped. */
struct prefixd_helper *prefixd_carrier_helper(const struct prefixd_carrier *c);
void prefixd_carrier_stats(const struct prefixd_carrier *c, struct prefixd_carrier_stats *ret);
const char *prefixd_copy_error_to_string(enum prefixd_copy_error e);
const char *prefixd_carrier_op_to_string(enum prefixd_carrier_op op);
