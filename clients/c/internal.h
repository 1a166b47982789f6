/*
 * internal.h - what the files of libprefixd share.
 *
 * One client is one socket and everything that hangs on it.  A "life" is one successful HELLO: what
 * the daemon gave under it (leases, namespace ids, reuse counters) means nothing under the next
 * one, so each of those remembers its life and is refused locally when the life is over.
 *
 * Layers, each using only those above it:
 *     wire.c       bytes, frames, descriptors, deadlines; knows no operation
 *     lease.c      handles given to the caller -> the daemon's lease ids
 *     request.c    one request and its reply
 *     client.c     connecting, HELLO, the calls without a namespace
 *     device.c     mapping a GPU's memory
 *     namespace.c  OPEN, mappings, slots
 *     desk.c       memory to write in, where pools are read-only
 *     prompt.c     MATCH, EXTEND, PROBE, EXPLAIN
 *     write.c      RESERVE, COMMIT, RELEASE, REPORT
 *     wait.c       WAIT
 *     words.c      the words that a stream writes
 *     load.c       the end of loads, PREFETCH
 *     kernels.c    caches that lie layer by layer; launch.c, on a GPU
 */
#pragma once

#include "clients/c/namespace.h"
#include "clients/c/prefixd_load.h"
#include "clients/c/prefixd_restart.h"
#include "clients/c/prefixd_words.h"
#include "proto/codec.h"

#include <stdarg.h>
#include <sys/types.h>

enum {
	/* Internal result: the connection is gone and was dropped; never reaches the caller. */
	PFX_LOST = -1,
	PFX_MAX_FDS = 40, /* descriptors that may wait for their OPEN reply */
	PFX_DEADLINE_DEFAULT_MS = 1000,
	PFX_ERROR_LEN = 704,
};

#define PFX_BACKOFF_MIN_NS (5ull * 1000 * 1000)
#define PFX_BACKOFF_MAX_NS (200ull * 1000 * 1000)

/* reuse counters as the caller sees them: low 48 bits the daemon's, high 16 bits which memory. */
#define PFX_REUSE_BITS 48
#define PFX_REUSE_MASK ((1ull << PFX_REUSE_BITS) - 1)

struct pfx_wire {
	int fd;      /* -1: not connected */
	uint8_t *rx; /* received; the first rx_used bytes were handed out as the last frame */
	size_t rx_len, rx_used, rx_cap;
	uint8_t *tx; /* to send; tx[0..tx_off) has gone */
	size_t tx_len, tx_off, tx_cap;
	int fds[PFX_MAX_FDS]; /* received and not yet claimed by an OPEN reply */
	uint32_t n_fds;
	uint32_t max_frame; /* longest frame that we may send */
	uint32_t rx_max;    /* longest one that we take */
	uint16_t version;   /* of all frames; HELLO's own until its reply has agreed on one */
	const char *why;    /* static text behind the last PFX_LOST or PFX_PROTOCOL */
};

struct pfx_frame {
	struct proto_header h;
	const uint8_t *body; /* in rx, until the next receive */
};

struct pfx_lease {
	uint64_t wire;   /* the daemon's id */
	uint64_t n_keys; /* of MATCH and every EXTEND */
	/*
	 * The load whose end was or will be told by the EVENT with this seq; 0: none.  Ends come
	 * at any time between two replies, and are kept here until somebody asks.
	 */
	uint64_t load_seq;
	bool load_ended;
	pfx_load_result load;
	struct pfx_namespace *ns;
	uint32_t gen;  /* high half of the handle; changes whenever the entry is freed */
	uint32_t next; /* free list */
	bool used;
	bool lost;     /* its connection ended: unknown to all calls but the caller's last word */
	bool revoked;  /* the caller was told; he may not have stopped to write */
	bool doubtful; /* a call that changed it lost its reply: only RELEASE is safe */
};

struct pfx_leases {
	struct pfx_lease *v;
	uint32_t n, cap;
	uint32_t free;   /* first free entry + 1; 0: none */
	uint32_t n_lost; /* entries that are `lost` */
	uint32_t first_gen;
};

struct pfx_client {
	pid_t pid; /* who made it */
	struct pfx_wire wire;
	char *socket;
	char name[65];
	int copies;
	uint32_t deadline_ms;

	uint32_t life; /* counts successful HELLOs; 0: none yet */
	bool connected;
	struct proto_id instance;
	struct proto_id boot;   /* of the current or last life */
	uint32_t n_left_behind; /* leases of ended connections that the daemon holds, as is known */
	bool quiesce_due;       /* QUIESCED goes out in front of the next request */
	uint32_t max_keys;
	uint8_t *tenants; /* HELLO's {u32 id, u16 length, name}... */
	uint32_t tenants_len;

