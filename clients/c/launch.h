/*
 * launch.h - blocks moved within a GPU, on somebody's stream: by a kernel, or piece by piece.
 *
 * What it guarantees.  A launch reads its arguments from tables that nobody touches until it is
 * through: it writes a word behind itself, and a table is used again, or given back, when its word
 * is there.  Nothing is allocated by a move.
 *
 * What it relies on.  The context of the stream is current in every call, the same in all.
 */
#pragma once

#include "clients/c/device.h"

struct pfx_mover;

/* Blocks `ids` of a layout (gpu/kernels.h): of each piece the address in block 0. */
struct pfx_side {
	const uint64_t *pieces;
	uint64_t stride;
	const uint32_t *ids;
};

/* Return: 0; -ENOMEM; -EIO with a sentence in `why`. */
int pfx_mover_new(struct pfx_device *d, uint32_t n_pieces, uint32_t piece_bytes,
		  struct pfx_mover **ret_mover, char *why, size_t why_len);
/* Until the deadline it waits for what is under way; what is not through then stays for good. */
void pfx_mover_free(struct pfx_mover *m, uint64_t deadline_ns);
/* In a child of the client's process, which has no driver. */
void pfx_mover_forget(struct pfx_mover *m);
/* NULL: it is a kernel that moves; else why not. */
const char *pfx_mover_why(const struct pfx_mover *m);
/*
 * Puts n moves into the stream.  Return: 0; -ETIMEDOUT: there was no table for them in time; -EIO,
 * -ENOMEM with a sentence in `why`; after those some may be in it.
 */
int pfx_mover_move(struct pfx_mover *m, void *stream, const struct pfx_side *from,
		   const struct pfx_side *to, uint32_t n, uint64_t deadline_ns, char *why,
		   size_t why_len);
