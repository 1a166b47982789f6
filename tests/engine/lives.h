/*
 * lives.h - a session that goes through every operation, with a book of what each worker was told,
 * for tests that kill the daemon anywhere in it.
 *
 * The book says which slots each living process may still read or write, and what lies in them by
 * its own account; and which blocks a COMMIT was acknowledged for.  Every call does nothing while
 * the daemon is down, so that a script goes on to its end; what was asked and not answered is in no
 * book.
 */
#pragma once

#include "tests/engine/scene.h"

enum {
	LIVES_WORKERS = 4,
	LIVES_NS = 4, /* tokens, digests, another block size, digests with another tenant's salt */
	LIVES_PROMPTS = 12,
	LIVES_KEYS = 12,
	LIVES_LEASES = 32,
	LIVES_SLOTS = 24
};

/* A slot that a worker may use; `known`: what lies in it is block `i` of the lease's prompt. */
struct lives_slot {
	uint32_t slot, i;
	bool known;
};

struct lives_lease {
	bool used;
	uint32_t worker, ns, prompt;
	uint32_t n_keys, n_path; /* given, and found or committed */
	uint64_t id;             /* 0: of an earlier life, not a lease any more */
	struct lives_slot held[2 * LIVES_KEYS];
	uint32_t n_held;
	uint32_t reserved[LIVES_KEYS]; /* not committed, in order */
	uint32_t n_reserved;
};

struct lives {
	struct world w;
	struct world_config config;
	struct world_client *c[LIVES_WORKERS]; /* NULL: not connected */
	bool copies[LIVES_WORKERS];
	struct proto_open_rep ns[LIVES_NS]; /* as every worker has opened it */
	uint32_t tenant;                    /* what HELLO called the first that they may name */
	struct proto_id boot;               /* of the life that gave the leases of the book */
	struct lives_lease leases[LIVES_LEASES];
	/* leading blocks of each prompt that a COMMIT said are stored; less where they may go */
	uint32_t acked[LIVES_NS][LIVES_PROMPTS];
	uint32_t n_slots;
	uint64_t n_held_checked, n_acked_checked; /* what the audits looked at */
};

void lives_configure(struct lives *v, uint32_t n_slots, uint32_t n_host, bool redis);
void lives_begin(struct lives *v); /* workers connect and open all namespaces */
void lives_end(struct lives *v);
/* Connects a worker, or again after a restart, under the same process. */
void lives_connect(struct lives *v, uint32_t worker);

/* Keys [from, from + n) of a prompt. */
void lives_keys(const struct lives *v, uint32_t ns, uint32_t prompt, uint32_t from, uint32_t n,
		uint8_t *out);
/* The handle, or -1. */
int lives_match(struct lives *v, uint32_t worker, uint32_t ns, uint32_t prompt, uint32_t n,
		uint32_t flags);
void lives_reserve(struct lives *v, int h, uint32_t n);
void lives_commit(struct lives *v, int h, uint32_t n); /* writes the blocks first */
void lives_extend(struct lives *v, int h, uint32_t n, uint32_t flags);
void lives_release(struct lives *v, int h);
/* The whole of it, for the first n blocks; the lease is released. */
void lives_put(struct lives *v, uint32_t worker, uint32_t ns, uint32_t prompt, uint32_t n);
void lives_prefetch(struct lives *v, uint32_t worker, uint32_t ns, uint32_t prompt, uint32_t n);
void lives_wait(struct lives *v, int h, uint32_t deadline_us);
/* The process ends: nobody reads what it held. */
void lives_exit(struct lives *v, uint32_t worker);
void lives_eof(struct lives *v, uint32_t worker);
/* QUIESCED for the life that the book is of; the worker uses nothing of it any more. */
void lives_quiesced(struct lives *v, uint32_t worker);
/* Blocks of this namespace may be gone. */
void lives_forget(struct lives *v, uint32_t ns);
void lives_idle(struct lives *v, uint64_t ns); /* time passes; what moves arrives */

/* Every operation there is, in an order that meets most states; at its end leases are held. */
void lives_script(struct lives *v);

/* The next life: connected again, what the book says is looked at. */
void lives_restart(struct lives *v);
/*
 * Acknowledged blocks are found, with their bytes; what workers may read is as it was; whoever asks
 * for all slots of a pool gets none of theirs.
 */
void lives_audit(struct lives *v);
/* Everybody says QUIESCED or exits; then every slot can be had. */
void lives_audit_end(struct lives *v);
