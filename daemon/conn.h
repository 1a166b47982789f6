/*
 * conn.h - one connected socket: frames in, bytes and descriptors out.
 *
 * What it guarantees.  Frames are handed over whole, in order and in place (no copy).  A client
 * gets at most PREFIXD_CONN_BUDGET frames per turn and then waits for the others.  Replies made in
 * a turn leave with one write.  A peer whose unread replies exceed the soft limit is not read from
 * until it has caught up, and dropped when it has not for some time; beyond the hard limit it is
 * dropped at once.  A broken pipe ends that connection only, and not before all that the peer had
 * sent was heard.  Descriptors are sent, never received:
 * reads offer no control buffer, so the kernel closes what a peer tries to pass.
 *
 * What it relies on.  One thread, one event base.  Callbacks never free the connection they run on;
 * `ended` says when it may go, and comes from prefixd_conns_turn() alone.  Whoever sends, closes or
 * drops outside these callbacks (a timer, a signal) calls prefixd_conns_turn() when done.
 *
 *        read event                       any callback             end of the turn
 *     socket --read(2)--> in[] --frame()--> engine --send()--> out[] --write(2)--> socket
 */
#pragma once

#include "daemon/reasons.h"
#include "proto/codec.h"
#include "radix/list.h"

struct event;
struct event_base;
struct prefixd_conn;

#define PREFIXD_CONN_BUDGET   64u         /* frames per turn and client */
#define PREFIXD_CONN_IN       (64u << 10) /* input buffer; grows to one frame */
#define PREFIXD_CONN_SOFT     (1u << 20)  /* unsent bytes at which reading stops */
#define PREFIXD_CONN_MARKS    64u         /* unsent replies with descriptors, likewise */
#define PREFIXD_CONN_HARD     (8u << 20)  /* on top of one frame: the peer is dropped */
#define PREFIXD_CONN_LINGER_S 5           /* how long closing waits for the peer to read */
#define PREFIXD_CONN_MAX_FDS  20u

struct prefixd_conn_ops {
	/* A whole frame; body has header->len bytes, valid during the call. */
	void (*frame)(struct prefixd_conn *c, const struct proto_header *header, const void *body);
	/* A header that is wrong: nothing after it is read. */
	void (*bad)(struct prefixd_conn *c, const struct proto_header *header,
		    enum proto_status status);
	/* The socket is closed; the last call.  The owner may free c. */
	void (*ended)(struct prefixd_conn *c, enum prefixd_closed why);
	/* The first frame of the connection was accepted as a header (may be NULL). */
	void (*spoke)(struct prefixd_conn *c);
	/* All that was queued is in the socket; once for each time that `tell` was set. */
	void (*sent)(struct prefixd_conn *c);
};

/* All connections of a loop: who has work left, who has bytes to send, who is to be closed. */
struct prefixd_conns {
	struct event_base *base;
	struct event *turn_ev;
	struct radix_list busy;  /* whole frames wait in the input buffer */
	struct radix_list dirty; /* bytes were queued since the last turn */
	struct radix_list dead;  /* `ended` is due */
	bool in_turn;
	const uint64_t *slow_ns; /* the owner's: how long a peer may stay above the soft limit;
				    NULL: for ever */
};

/* Bytes with descriptors: the descriptors go with the byte at `at`. */
struct prefixd_conn_mark {
	uint64_t at; /* position in the stream of all bytes ever queued */
	int fds[PREFIXD_CONN_MAX_FDS];
	uint32_t n_fds;
};

struct prefixd_conn {
	struct prefixd_conns *set;
	const struct prefixd_conn_ops *ops;
	void *owner;
	int fd;
	uint32_t max_frame; /* of frames that come in */
	uint32_t max_first; /* of the first one: nobody has said who he is yet */
	struct event *read_ev, *write_ev;
	struct event *gone_ev; /* the peer's end, while it is held and so is not read from */
	struct event *late_ev; /* while it does not read enough, or closing takes its time */
	struct radix_list busy_link, dirty_link, dead_link;

	uint8_t *in;
	size_t in_head, in_len, in_cap; /* unread bytes are in[in_head..in_len) */
	uint32_t in_small;              /* turns since the grown buffer was last needed */

	uint8_t *out;
	size_t out_head, out_len, out_cap;
	uint64_t out_base; /* stream position of out[out_head] */
	struct prefixd_conn_mark *marks;
	uint32_t n_marks, cap_marks;

	uint64_t n_frames;
	enum prefixd_closed why; /* set when the end is decided; the first reason counts */
	bool spoke;              /* the first frame has come */
	bool eof;                /* the peer sends no more */
	bool deaf;               /* the peer takes no more */
	bool closing;            /* read no more; close once all is sent */
	bool dead;               /* close now */
	bool tell;               /* by the owner, after a send: call `sent` */
	bool more;               /* whole frames are left in the buffer */
	bool held;               /* by the owner: no frame is handed over, nothing is read */
	bool reading, writing, watching;
	bool behind; /* above the soft limit; late_ev runs */
};

radix_nodiscard int prefixd_conns_init(struct prefixd_conns *set, struct event_base *base);
void prefixd_conns_deinit(struct prefixd_conns *set);

/* Takes over fd (nonblocking), also on failure.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_conn_init(struct prefixd_conn *c, struct prefixd_conns *set, int fd,
				      const struct prefixd_conn_ops *ops, void *owner,
				      uint32_t max_frame, uint32_t max_first);
/* Closes and frees at once, without `ended`; idempotent. */
void prefixd_conn_deinit(struct prefixd_conn *c);

/*
 * Queues bytes, and descriptors (duplicated here) that go with their first byte.  They leave at the
 * end of the turn.  What cannot be queued ends the connection; the caller need not care.
 */
void prefixd_conn_send(struct prefixd_conn *c, const void *bytes, size_t len, const int *fds,
		       uint32_t n_fds);
/* Sends what is queued, then closes. */
void prefixd_conn_close(struct prefixd_conn *c, enum prefixd_closed why);
/* Closes without sending what is queued. */
void prefixd_conn_drop(struct prefixd_conn *c, enum prefixd_closed why);
/* What is about to end it, in case that somebody else closes it first. */
void prefixd_conn_because(struct prefixd_conn *c, enum prefixd_closed why);
const char *prefixd_closed_to_string(enum prefixd_closed why);
/* Whether its frames stay where they are, until the owner lets go.  The peer's end is heard all the
 * same, and is the connection's: what it left in the socket then goes with it. */
void prefixd_conn_hold(struct prefixd_conn *c, bool hold);
/* Reads and handles what the socket still holds, without regard to the budget, until it is empty
 * or `max` bytes were read; for the last words of a process that has ended. */
void prefixd_conn_drain(struct prefixd_conn *c, size_t max);
size_t prefixd_conn_unsent(const struct prefixd_conn *c);

/* End of a turn: write what is queued, serve who has frames left, report who has ended. */
void prefixd_conns_turn(struct prefixd_conns *set);