	uint64_t seq;
	uint64_t op_prefix, op_counter;
	uint64_t call_deadline_ns;
	bool attempted;           /* this call has used its one attempt to connect */
	bool heard_of_loss;       /* of a pool, during this call */
	bool in_doubt;            /* a request went out, at least in part, and got no reply */
	uint64_t next_attempt_ns; /* before that, a call does not even try */
	uint64_t backoff_ns;

	struct pfx_leases leases;
	uint64_t *orphans; /* leases from replies that nobody waited for any more; to be released */
	uint32_t n_orphans, orphans_cap;

	pfx_run *runs; /* of the last result */
	uint32_t n_runs, runs_cap;
	struct pfx_namespace *namespaces;
	struct pfx_pool *pools;
	struct pfx_desk *desks;
	struct pfx_words *words;   /* of this connection and earlier ones, newest first */
	struct pfx_device *device; /* of a pool on a GPU; NULL: none was met */
	uint16_t n_memories;       /* that pools were mapped of so far */
	uint64_t stream_seq;       /* of SUBSCRIBE; 0: not subscribed */
	struct proto_span stream;  /* events not taken yet; in wire.rx */
	uint32_t retry_after_us;   /* of the last error reply */
	char error[PFX_ERROR_LEN];
};

/* ---- wire.c: results are 0, PFX_DEADLINE, PFX_LOST, PFX_PROTOCOL, PFX_NO_MEMORY -------------- */

uint64_t pfx_now_ns(void);
void pfx_wire_init(struct pfx_wire *w);
/* Closes this process' descriptors; `end` also ends the connection for copies that a fork made. */
void pfx_wire_close(struct pfx_wire *w, bool end);
void pfx_wire_deinit(struct pfx_wire *w);
int pfx_wire_connect(struct pfx_wire *w, const char *path, uint64_t deadline_ns);
/* Room for `more` bytes at the end of tx. */
int pfx_wire_reserve(struct pfx_wire *w, size_t more);
int pfx_wire_flush(struct pfx_wire *w, uint64_t deadline_ns);
/* The next frame, whatever its seq. */
int pfx_wire_receive(struct pfx_wire *w, uint64_t deadline_ns, struct pfx_frame *ret_frame);
/* Descriptors that come with OPEN's reply: the pool's, then its write memory, then words. */
static inline uint32_t pfx_open_fds(const struct proto_open_rep *rep)
{
	return rep->n_pool_fds + (rep->n_write > 0) + (rep->n_words > 0);
}

/* Takes the first n waiting descriptors; false when there are fewer. */
bool pfx_wire_take_fds(struct pfx_wire *w, uint32_t n, int ret_fds[PFX_MAX_FDS]);
bool pfx_wire_hung_up(const struct pfx_wire *w);

/* ---- lease.c --------------------------------------------------------------------------------- */

int pfx_lease_add(struct pfx_client *c, struct pfx_namespace *ns, uint64_t wire, uint64_t n_keys,
		  uint64_t *ret_handle);
struct pfx_lease *pfx_lease_find(struct pfx_client *c, uint64_t handle);
void pfx_lease_remove(struct pfx_client *c, struct pfx_lease *lease);
/* The connection ended: no lease is known any more, but those that the caller may still read. */
void pfx_lease_lose_all(struct pfx_client *c);
/* The caller is done with a lost lease (true), or has none of this handle. */
bool pfx_lease_forget(struct pfx_client *c, uint64_t handle);
void pfx_lease_forget_all(struct pfx_client *c);
/* A lease of the caller's that QUIESCED would speak of, and that he is not done with. */
bool pfx_lease_any(const struct pfx_client *c);
bool pfx_lease_unsettled(const struct pfx_client *c);
void pfx_lease_deinit(struct pfx_client *c);
/* The lease of a call, or the status to return: unknown, doubtful, or of another namespace. */
int pfx_lease_use(struct pfx_client *c, const struct pfx_namespace *ns, uint64_t handle,
		  bool release, struct pfx_lease **ret_lease);
/*
 * A call on the lease failed with r: an unknown lease is forgotten, unless it was revoked; one that
 * may have changed without the caller's knowledge (no reply, or `changed` by an earlier part)
 * becomes doubtful.
 */
void pfx_lease_failed(struct pfx_client *c, uint64_t handle, int r, bool changed);
/* A reply to the request `seq` promised the end of a load; one that runs still goes on. */
void pfx_lease_loading(struct pfx_lease *l, uint64_t seq);
/* The EVENT of somebody's load; one that nobody waits for is forgotten. */
void pfx_lease_loaded(struct pfx_client *c, uint64_t seq, const struct proto_event *event);

/* ---- client.c and request.c ------------------------------------------------------------------ */

__attribute__((format(printf, 3, 4))) int pfx_fail(struct pfx_client *c, int status,
						   const char *format, ...);
