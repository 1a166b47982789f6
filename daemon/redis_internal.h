/*
 * redis_internal.h - the insides of the Redis client; only its own files and tests include it.
 *
 *     redis.c          start, stop, messages, statistics; the thread
 *     redis_url.c      where Redis is
 *     redis_ops.c      requests become commands, replies become answers
 *     redis_link.c     the connection's life: probe, handshake, loss; what happens with time
 *     redis_line.c     the socket: commands out in batches, replies in
 *     redis_command.c  one command and its bytes
 *     redis_epoch.c    epochs of namespaces
 *
 * Who owns what.  Everything but the statistics belongs to the thread while it runs.  A message
 * belongs to whoever has it: the client from taking it to answering it.  A command is in exactly
 * one of the lists `urgent`, `waiting` (not begun), `writing`, `awaiting`; it outlives the message
 * when that was answered before the reply came.
 *
 * Nothing is torn down from within a callback of the reader: whoever finds that the connection
 * cannot go on sets `broken`, and prefixd_redis_settle(), at the end of each event, does the rest.
 */
#pragma once

#include "daemon/redis_breaker.h"
#include "daemon/redis_names.h"
#include "daemon/redis_reply.h"
#include "daemon/redis_value.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define PREFIXD_REDIS_ADDRESSES 8u

/* ---- commands -------------------------------------------------------------------------------- */

enum prefixd_redis_command_kind {
	PREFIXD_COMMAND_STORE,
	PREFIXD_COMMAND_FETCH,
	PREFIXD_COMMAND_LOOK,
	PREFIXD_COMMAND_UNLINK,
	PREFIXD_COMMAND_EPOCHS,    /* MGET */
	PREFIXD_COMMAND_EPOCH_SET, /* SET, of one epoch */
	PREFIXD_COMMAND_AUTH,
	PREFIXD_COMMAND_SETNAME,
	PREFIXD_COMMAND_PING,
	PREFIXD_COMMAND_INFO,
};

struct prefixd_redis_command {
	struct radix_list link;
	enum prefixd_redis_command_kind kind;
	struct prefixd_redis *redis;
	struct prefixd_redis_message *m; /* NULL: nobody waits for it, or not any longer */
	struct event timer;              /* of m's deadline */
	bool timed;                      /* it runs */
	bool patient; /* m waits as long as Redis may take: else being late is not its fault */
	uint64_t deadline_ns;
	uint64_t begun_ns;  /* when its bytes came to be written */
	uint64_t cost;      /* bytes, of in_flight_bytes */
	uint64_t batch;     /* which it was written in */
	uint32_t n_replies; /* still to come */
	uint32_t present;   /* LOOK: keys found so far, in a row from the first */
	bool gap;           /* LOOK: one was missing */
	uint8_t name[32];   /* STORE, FETCH */
	uint8_t before[32];
	uint32_t first, n; /* EPOCHS, EPOCH_SET: of the table */
	/* What is written: head, payload, tail.  Head and tail lie in `text`. */
	char *text;
	size_t text_len, head_len;
	const uint8_t *payload;
	size_t payload_len;
	uint8_t *own;   /* the payload, when it is not the message's block */
	size_t written; /* of all three together */
};

/* ---- statistics ------------------------------------------------------------------------------ */

#define PREFIXD_REDIS_COUNTS(X) \
	X(round_trips)          \
	X(commands)             \
	X(stored)               \
	X(fetched)              \
	X(lost)                 \
	X(looks)                \
	X(looks_present)        \
	X(unlinked)             \
	X(bytes_out)            \
	X(bytes_in)             \
	X(in_flight)            \
	X(in_flight_bytes) X(queued) X(connects) X(breaker_opened) X(breaker_closed) X(latency_ns)

struct prefixd_redis_counts {
#define X(name) _Atomic uint64_t name;
	PREFIXD_REDIS_COUNTS(X)
#undef X
	_Atomic uint64_t errors[PREFIXD_REDIS_N_ERRORS];
	_Atomic uint64_t bad_values[PREFIXD_REDIS_N_BAD];
	_Atomic uint32_t breaker;
	_Atomic bool connected;
	_Atomic uint64_t policy[4]; /* 32 characters */
};

