/*
 * session_replies.h - what a reply means to session_world.c: it is compared with what the model
 * says, and what it gave is noted.  See session_world.h.
 */
#pragma once

#include "tests/fuzz/session_world.h"

/* The lease of this number; NULL: it is not known, or over. */
struct lease *session_lease_of(struct session_world *w, uint64_t id);
/* The namespace of this number; NULL: nobody was told of it. */
struct ns *session_ns_find(struct session_world *w, uint32_t id);

/* A reply with status OK, or of OPEN with any; what was asked for, of `number`'s session or `s`. */
void session_note_open(struct session_world *w, struct session *s, const struct proto_header *h,
		       const void *body, bool digest);
void session_on_match(struct session_world *w, struct session *s, uint32_t number,
		      const struct proto_match_req *m);
void session_on_extend(struct session_world *w, const struct session *s,
		       const struct proto_extend_req *m);
void session_on_reserve(struct session_world *w, const struct session *s,
			const struct proto_reserve_req *m);
void session_on_commit(struct session_world *w, const struct session *s,
		       const struct proto_commit_req *m);
void session_on_release(const struct session *s, const struct lease *l);
void session_on_probe(struct session_world *w, const struct session *s,
		      const struct proto_probe_req *m);
/* A MATCH of a rank whose answer came late. */
void session_on_named(struct session_world *w, struct session *s, uint32_t number,
		      const struct ns *ns, const struct proto_header *h, const void *body);
/* COMMIT was answered CONFLICT. */
void session_on_commit_refused(struct session_world *w, const struct proto_commit_req *m);
