/*
 * engine_group.h - pool groups, as the engine's files see them: engine_group.c; part of
 * engine_internal.h.
 */
#pragma once

#include "daemon/engine_types.h"

struct prefixd_request;

struct prefixd_group *prefixd_group_find(const struct prefixd_engine *e, uint64_t block_bytes,
					 uint32_t n_ranks, const struct prefixd_cold *cold);
/* Gives its memory a name that no other has. */
void prefixd_group_name(struct prefixd_engine *e, struct prefixd_group *g);
void prefixd_pool_ready(struct prefixd_engine *e, const struct prefixd_event *event);
void prefixd_pool_failed(struct prefixd_engine *e, const struct prefixd_event *event);
void prefixd_group_free(struct prefixd_engine *e, struct prefixd_group *g);
/* One more, without a place in e->groups yet.  NULL: refused, and answered. */
struct prefixd_group *prefixd_group_new(struct prefixd_engine *e, struct prefixd_request *rq,
					uint64_t block_bytes, uint32_t n_ranks,
					const struct prefixd_cold *cold);
/* What an index over the group's slots is made with. */
struct radix_index_config prefixd_group_config(const struct prefixd_engine *e,
					       const struct prefixd_group *g);
/* The group is there: OPENs that wait are answered. */
/* What POOL_READY says of its memory. */
void prefixd_group_memory(struct prefixd_group *g, const struct prefixd_event *event);
void prefixd_group_open(struct prefixd_engine *e, struct prefixd_group *g);
/* A group without memory yet, of these numbers; not in e->groups.  NULL: no memory. */
struct prefixd_group *prefixd_group_make(struct prefixd_engine *e, uint32_t id, uint32_t n_slots,
					 uint32_t n_host, uint64_t slot_bytes, uint32_t n_ranks);
/* Bytes of its pools together. */
uint64_t prefixd_group_bytes(uint32_t n_slots, uint64_t slot_bytes, uint32_t n_ranks);
/* Somebody waits for it: POOL_CREATE.  Or what he waits for is not to be had. */
void prefixd_group_create(struct prefixd_engine *e, struct prefixd_group *g);
void prefixd_group_refuse(struct prefixd_engine *e, struct prefixd_group *g, const char *why);
/* Takes its place, and its part of the budget. */
void prefixd_group_add(struct prefixd_engine *e, struct prefixd_group *g, uint64_t budget);
/* Answers every OPEN of the list, or has it wait for its desk; why != NULL refuses them. */
void prefixd_open_answer(struct prefixd_engine *e, const struct prefixd_group *g,
			 struct radix_list *waiting, enum proto_status status, const char *why);
