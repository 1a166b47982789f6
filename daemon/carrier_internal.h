/*
 * carrier_internal.h - what the files of the copy thread share.
 *
 *     carrier.c      the thread: its turns, what it is sent, its pools, its answers
 *     carrier_run.c  copies: side by side as one run, handed to the devices, reaped, summed
 *     carrier_sum.c  checksums
 *     carrier_code.c copies of coded pools: carrier_code.h
 *     carrier_device.c  the devices: lost, and opened again
 *
 * All of it is the thread's, but for what prefixd_carrier_stats() reads.
 */
#pragma once

#include "daemon/carrier.h"
#include "daemon/carrier_code.h"

#include <stdatomic.h>

#define CARRIER_RUNS 64u

/*
 * Blocks side by side on their way, as one job for each rank.  Of several ranks the pieces do not
 * lie side by side at both ends: there a run is one block.
 */
struct prefixd_carrier_run {
	struct gpu_job jobs[PREFIXD_RANKS_MAX];
	struct prefixd_carrier *carrier;
	struct radix_list blocks; /* messages, in the order of their slots */
	uint32_t n;
	uint32_t n_jobs, n_sent, n_ended;
	int status; /* of the first that failed; 0 */
	bool used;
};

struct prefixd_carrier_op_counts {
	_Atomic uint64_t done, failed, last_error_ns;
	_Atomic int last_error;
};

struct prefixd_carrier {
	struct prefixd_carrier_config config;
	struct prefixd_helper *helper; /* the loop's */
	/* the thread's */
	struct gpu_devices devices;
	uint32_t life; /* how often they were opened */
	struct prefixd_carrier_message
		*watch;                /* to be answered when one is lost; NULL: nobody asks */
	uint64_t looked_ns, opened_ns; /* when they were last asked, and opened, or not */
	char why[320];                 /* the last answer to opening them */
	struct prefixd_helper *own;    /* the same: it runs before the loop knows of it */
	struct prefixd_carrier_run runs[CARRIER_RUNS];
	struct prefixd_carrier_run *partly; /* the device was full before all its jobs were sent */
	struct radix_list urgent, others, pools; /* messages that wait */
	struct radix_list arrived; /* out of desks, and not summed for want of a buffer */
	struct radix_list verifies;
	struct prefixd_coder coder;
	struct radix_list left; /* messages whose pools go when the devices are closed */
	struct gpu_job look; /* fetches a piece for the first of them; the device's while looking */
	uint32_t look_rank;
	bool looking;
	uint64_t flight_bytes;
	uint32_t n_runs;
	uint64_t clock_ns; /* up to when the simulated device's time has passed */
	uint64_t sim_ns;   /* and what its clock shows */
	bool full;         /* a device takes no more for now */
	bool closed;       /* the thread is over: nobody is there to be answered */
	/* counters */
	struct prefixd_carrier_op_counts ops[PREFIXD_CARRIER_N_OPS];
	_Atomic uint64_t jobs, bytes, corrupt, in_flight, waiting, losses, opened;
	_Atomic uint64_t errors[PREFIXD_COPY_N_ERRORS];
	_Atomic bool lost, making;
};

static inline struct prefixd_carrier_message *prefixd_carrier_message_of(struct radix_list *link)
{
	return radix_container_of(link, struct prefixd_carrier_message, message.link);
}

/* One writer: no need for an atomic addition. */
static inline void prefixd_carrier_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

uint64_t prefixd_carrier_clock(void); /* CLOCK_MONOTONIC, ns */
/* error: 0 or a negative errno. */
void prefixd_carrier_answer(struct prefixd_carrier *c, struct prefixd_carrier_message *m,
			    int error);

/* carrier_sum.c */
/* Where the pieces of a block lie, rank by rank, as they are on the device. */
struct prefixd_pieces {
	uint8_t *v[PREFIXD_RANKS_MAX];
};

/* Of a block outside of the device, where they follow each other. */
struct prefixd_pieces prefixd_pieces_at(const struct prefixd_pool *pool, void *block);
/* kind: PROTO_CHECKSUM_XXH3_128 or PROTO_CHECKSUM_KERNEL. */
void prefixd_carrier_sum(const struct prefixd_pool *pool, const struct prefixd_pieces *pieces,
			 uint8_t kind, uint8_t ret_sum[16]);
/*
 * Whether the block is the one that the message knows, if it knows one; then m->checksum is its
 * XXH3-128 (`summed`), unless the kernels' kind was known and the other is not wanted (`always`).
 */
bool prefixd_carrier_sum_take(struct prefixd_carrier_message *m,
			      const struct prefixd_pieces *pieces, bool always);

/* carrier.c */
void prefixd_carrier_verify_end(struct prefixd_carrier *c, struct prefixd_carrier_message *m,
				int error);

/* carrier_device.c */
/* A message that names slots which are not there any more: answered.  False: it does not. */
bool prefixd_carrier_stale(struct prefixd_carrier *c, struct prefixd_carrier_message *m);
/* Are the devices well?  Who asked to be told is told when one is not. */
void prefixd_carrier_look(struct prefixd_carrier *c, uint64_t now);
/* Opens lost devices again where `m` allows it.  Return: 0, or -ENODEV with its sentence. */
int prefixd_carrier_reopen(struct prefixd_carrier *c, struct prefixd_carrier_message *m);

/* carrier_run.c */
void prefixd_carrier_refuse(struct prefixd_carrier *c, struct prefixd_carrier_message *m,
			    int error);
/* Hands over the next run.  False: nothing waits, or there is no room. */
bool prefixd_carrier_submit(struct prefixd_carrier *c);
/* Blocks out of desks that no CPU reaches: fetched to be summed, as far as there are buffers. */
void prefixd_carrier_sum_arrived(struct prefixd_carrier *c);
/* What was handed over in part: the rest of it never will be. */
void prefixd_carrier_give_up(struct prefixd_carrier *c);
