/*
 * tiers_bed.h - what the tests of the tiers share: one bed, room that is made, moves that end.
 */
#pragma once

#include "radix/internal.h"
#include "tests/radix/bed.h"

enum {
	TIERS_MOVES = 64
};

extern struct bed b;
extern struct radix_move moves[TIERS_MOVES]; /* of the last make_room() */
extern struct radix_room room;

void begin(enum radix_key_mode mode, uint32_t n_slots, uint32_t n_host, bool redis,
	   uint32_t budget);
/* How a path lies: a letter per block: d, h, r; '-' where it ends early. */
void lies(const char *path, const char *tiers);
struct radix_member name_of(const char *path);
const struct radix_entry *entry_of(const char *path);
uint32_t make_room(enum radix_tier tier, uint32_t want, uint32_t flags);
/* Ends a move that must be answered 0; returns the slots that it freed. */
uint32_t end(const struct radix_move *m, bool ok);
/* Room is made and the moves end at once, in the order in which they began. */
void demote(enum radix_tier tier, uint32_t n);
struct radix_move promote_begin(const char *path);
void promote(const char *path);
void copy(const char *path, enum radix_tier to);
/* radix_add_lower() behind a pin; what it names is looked at. */
uint32_t found(struct radix_pin *pin, const char *letters);