/* Start of every call: forked? else deadline and error text are set up. */
int pfx_begin(struct pfx_client *c, uint32_t deadline_ms);
/* A connection, and `ns` (may be NULL) open on it.  Return: 0, or a public status. */
int pfx_ready(struct pfx_client *c, struct pfx_namespace *ns);
/*
 * One request and its reply, on the connection there is.  Return: 0; a public status with
 * pfx_error() set; or PFX_LOST: the connection broke and was dropped, leases with it.
 */
int pfx_request(struct pfx_client *c, uint16_t op, const void *msg, struct pfx_frame *ret_frame);
/* The EVENT that the last request, a WAIT, was promised.  Return: as pfx_request. */
int pfx_event(struct pfx_client *c, struct pfx_frame *ret_frame);
/* Takes frames until the lease's load has ended.  Return: as pfx_request. */
int pfx_event_of_load(struct pfx_client *c, uint64_t handle);
/* True: LOST; a pool of this life is gone, and its namespaces are opened again when used next. */
bool pfx_hears_of_loss(struct pfx_client *c, const struct pfx_frame *f);
/* A reply that does not decode: drops the connection.  Return: PFX_PROTOCOL. */
int pfx_bad_reply(struct pfx_client *c, uint16_t op, const char *field);
/* PFX_LOST as the caller sees it: PFX_GONE, and pfx_error() says how it went. */
int pfx_gone(struct pfx_client *c, int r);
/* The same for a call on a lease: UNKNOWN_LEASE when a daemon is there again, else GONE. */
int pfx_lease_gone(struct pfx_client *c, int r);
/* A lease that nobody will release: done with the next request, or at once as far as the socket
 * takes it without waiting. */
void pfx_orphan(struct pfx_client *c, uint64_t wire_lease);
void pfx_orphans_flush(struct pfx_client *c);
/* QUIESCED goes out if there is anything to say, and all of it is done with. */
void pfx_quiesce(struct pfx_client *c);
struct proto_quiesced_req pfx_quiesced_req(const struct pfx_client *c);
void pfx_drop(struct pfx_client *c);
struct proto_id pfx_op_id(struct pfx_client *c);
/* What is left of the call's time, for the daemon: a little less, so that its answer is in time. */
uint32_t pfx_deadline_us(const struct pfx_client *c);

/* ---- words.c --------------------------------------------------------------------------------- */

/* What came with OPEN's reply; the descriptor stays the caller's.  Return: 0, a public status. */
int pfx_words_take(struct pfx_client *c, uint32_t n, int fd);
void pfx_words_deinit(struct pfx_client *c);
/* Whether a request may wait for this word of the connection.  Return: 0, PFX_ARGUMENT. */
int pfx_word_check(struct pfx_client *c, uint32_t word);

/* ---- prompts, runs and versioned structs ----------------------------------------------------- */

/*
 * The caller's prompt, checked; *ret_counted (may be NULL): it said how many tokens there are.
 * Return: 0, PFX_ARGUMENT.
 */
int pfx_prompt_take(struct pfx_namespace *ns, const pfx_prompt *in, pfx_prompt *ret,
		    bool *ret_counted);
/* Keys that fit into one frame beside everything else. */
uint32_t pfx_prompt_keys_per_frame(const struct pfx_namespace *ns, const pfx_prompt *p);
int pfx_runs_append(struct pfx_client *c, struct proto_span runs);
bool pfx_runs_ok(const struct pfx_namespace *ns, struct proto_span runs, uint64_t n_blocks);
/* The same of blocks to be written: they may lie elsewhere than in the pool. */
bool pfx_write_runs_ok(const struct pfx_namespace *ns, struct proto_span runs, uint64_t n_blocks);

/* Without a mapping nobody can look whether a slot is stale, so then it does not matter. */
static inline uint64_t pfx_reuse(const struct pfx_namespace *ns, uint64_t reuse)
{
	return (uint64_t)(ns->pool ? ns->pool->tag : 0) << PFX_REUSE_BITS |
	       (reuse & PFX_REUSE_MASK);
}

/* Reads a caller's struct of whatever version into ours; what it lacks is 0. */
static inline bool pfx_struct_in(void *dst, size_t len, const void *src)
{
	size_t n;

	memcpy(&n, src, sizeof(n));
	if (n < sizeof(n))
		return false;
	memset(dst, 0, len);
	memcpy(dst, src, n < len ? n : len);
	return true;
}

static inline bool pfx_struct_ok(const void *s)
{
	size_t n;

	memcpy(&n, s, sizeof(n));
	return n >= sizeof(n);
}

/* Writes ours into a caller's struct of whatever version. */
static inline void pfx_struct_out(void *dst, const void *src, size_t len)
{
	size_t n;

	memcpy(&n, dst, sizeof(n));
	memcpy((uint8_t *)dst + sizeof(n), (const uint8_t *)src + sizeof(n),
	       (n < len ? n : len) - sizeof(n));
}
