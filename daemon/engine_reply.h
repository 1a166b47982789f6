/*
 * engine_reply.h - actions and frames of a step: engine_reply.c; part of engine_internal.h.
 */
#pragma once

#include "daemon/engine_types.h"

struct prefixd_reply {
	struct proto_writer w;
	size_t base; /* of the frame, in engine->out */
	size_t start;
};

#define PREFIXD_OUT_SLACK (64u << 10) /* beside max_frame: alignment, scratch at the far end */
/* Room for `bytes` of frames and `n` actions in one step.  Only before anything was emitted. */
radix_nodiscard int prefixd_out_reserve(struct prefixd_engine *e, size_t bytes, uint32_t n);
/* Room for `n` more actions, beside what a step keeps for its end; at any time.  0, -ENOMEM. */
radix_nodiscard int prefixd_actions_room(struct prefixd_engine *e, uint32_t n);
/*
 * Whoever is owed a small frame of up to PREFIXD_LATER_ROOM bytes counts himself in e->n_later
 * after this, until it was sent.  Only before anything was emitted.  Return: 0, -ENOMEM.
 */
#define PREFIXD_LATER_ROOM 320u
radix_nodiscard int prefixd_later_room(struct prefixd_engine *e);
/* What the output buffer has to hold at most. */
size_t prefixd_out_total(uint32_t max_frame, uint32_t waits, uint32_t later);
/* Bytes of it that are left for frames which can also be sent in the next step. */
size_t prefixd_out_left(const struct prefixd_engine *e);
struct prefixd_action *prefixd_act(struct prefixd_engine *e, enum prefixd_action_type type,
				   uint32_t session);
void prefixd_poison(struct prefixd_engine *e, uint32_t group, uint32_t slot);
__attribute__((format(printf, 3, 4))) void prefixd_log(struct prefixd_engine *e,
						       enum prefixd_log_level level,
						       const char *fmt, ...);

/* `fixed`: body bytes before the runs (0: no runs follow); they get an aligned place. */
void prefixd_reply_begin(struct prefixd_engine *e, struct prefixd_reply *rp, uint32_t fixed);
/* Where the runs of a reply that was begun with `fixed` go; at most `want` of them. */
struct radix_runs prefixd_reply_runs(struct prefixd_engine *e, const struct prefixd_reply *rp,
				     uint32_t fixed, uint32_t tail, uint32_t want);
/* The body was encoded with an empty last field RUNS; its n runs already lie behind it. */
void prefixd_reply_add_runs(struct prefixd_reply *rp, uint32_t n);
/* What version 3 has behind the runs of MATCH's reply: room for it is the `tail` above. */
#define PREFIXD_MATCH_TAIL 8u
void prefixd_reply_add_lossy(struct prefixd_reply *rp, const struct proto_match_rep *rep);
/* NULL: it was noted for the ranks of a lease. */
struct prefixd_action *prefixd_reply_send(struct prefixd_engine *e, struct prefixd_request *rq,
					  struct prefixd_reply *rp);
/* A body `error` that refuses nothing: it counts as none. */
void prefixd_say(struct prefixd_engine *e, struct prefixd_request *rq, enum proto_status status,
		 const struct proto_error *err);
void prefixd_refuse_as(struct prefixd_engine *e, struct prefixd_request *rq,
		       enum proto_status status, const struct proto_error *err);
/* The same with any status. */
void prefixd_reply_send_status(struct prefixd_engine *e, struct prefixd_request *rq,
			       struct prefixd_reply *rp, enum proto_status status);
/* `field` may be NULL. */
__attribute__((format(printf, 5, 6))) void prefixd_refuse(struct prefixd_engine *e,
							  struct prefixd_request *rq,
							  enum proto_status status,
							  const char *field, const char *fmt, ...);
void prefixd_refuse_busy(struct prefixd_engine *e, struct prefixd_request *rq,
			 uint32_t retry_after_us, const char *text);
void prefixd_refuse_memory(struct prefixd_engine *e, struct prefixd_request *rq);
/* A parent was named that cannot be one; r as radix_graft() gave it. */
void prefixd_refuse_graft(struct prefixd_engine *e, struct prefixd_request *rq, int r);
/* What happened to the first block that a COMMIT did not store; r as radix_commit() gave it. */
const char *prefixd_commit_stop_to_string(int r);
/* Whether the session has the word that a request waits for (0: none); refused if not. */
bool prefixd_word_check(struct prefixd_engine *e, struct prefixd_request *rq, uint32_t word);
void prefixd_refuse_body(struct prefixd_engine *e, struct prefixd_request *rq, const char *field);
