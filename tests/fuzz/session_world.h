/*
 * session_world.h - the world around the engine that fuzz_session.c plays with, and what must hold.
 *
 * What must hold after each step: prefixd_engine_verify() is 0; a frame got exactly one reply, of
 * its operation and sequence, or waits for a pool, or for another rank, and gets one with that; an
 * event ends one wait; a match is exactly as long as the model says, and its slots are those of the
 * model; nothing that an active lease holds is gone; slots that are granted hold no block and are
 * nobody else's; a settled lease adds up; no request waits for a word that its session has not.
 * When the world ends all memory has come back.  Whatever does not hold aborts.
 *
 * Of a pool group in which a namespace is read through a window, or shared by ranks, the model
 * knows nothing, since blocks go there that others lie behind, or count when several sessions have
 * spoken.  What is checked is that slots are the group's and hold blocks, that those before a
 * window are told as none, and that a rank's reply comes, if later.  When a pool was lost and has
 * memory again, nobody is served who has not opened his namespace anew.
 *
 * What is in a frame decides what is expected of it, not what its maker meant: its bytes may have
 * been changed.  A body is handed over in memory of exactly its size, so that ASan sees a read
 * behind it.
 */
#pragma once

#include "daemon/engine.h"
#include "proto/codec.h"
#include "tests/fuzz/session_model.h"

#include <stdlib.h>

enum {
	N_SESSIONS = 4,
	N_GROUPS = 2,
	N_NS = 64,
	N_ROOTS = 64,
	N_LEASES = 16,
	KEYS_MAX = 64, /* of one lease */
	POOL_BLOCKS = 20,
	N_WAITING = 512, /* more frames than an input has */
	N_WORDS = 512
};

#define must(x)                  \
	do {                     \
		if (!(x))        \
			abort(); \
	} while (0)

struct session {
	bool used; /* opened, and FORGET has not come */
	bool open; /* neither side has closed the socket */
	bool ready;
	struct prefixd_peer peer;
	struct proto_id instance;
	uint64_t seq;
	uint16_t version;      /* agreed by HELLO; 0: not said yet */
	uint32_t n_words;      /* that OPEN gave it */
	bool opened[N_NS];     /* by this session, and no new memory came for its pool since */
	uint32_t window[N_NS]; /* of each namespace, as this session reads it */
	bool rank;             /* of a namespace that ranks share */
	/* frames without a reply yet: OPENs that wait for a pool, and what ranks wait for */
	struct waiting {
		uint64_t seq;
		uint32_t ns; /* of a MATCH */
		uint16_t op;
	} waiting[N_WAITING];
	uint32_t n_waiting;
	uint32_t n_replies; /* to the frame under way */
	struct proto_header h;
	uint8_t body[65536];
};

struct ns {
	uint32_t id, group, key_len, block_tokens;
	bool digest;
	bool striped;
};

struct root {
	uint32_t ns, tenant, salt_len;
	uint8_t salt[PROTO_SALT_MAX];
};

struct lease {
	bool used;
	bool lost; /* part of a refused COMMIT: what it holds is not known any more */
	uint64_t id;
	uint32_t session, root;
	const struct ns *ns;
	uint8_t keys[KEYS_MAX * MODEL_KEY];
	uint32_t n_keys, n_path;
	int at; /* slot of the last block of its path, or MODEL_NONE */
	uint32_t reserved[MODEL_SLOTS], n_reserved;
	uint64_t n_tokens;
	uint64_t wait_seq; /* of the WAIT that was answered "waiting" last; 0: none */
	uint64_t chain;    /* where the digests of its maker stand */
};

struct session_world {
	struct prefixd_engine *engine;
	uint32_t ready_due; /* by session: its frame of events is still on its way */
	struct radix_alloc alloc;
	struct prefixd_engine_config config;
	uint64_t now_ns, live_bytes;
	struct session sessions[N_SESSIONS];
	struct model models[N_GROUPS];
	const struct radix_index *index[N_GROUPS];
	uint64_t generations[N_GROUPS][MODEL_SLOTS];
	bool wanted[N_GROUPS];
	uint32_t wanted_slots[N_GROUPS];
	struct ns ns[N_NS];
	uint32_t n_ns;
	struct root roots[N_ROOTS];
	uint32_t n_roots;
	struct lease leases[N_LEASES];
	bool exited;
	uint32_t newest;        /* the lease that was begun last */
	bool full;              /* a table of this world has no room: it ends here */
	bool lossy[N_GROUPS];   /* blocks may be there that the model does not know */
	bool unknown[N_GROUPS]; /* the model knows nothing of it, see above */
	bool made[N_GROUPS];    /* its memory was there once */
	bool newest_speaks;     /* some session speaks version 3 */
};

void session_world_init(struct session_world *w, uint8_t choices);
void session_world_deinit(struct session_world *w);
/* One event, its actions, and the checks. */
void session_world_step(struct session_world *w, struct prefixd_event *event);
/* The group's device is lost, if it has memory. */
void session_world_lose(struct session_world *w, uint32_t group);
/* It is about to have memory again. */
void session_world_renewed(struct session_world *w, uint32_t group);
/* One frame of a session, and what its reply must be. */
void session_world_send(struct session_world *w, uint32_t number, uint16_t op, const uint8_t *body,
			uint32_t n);
