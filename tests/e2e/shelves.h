/*
 * shelves.h - prompts of three kinds on a daemon with a holder, whose memory tests damage.
 *
 * Shelf 0: a namespace, no salt.  Shelf 1: the same with a salt.  Shelf 2: another model with
 * another size of block, so another pool.  Prompts of a shelf have their first blocks in common.
 * Every block that is lent is compared; what is in it follows from its path.  All have checksums.
 */
#pragma once

#include "tests/e2e/harness.h"

#include <stdint.h>

enum {
	SHELF_TOKENS = 16,
	SHELF_KEY_LEN = SHELF_TOKENS * 4,
	SHELVES = 3,
	SHELF_STEM = 4, /* blocks that a shelf's prompts have in common */
	SHELF_BLOCKS = 24,
	SHELF_MAX_BYTES = 1024
};

struct shelves {
	struct e2e_daemon d;
	uint32_t n_prompts[SHELVES];
	pfx_client *client;
	pfx_namespace *ns[2];
	uint64_t leases[2]; /* of shelves_hold() */
};

/* The slot's bytes of a shelf's block; its key. */
uint32_t shelf_bytes(uint32_t shelf);
void shelf_key(uint32_t shelf, uint32_t prompt, uint32_t i, uint32_t ret_tokens[SHELF_TOKENS]);

/* A daemon, all prompts stored. */
void shelves_begin(struct shelves *s);
/* Leases that live on: one that reads, one that has reserved. */
void shelves_hold(struct shelves *s);
/* SIGKILL. */
void shelves_kill(struct shelves *s);
/* Another daemon.  Return: as e2e_daemon_start. */
int shelves_start(struct shelves *s, bool verify);
/* The same, connected; fails the test when it does not start. */
void shelves_restart(struct shelves *s, bool verify);
/* Leading blocks of a prompt that are there. */
uint32_t shelves_look(struct shelves *s, uint32_t shelf, uint32_t prompt);
/* Everything can be stored and is there then; the audit is clean; all ends. */
void shelves_end(struct shelves *s);
