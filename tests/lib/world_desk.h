/*
 * world_desk.h - the simulated world's desks: memory that workers write in where pools are
 * read-only for them (world_config.engine.staged); part of world.h.
 *
 * What it guarantees.  DESK_CREATE and TAKE are answered at the end of the step that asked, or,
 * with hold_desks and hold_takes, when the test says so, in any order and with any result.  A copy
 * that ends well puts the bytes into the slot that its place has at that moment; its checksum is
 * that of what lies in the slot then.
 */
#pragma once

#include "daemon/engine.h"

#define WORLD_DESKS 64u
#define WORLD_TAKES 512u

struct world;
struct world_client;

struct world_desk {
	bool used;
	uint32_t group, n_places;
	uint64_t slot_bytes;
	uint8_t *bytes;
};

struct world_desks {
	struct world_desk v[WORLD_DESKS]; /* by id */
	uint32_t n;
	uint32_t wanted[WORLD_DESKS]; /* ids that were asked for and not answered */
	uint32_t n_wanted;
	struct world_take {
		uint32_t group, desk, place, slot;
		uint8_t checksum_kind;
		uint8_t checksum[16];
	} takes[WORLD_TAKES]; /* not answered, oldest first */
	uint32_t n_takes;
};

/* Answers the oldest DESK_CREATE that waits: with memory, or with a refusal. */
void world_desk_answer(struct world *w, bool ready);
/*
 * Answers the i-th TAKE that waits.  OK: the bytes are copied, and CORRUPT comes of it where they
 * are not what their checksum says.  FAILED: nothing arrives.
 */
void world_take_answer(struct world *w, uint32_t i, enum prefixd_move_result result);
/* Bytes into a place of the desk that the client's last OPEN reply brought. */
void world_desk_write(struct world_client *c, uint32_t place, const void *bytes, uint32_t len);
/* The reply to the oldest COMMIT that waits for its copies, or its status; -EINPROGRESS. */
struct proto_commit_rep;
int world_commit_reply(struct world_client *c, struct proto_commit_rep *ret);