/* Only the thread writes, so that no locked instruction is needed. */
static inline void prefixd_count(_Atomic uint64_t *c, uint64_t n)
{
	atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static inline void prefixd_gauge(_Atomic uint64_t *c, uint64_t v)
{
	atomic_store_explicit(c, v, memory_order_relaxed);
}

/* ---- the client ------------------------------------------------------------------------------ */

struct prefixd_redis_address {
	struct sockaddr_storage sa;
	socklen_t len;
};

struct prefixd_redis_epoch {
	uint8_t digest[32];
	struct prefixd_epoch epoch; /* the greatest that is known */
	bool tell;                  /* the loop does not know it */
	bool set;                   /* Redis does not know it, as far as is known */
};

struct prefixd_redis {
	struct prefixd_redis_config config; /* the password in it is wiped at the end */
	struct prefixd_helper *handle;      /* the loop's */
	struct prefixd_helper *helper;      /* the same, the thread's */
	struct prefixd_redis_counts counts;
	struct prefixd_names_table *names;
	struct prefixd_value_cipher cipher;
	struct prefixd_redis_address addresses[PREFIXD_REDIS_ADDRESSES];
	uint32_t n_addresses, address; /* the one to try next */
	char place[300];               /* the URL, for the log */

	/* time */
	struct event_base *base;
	struct event *requests, *tick, *retry, *connect_limit;
	struct prefixd_breaker breaker;
	uint64_t hold_ns, hold_backoff_ns; /* no STORE before; Redis is full or a replica */
	bool up, told_up, state_due, warned_policy;
	char why[160]; /* why it is down */

	/* the socket */
	int fd;
	bool connected, want_write;
	struct event *readable, *writable;
	struct prefixd_replies *replies;
	bool broken;
	enum prefixd_redis_error error; /* with broken */
	uint64_t progress_ns;           /* when a byte came last, or went while no reply was owed */

	struct radix_list answers; /* messages on their way to the loop, until the event ends */

	/* commands */
	struct radix_list urgent, waiting, writing, awaiting;
	uint64_t n_queued, n_in_flight, bytes_in_flight, bytes_unwritten;
	uint64_t batch; /* number of the one that is being written */
	uint32_t batch_len;

	/* epochs */
	struct prefixd_redis_epoch *epochs;
	uint32_t n_epochs, cap_epochs, epochs_asked; /* MGETs on their way */
	uint64_t epochs_ns;                          /* when they were asked for last */
};

uint64_t prefixd_redis_now(void); /* CLOCK_MONOTONIC */

/* ---- redis_url.c ----------------------------------------------------------------------------- */

/* Fills addresses and place.  Names are resolved here, once.  Return: 0; negative errno, `why`. */
radix_nodiscard int prefixd_redis_resolve(struct prefixd_redis *r, char *why, size_t why_len);

/* ---- redis_command.c ------------------------------------------------------------------------- */

struct prefixd_redis_word {
	const void *p;
	size_t len;
};

/* NULL without memory. */
struct prefixd_redis_command *prefixd_command_new(struct prefixd_redis *r,
						  enum prefixd_redis_command_kind kind);
/* Wipes what is secret. */
void prefixd_command_free(struct prefixd_redis_command *c);
/* Adds a command of words to the text; several may follow each other.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_command_words(struct prefixd_redis_command *c,
					  const struct prefixd_redis_word *words, uint32_t n);
/*
 * The bytes of m's SET, GET or EXISTS.  Return: 0; -ENOMEM; -EBADMSG (STORE: not the block it
 * should be); -EINVAL (LOOK: the parent has no name).
 */
radix_nodiscard int prefixd_command_store(struct prefixd_redis_command *c);
radix_nodiscard int prefixd_command_fetch(struct prefixd_redis_command *c);
radix_nodiscard int prefixd_command_look(struct prefixd_redis_command *c);
/* What the value of STORE or FETCH must say. */
struct prefixd_value_of prefixd_command_of(const struct prefixd_redis_command *c);
/* The payload becomes memory of the command's own.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_command_detach(struct prefixd_redis_command *c);

static inline size_t prefixd_command_len(const struct prefixd_redis_command *c)
{
	return c->text_len + c->payload_len;
}

/* ---- redis_line.c ---------------------------------------------------------------------------- */

/* Begins to connect to the next address.  Return: 0; negative errno with nothing left open. */
radix_nodiscard int prefixd_line_open(struct prefixd_redis *r);
/* Closes the socket; commands stay where they are. */
void prefixd_line_close(struct prefixd_redis *r);
/* A command of the client's own, ahead of what waits. */
void prefixd_line_send(struct prefixd_redis *r, struct prefixd_redis_command *c);
/* Begins commands that wait, as many as may be in flight, and writes. */
void prefixd_line_pump(struct prefixd_redis *r);
/* Takes a command off its list and out of the books; the caller has it. */
void prefixd_line_remove(struct prefixd_redis *r, struct prefixd_redis_command *c);
/* For prefixd_replies_new(): the reply is the one that the head of `awaiting` waits for. */
bool prefixd_line_reply(void *ctx, const struct prefixd_reply *reply);

/* ---- redis_ops.c ----------------------------------------------------------------------------- */

void prefixd_ops_take(struct prefixd_redis *r, struct prefixd_redis_message *m);
/* Makes the bytes of a command that waited.  False: it was answered instead, and is gone. */
bool prefixd_ops_begin(struct prefixd_redis *r, struct prefixd_redis_command *c);
/* One reply to `c`, n_replies counted down already.  False: it cannot be one. */
bool prefixd_ops_reply(struct prefixd_redis *r, struct prefixd_redis_command *c,
		       const struct prefixd_reply *reply);
/* Every message is answered with DOWN, every command is gone. */
void prefixd_ops_fail_all(struct prefixd_redis *r);
/*
 * To the loop, in order, at the end of the event: several blocks that arrive together wake it once.
 */
void prefixd_redis_post(struct prefixd_redis *r, struct prefixd_redis_message *m);
void prefixd_redis_post_all(struct prefixd_redis *r);
void prefixd_ops_answer(struct prefixd_redis *r, struct prefixd_redis_message *m,
			enum prefixd_move_result result);
enum prefixd_redis_error prefixd_redis_error_of(const char *text, size_t len);

/* ---- redis_link.c ---------------------------------------------------------------------------- */

radix_nodiscard int prefixd_link_init(struct prefixd_redis *r);
void prefixd_link_deinit(struct prefixd_redis *r);
void prefixd_link_start(struct prefixd_redis *r);
void prefixd_link_stop(struct prefixd_redis *r);
/* The socket is connected: says who it is, and probes. */
void prefixd_link_connected(struct prefixd_redis *r);
/* A reply to AUTH, SETNAME, PING or INFO.  False: it cannot be. */
bool prefixd_link_reply(struct prefixd_redis *r, struct prefixd_redis_command *c,
			const struct prefixd_reply *reply);
/* The connection cannot go on; counted.  The first reason stays. */
void prefixd_redis_break(struct prefixd_redis *r, enum prefixd_redis_error error);
/* A command failed: counted, and perhaps one too many. */
void prefixd_redis_failed(struct prefixd_redis *r, enum prefixd_redis_error error);
/* At the end of each event: tears down what is broken, writes what is ready. */
void prefixd_redis_settle(struct prefixd_redis *r);

/* ---- redis_epoch.c --------------------------------------------------------------------------- */

/* Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_epochs_learn(struct prefixd_redis *r, const uint8_t digest[32],
					 struct prefixd_epoch epoch, bool raised);
/* Asks for all of them, unless that is on its way. */
void prefixd_epochs_ask(struct prefixd_redis *r, uint64_t now_ns);
/* Tells the loop and Redis what they do not know. */
void prefixd_epochs_settle(struct prefixd_redis *r);
bool prefixd_epochs_reply(struct prefixd_redis *r, struct prefixd_redis_command *c,
			  const struct prefixd_reply *reply);
/* The connection is gone: what was asked or told may have been lost. */
void prefixd_epochs_lost(struct prefixd_redis *r);
#define PREFIXD_EPOCH_TEXT 52u
void prefixd_epoch_print(const uint8_t naming_key[32], const uint8_t digest[32],
			 struct prefixd_epoch epoch, char ret_text[PREFIXD_EPOCH_TEXT]);
bool prefixd_epoch_parse(const uint8_t naming_key[32], const uint8_t digest[32], const char *text,
			 size_t len, struct prefixd_epoch *ret_epoch);
bool prefixd_epoch_greater(struct prefixd_epoch a, struct prefixd_epoch b);
