/*
 * world.h - the simulated world: the engine, a simulated device and workers, in one process.
 *
 * What it is.  A shell without sockets: it hands events to the engine under a clock that the test
 * turns, carries out the actions, keeps pools on the simulated device, and speaks for any number of
 * worker processes.  Each call of a worker is one frame, encoded and decoded by proto/.  With
 * `record` set everything goes to a transcript, a line per frame, that tests compare as text.
 *
 * What it guarantees.  The same calls give the same transcript.  After each step every invariant of
 * the engine is checked (unless `no_verify`), and every FRAME got exactly one reply.
 */
#pragma once

#include "daemon/engine.h"
#include "gpu/gpu.h"
#include "proto/codec.h"
#include "tests/lib/heap.h"
#include "tests/lib/rng.h"
#include "tests/lib/world_desk.h"
#include "tests/lib/world_life.h"
#include "tests/lib/world_tiers.h"

#define WORLD_CLIENTS 64
#define WORLD_GROUPS  8
#define WORLD_EVENTS  16
#define WORLD_LATE    8 /* RESERVEs of one worker that wait for their reply */

struct world;

struct world_client {
	struct world *w;
	uint32_t session;
	struct prefixd_peer peer;
	struct proto_id instance;
	bool used;   /* SESSION_OPENED was sent and FORGET has not come */
	bool open;   /* the socket is open on our side */
	bool closed; /* the engine sent CLOSE */
	uint64_t seq;
	uint16_t version;   /* agreed by HELLO; 0: not said yet */
	uint32_t n_replies; /* since the last request */
	struct proto_header h;
	uint8_t *body;
	uint32_t body_cap;
	bool with_fds, read_only;
	uint32_t fds_rank; /* whose pool they are of */
	bool with_words;
	bool with_desk; /* the last OPEN's reply had one, */
	uint32_t desk;  /* this one */
	/* CHANGES: the events of all frames so far, one behind the other, as on the wire */
	uint8_t *changes;
	uint32_t changes_len, changes_cap;
	uint64_t changes_seq;
	bool ready_due; /* SUBSCRIBER_READY is to be told, at the next step but not before */
	bool slow;      /* it is held back: the socket takes nothing */
	/* decoded when h.status is not OK; terminated copies */
	char error_field[65];
	char error_text[513];
	uint32_t retry_after_us;
	/* EVENTs that came, oldest first; the test takes them with world_event() */
	struct {
		uint64_t seq;
		struct proto_event e;
	} events[WORLD_EVENTS];
	uint32_t n_events;
	uint32_t n_lost; /* LOST frames that came, and the group of the last one */
	uint64_t lost_seq;
	/* RESERVEs and COMMITs whose reply comes later, or came and was not taken:
	   world_reserve_reply(), world_commit_reply() */
	struct world_late {
		uint16_t op;
		uint64_t seq, lease;
		bool came;
		uint16_t status;
		uint32_t retry_after_us;
		uint8_t *body;
		uint32_t len;
	} late[WORLD_LATE];
	uint32_t n_late;
	uint64_t reserving; /* the lease of a RESERVE that is being answered */
};

struct world_pool {
	struct gpu_pool *pool;
	struct gpu_pool_info info;
	uint64_t *generations;
	struct world_store table; /* with world_config.keep */
	uint32_t n_slots, n_host;
	uint64_t slot_bytes; /* the pieces of all ranks, one behind the other */
	bool lost; /* its device is: the next POOL_CREATE of the group makes its slots anew */
};

struct world_config {
	uint64_t seed;
	struct prefixd_engine_config engine; /* alloc, boot, secret, naming key are filled in */
	struct gpu_sim_config sim;
	struct world_tiers_config tiers; /* engine.host_blocks and .redis follow them */
	bool record;
	bool no_verify;
	bool hold_pools; /* POOL_CREATE and _ADOPT are answered by world_pool_answer() only */
	bool hold_desks; /* DESK_CREATE likewise, by world_desk_answer(), */
	bool hold_takes; /* and TAKE by world_take_answer() */
	bool keep; /* there is a ledger, and the daemon may have several lives: world_life.h */
};

struct world {
	struct test_heap heap;
	struct prefixd_engine *engine;
	struct world_config config;
	struct gpu *gpu;
	struct world_pool pools[WORLD_GROUPS];
	struct {
		uint32_t group, n_slots, n_host, n_ranks;
		uint64_t slot_bytes, table_len; /* of a slot: the pieces of all ranks */
		bool adopt;
		bool coded;
	} wanted[WORLD_GROUPS]; /* pools asked for and not answered */
	uint32_t n_wanted;
	uint64_t now_ns;
	uint64_t rng;
	uint64_t n_steps;
	uint64_t n_exits, n_poisoned;
	uint64_t ret_n; /* of the last admin event */
	struct world_client clients[WORLD_CLIENTS];
	struct prefixd_tenant tenants[4];
	struct world_tiers *tiers; /* NULL: there are none */
	struct world_desks desks;
	struct world_life life;
	char *log;
	size_t log_len, log_cap;
};

/* Two tenants, "red" for uid 1000 and "blue" for uid 2000, 64 slots, no grace, defaults else. */
void world_config_init(struct world_config *config);
/* Return: 0, -ENOMEM when the engine cannot be made (the heap may be set to fail). */
radix_nodiscard int world_init(struct world *w, const struct world_config *config);
/* Ends everything and fails the test when memory is left. */
void world_deinit(struct world *w);

