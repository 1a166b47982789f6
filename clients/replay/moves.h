/*
 * moves.h - what the daemon moved between its tiers, as its status tells.
 */
#pragma once

#include <stdint.h>

enum replay_tier {
	REPLAY_DEVICE,
	REPLAY_HOST,
	REPLAY_REDIS,
	REPLAY_N_TIERS
};

const char *replay_tier_to_string(enum replay_tier tier);

/* Blocks copied down and up since the daemon's start, by from and to. */
struct replay_moves {
	uint64_t demoted[REPLAY_N_TIERS][REPLAY_N_TIERS];
	uint64_t promoted[REPLAY_N_TIERS][REPLAY_N_TIERS];
};

/* Asks on the admin socket.  Return: 0, or -EIO after a message. */
int replay_moves_ask(const char *admin_socket, struct replay_moves *ret);
/* What happened between the two. */
void replay_moves_since(struct replay_moves *now, const struct replay_moves *before);
