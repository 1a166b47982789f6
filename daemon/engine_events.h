/*
 * engine_events.h - the stream of what became a member and what went; only the engine includes it.
 *
 * One ring of records (radix/log.h) for all indexes and all subscribers, each of which remembers
 * the last record that it was told of.  Nobody is waited for: the ring runs over whoever is slow,
 * and that one is told RESYNC.
 */
#pragma once

#include "daemon/engine.h"
#include "radix/log.h"

struct prefixd_session;
struct prefixd_group;
struct prefixd_request;

struct prefixd_subscriber {
	struct radix_list link;
	struct prefixd_session *session;
	uint64_t seq;  /* of its SUBSCRIBE */
	uint64_t seen; /* number of the last event that it was told, or need not be */
	uint32_t ns;   /* 0: all */
	bool busy;     /* a frame is under way: SUBSCRIBER_READY will come */
	bool resync;   /* it lost events, and is to be told so */
};

struct prefixd_events {
	struct radix_log log; /* v NULL: not recording */
	uint64_t first;       /* number of the first event since recording began */
	uint64_t alone_at;    /* log.n when the last subscriber went */
	uint64_t due_ns;      /* when to send; UINT64_MAX: nothing waits */
	struct radix_list subscribers;
	uint32_t n_subscribers;
};

void prefixd_events_init(struct prefixd_engine *e);
void prefixd_events_deinit(struct prefixd_engine *e);
/* A group got its index. */
void prefixd_events_attach(struct prefixd_engine *e, struct prefixd_group *g);
/* The session's socket is over. */
void prefixd_events_leave(struct prefixd_engine *e, struct prefixd_session *s);
/* While a namespace is flushed: one CLEARED says it all.  ns RADIX_NONE: every one. */
void prefixd_events_mute(struct prefixd_engine *e, bool mute);
void prefixd_events_cleared(struct prefixd_engine *e, uint32_t ns);
/* The session's last frame of events has left. */
void prefixd_events_ready(struct prefixd_engine *e, struct prefixd_session *s);
/* TIMER: sends what is due. */
void prefixd_events_send(struct prefixd_engine *e);
/* The end of every step: who was run over, and is there something to send? */
void prefixd_events_settle(struct prefixd_engine *e);
/* Return: 0, or a broken rule's text. */
const char *prefixd_events_verify(const struct prefixd_engine *e);
void prefixd_op_subscribe(struct prefixd_engine *e, struct prefixd_request *rq);
