/*
 * carrier_code.h - the carrier's part about coded pools (cold.h): blocks are coded on their way
 * down and decoded on their way up, by the thread `copy`.
 *
 *     slots that the CPU reaches     slot ---- encode, seal ----> host slot or buffer     at once
 *                                    slot <--- check, decode ---- host slot or buffer
 *     of a device that codes         slot -- encoded by it, seal --> host slot or buffer
 *                                    slot <-- check, decoded by it - host slot or buffer
 *     others, through scratch memory slot --copy--> scratch --encode--> host slot or buffer
 *                                    slot <--copy-- scratch <--decode-- host slot or buffer
 *
 * What it guarantees.  A call does a few MiB of work at most, those first that somebody waits for,
 * so that other copies come in between.  What goes down is compared with the checksum that is
 * known of it, as it is on the device, and answered with that; what comes up from a host slot is
 * compared with its seal before it is decoded, and answered `lossy`.  A block that cannot be coded
 * is answered RAW on its way to a host slot, and lies as it is (`coded` is false) in a buffer.
 *
 * Which way.  A device that codes is left to it, as half of the bytes cross its bus then and no
 * processor touches them, but for three cases that go through scratch memory: a block whose XXH3 is
 * known has to be compared with that; one that cannot be coded has to be fetched as it is; and a
 * device may have no room for its side of the work.  A block that the device coded is not answered
 * with a checksum: nobody but the device has seen it.
 *
 * What it relies on.  The same as carrier.c, which owns it: one thread, one user of the device.
 */
#pragma once

#include "daemon/carrier.h"

#include <stdatomic.h>

struct prefixd_coder;

#define PREFIXD_NO_SCRATCH UINT32_MAX

/*
 * A block out of slots that no CPU reaches, or into them: a job for each rank, that copies it to or
 * from scratch memory, or has the device code it.
 */
struct prefixd_coding {
	struct gpu_job jobs[PREFIXD_RANKS_MAX];
	struct prefixd_coder *coder;
	struct prefixd_carrier_message *m; /* NULL: the place is free */
	uint32_t scratch;                  /* of the pool; NO_SCRATCH: the device codes */
	uint32_t n_jobs, n_sent, n_ended;
	int status; /* of the first that failed; 0 */
};

#define PREFIXD_CODINGS 16u

struct prefixd_coder {
	void (*answer)(void *ctx, struct prefixd_carrier_message *m, int error);
	void *ctx;
	struct radix_list urgent, others; /* messages that wait */
	struct prefixd_coding codings[PREFIXD_CODINGS];
	uint32_t n_flying;
	bool full; /* a device takes no more for now */
	/* read by anyone */
	_Atomic uint64_t coded, decoded, uncodable, saved_bytes;
	_Atomic uint64_t by_device; /* of those that were coded or decoded */
};

void prefixd_coder_init(struct prefixd_coder *k,
			void (*answer)(void *ctx, struct prefixd_carrier_message *m, int error),
			void *ctx);
/* The copy is one that is coded or decoded. */
bool prefixd_coder_takes(const struct prefixd_carrier_message *m);
void prefixd_coder_add(struct prefixd_coder *k, struct prefixd_carrier_message *m);
/* Some of what waits.  Return: whether anything was done. */
bool prefixd_coder_some(struct prefixd_coder *k);
/* What was handed over in part: the rest of it never will be. */
void prefixd_coder_give_up(struct prefixd_coder *k);
