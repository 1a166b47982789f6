/*
 * ranks_kit.h - for tests of pools with several ranks: a pool, the thread that copies its blocks,
 * and blocks whose pieces tell of which block and rank they are.
 *
 * One of each at a time: all tests run in processes of their own.
 */
#pragma once

#include "daemon/carrier.h"
#include "daemon/keep.h"

enum {
	BYTES = 5000, /* of a piece; its slot is longer */
	SLOTS = 24,
	HOST = 24,
	STAGE = 2,
	MAX_RANKS = 4,
	GROUP = 7
};

extern const char *ranks_device; /* that ranks_devices_open() opens: "host", "sim", "cuda" */
extern struct gpu_devices devices;
extern struct prefixd_carrier *c;
extern struct prefixd_keep *keep;
extern struct prefixd_pool *pool;
extern uint8_t *slots[MAX_RANKS]; /* each rank's, as a worker maps them */

struct prefixd_pool_plan ranks_plan_of(uint32_t n_ranks, bool adopt);
struct prefixd_carrier_message *ranks_message(enum prefixd_carrier_op op);
struct prefixd_carrier_message *ranks_receive(void);
void ranks_devices_open(const struct gpu_sim_config *sim);
void ranks_pool_make(uint32_t n_ranks);
void ranks_map(void); /* fills `slots` */
void ranks_carrier_start(void);
void ranks_start(uint32_t n_ranks, const struct gpu_sim_config *sim);
/* As the daemon does it: thread, devices, the rest. */
void ranks_stop(void);
/* A keeper that is nobody else: what is put stays with this process. */
void ranks_setup(void);
void ranks_teardown(void);

/* The pieces of a block, one behind the other. */
void ranks_block_fill(uint8_t *p, uint32_t block);
void ranks_block_expect(const uint8_t *p, uint32_t block);
void ranks_slot_expect(uint32_t slot, uint32_t block);
uint8_t *ranks_host(uint32_t slot);
/* From the definition: the sum of the pieces' sums; of one piece, its own. */
void ranks_block_sum(uint32_t block, uint32_t n_ranks, uint8_t out[16]);
/* The same of the kernels' sums. */
void ranks_kernel_sum(uint32_t block, uint32_t n_ranks, uint8_t out[16]);
struct prefixd_carrier_message *ranks_copy(enum prefixd_place from, uint32_t src,
					   enum prefixd_place to, uint32_t dst);
/* Sends it and waits; the result, the answer's error in *ret_error (may be NULL). */
enum prefixd_move_result ranks_carried(struct prefixd_carrier_message *m, int *ret_error);
void ranks_move(enum prefixd_place from, uint32_t src, enum prefixd_place to, uint32_t dst);
struct prefixd_carrier_stats ranks_stats(void);