/* One event, its actions, and the checks.  The clock stands still. */
void world_step(struct world *w, struct prefixd_event *event);
/* Turns the clock; TIMER comes when a deadline passed, answers of the tiers when they are due. */
void world_advance(struct world *w, uint64_t ns);
/* When the engine or an answer is due next; UINT64_MAX: never. */
uint64_t world_next_due(const struct world *w);
/* Answers all POOL_CREATE and POOL_ADOPT that wait: with memory, or with a refusal. */
void world_pool_answer(struct world *w, bool ready);
/*
 * The group's device is lost: its slots are junk, what is under way from or to them fails, and the
 * engine is told.
 */
void world_pool_lost(struct world *w, uint32_t group);
uint64_t world_evict(struct world *w, uint32_t group, uint64_t n);
uint64_t world_flush(struct world *w, uint32_t ns);
void world_drain(struct world *w, uint64_t deadline_ns);
struct prefixd_counters world_counters(const struct world *w);
struct radix_index *world_index(const struct world *w, uint32_t group);
void world_stats(const struct world *w, uint32_t group, struct radix_stats *ret);
/* Fails the test with the seed, the step and the end of the transcript. */
__attribute__((format(printf, 2, 3), noreturn)) void world_fail(struct world *w, const char *fmt,
								...);
#define world_check(w, x)                                                                  \
	do {                                                                               \
		if (!(x))                                                                  \
			world_fail((w), "%s:%d: not so: %s", __FILE_NAME__, __LINE__, #x); \
	} while (0)

/* ---- workers --------------------------------------------------------------------------------- */

/* A connection of process `pid`; no HELLO yet. */
struct world_client *world_connect(struct world *w, uint32_t pid, uint32_t uid, bool admin);
/* The same for any process: a number may be used again by another one. */
struct world_client *world_connect_as(struct world *w, const struct prefixd_peer *peer,
				      const struct proto_id *instance);
/* A connection with HELLO, which must succeed. */
struct world_client *world_worker(struct world *w, uint32_t pid, uint32_t uid);
void world_eof(struct world_client *c);  /* the socket ends, the process lives */
void world_gone(struct world_client *c); /* the process ends; other sessions of it are not told */
/* Every session of the process, sockets first or last by the seed; the daemon may be down. */
void world_kill(struct world *w, uint32_t pid);

/* The same of one that began at another time: its number may be another one's by now. */
void world_kill_as(struct world *w, uint32_t pid, uint64_t start_time);

/* What a right HELLO of this client says. */
struct proto_hello_req world_hello_req(const struct world_client *c);
/* A namespace that every check accepts: 4 tokens of 16 bytes per block; change it to taste. */
struct proto_open_req world_open_req(const char *model);
struct proto_span world_text(const char *text);

/* Sends any frame as it is; the reply is in c->h and c->body.  -ECONNRESET: the daemon is down, or
   was killed before it answered. */
int world_raw(struct world_client *c, uint16_t op, const void *body, uint32_t len);
/* The same request again, as it was encoded last, with a new seq. */
int world_again(struct world_client *c);

/* One function per operation: status, 0 with *ret, whose spans live until the next call. */
#define WORLD_CALLS(X)                                        \
	X(hello, HELLO, hello_req, hello_rep)                 \
	X(open, OPEN, open_req, open_rep)                     \
	X(match, MATCH, match_req, match_rep)                 \
	X(extend, EXTEND, extend_req, match_rep)              \
	X(reserve, RESERVE, reserve_req, reserve_rep)         \
	X(commit, COMMIT, commit_req, commit_rep)             \
	X(release, RELEASE, release_req, release_rep)         \
	X(probe, PROBE, probe_req, probe_rep)                 \
	X(explain, EXPLAIN, explain_req, explain_rep)         \
	X(report, REPORT, report_req, empty)                  \
	X(subscribe, SUBSCRIBE, subscribe_req, subscribe_rep) \
	X(quiesced, QUIESCED, quiesced_req, quiesced_rep)     \
	X(wait, WAIT, wait_req, wait_rep)                     \
	X(prefetch, PREFETCH, prefetch_req, prefetch_rep)     \
	X(ping, PING, empty, empty)

#define X(name, OP, req, rep)                                                 \
	int world_##name(struct world_client *c, const struct proto_##req *m, \
			 struct proto_##rep *ret);
WORLD_CALLS(X)
#undef X

/* The oldest EVENT of this worker, with the seq of its WAIT; false: none came. */
bool world_event(struct world_client *c, uint64_t *ret_seq, struct proto_event *ret);

/*
 * In a world with tiers RESERVE may return -EINPROGRESS; the reply to request `seq` comes later.
 * Its status, or -EINPROGRESS.  *ret lives until the next call.
 */
int world_reserve_reply(struct world_client *c, uint64_t seq, struct proto_reserve_rep *ret);
/* RESERVE, and the clock is turned until it is answered. */
int world_reserve_wait(struct world_client *c, const struct proto_reserve_req *m,
		       struct proto_reserve_rep *ret);

/* The reply of a worker whose OPEN waited for its pool. */
int world_open_reply(struct world_client *c, struct proto_open_rep *ret);

/* ---- the device ------------------------------------------------------------------------------ */

/* Copies of one block between the caller and a slot; complete when they return. */
void world_write(struct world *w, uint32_t group, uint32_t slot, const void *bytes, uint32_t len);
void world_read(struct world *w, uint32_t group, uint32_t slot, void *bytes, uint32_t len);
