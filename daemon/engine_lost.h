/*
 * engine_lost.h - a group whose device is lost, as the engine's files see it: engine_lost.c; part
 * of engine_internal.h.
 */
#pragma once

#include "daemon/engine_types.h"

struct prefixd_request;

bool prefixd_group_lost(const struct prefixd_group *g);
/* True: it is lost, and that was answered. */
bool prefixd_lost_refuse(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct prefixd_group *g);
/* DEVICE_LOST; to versions that do not know it, `older`. */
void prefixd_refuse_lost(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct prefixd_group *g, enum proto_status older);
void prefixd_pool_lost(struct prefixd_engine *e, uint32_t group);
/* POOL_READY and POOL_FAILED of a lost one. */
void prefixd_lost_ready(struct prefixd_engine *e, struct prefixd_group *g,
			const struct prefixd_event *event);
void prefixd_lost_failed(struct prefixd_engine *e, struct prefixd_group *g, const char *why);
void prefixd_lost_settle(struct prefixd_engine *e);
void prefixd_lost_time(struct prefixd_engine *e); /* before anything was emitted */
uint64_t prefixd_lost_deadline(const struct prefixd_engine *e);
/* NULL, or what is wrong. */
const char *prefixd_lost_verify(const struct prefixd_engine *e);
