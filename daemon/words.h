/*
 * words.h - words that a worker's stream writes, and the requests that wait for one of them.
 *
 * A device works behind the worker's back: when the worker says COMMIT, the kernels that fill the
 * blocks may not have run yet.  So the session has words in shared memory, its stream writes one
 * behind its work, and the request names it: the request counts once the word has come to a value.
 * Until then it is parked here, and with it what the session says later about the same lease, so
 * that the order of a lease's requests is kept.  All other requests go on.
 *
 * What it guarantees.  A frame is handed over once, after an acquiring load has seen its word there
 * or when it waits for none; frames of one lease, and QUIESCED among themselves, in the order in
 * which they came.  A turn hands over at most PREFIXD_WORDS_BUDGET frames and looks at so many
 * words as it takes some tens of microseconds.  What a session has parked is bounded: beyond
 * PREFIXD_WORDS_FRAMES frames or `max_bytes` bytes its owner is told to read no more of it.
 * The memory is sealed, so a worker cannot take it away from under the load.
 *
 * What it relies on.  One thread, one event base.  A word is written whole, as a device and a plain
 * aligned store do it.
 *
 *     frame --park()--> heads: one frame for each lease --(word there)--> frame()
 *                         |
 *                         next: those behind it, of the same lease
 */
#pragma once

#include "proto/codec.h"
#include "radix/list.h"

struct event;
struct event_base;
struct prefixd_parked;

#define PREFIXD_WORDS_FRAMES 1024u          /* parked by a session; beyond, it is not read from */
#define PREFIXD_WORDS_BUDGET 64u            /* frames handed over in a turn */
#define PREFIXD_WORDS_LOOKS  4096u          /* words looked at in a turn */
#define PREFIXD_WORDS_LATE   10000000000ull /* ns after which somebody is told */

struct prefixd_words;

struct prefixd_words_ops {
	/* A frame whose word is there; body has header->len bytes, valid during the call. */
	void (*frame)(struct prefixd_words *w, const struct proto_header *header, const void *body);
	/* So much is parked that further frames are to stay in the socket (true), or no more. */
	void (*hold)(struct prefixd_words *w, bool hold);
	/* A frame waits for long: `word` is `is` and has to come to `wanted`. */
	void (*late)(struct prefixd_words *w, const struct proto_header *header, uint32_t word,
		     uint64_t is, uint64_t wanted);
	/* Frames were handed over, outside any other callback of the loop. */
	void (*turn)(void *server);
};

/* All sessions' parked frames. */
struct prefixd_parking {
	struct event_base *base;
	const struct prefixd_words_ops *ops;
	void *server;
	int timer; /* descriptor: the loop's own timers count in milliseconds; -1: not made yet */
	struct event *timer_ev;
	struct radix_list sessions; /* that have something parked; the next to be looked at first */
	uint64_t n_frames;
	uint64_t armed_ns; /* when the timer fires; UINT64_MAX: it does not */
	uint64_t quiet_ns; /* since when nothing was parked or handed over */
};

/* Of one session. */
struct prefixd_words {
	struct prefixd_parking *set;
	int fd;            /* -1: none were asked for */
	const uint64_t *v; /* mapped read-only */
	size_t max_bytes;
	struct radix_list link;  /* in set->sessions */
	struct radix_list heads; /* the frame of each lease that comes next */
	uint32_t n_frames;
	size_t bytes;
	bool held;
	uint64_t told_ns; /* when `late` was last called */
};

void prefixd_parking_init(struct prefixd_parking *p, struct event_base *base,
			  const struct prefixd_words_ops *ops, void *server);
void prefixd_parking_deinit(struct prefixd_parking *p); /* no session is left */

void prefixd_words_init(struct prefixd_words *w, struct prefixd_parking *p, size_t max_bytes);
/* Parked frames are gone with it; idempotent. */
void prefixd_words_deinit(struct prefixd_words *w);
/* The descriptor of the session's words, made by the first call; it stays ours.  Return: it, or
 * negative errno. */
radix_nodiscard int prefixd_words_fd(struct prefixd_words *w);
/*
 * Whether a frame of the session has to wait.  Return: 0: it has not; 1: it was copied, and comes
 * back by frame(); -ENOMEM: it has to, and cannot.
 */
radix_nodiscard int prefixd_words_park(struct prefixd_words *w, const struct proto_header *header,
				       const void *body, uint64_t now_ns);
/* The session says no more: what is there by now is handed over, the rest is forgotten. */
void prefixd_words_end(struct prefixd_words *w, uint64_t now_ns);
