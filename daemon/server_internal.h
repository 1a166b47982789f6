/*
 * server_internal.h - shared by the server's files: loop, clients, signals, admin operations.
 *
 * Who owns what.  The server owns its clients; a client is one session number and lives until the
 * engine has said FORGET and its socket is closed.  Nothing frees a client while a callback of it
 * may be on the stack: it goes to `graveyard`, which the outermost callbacks empty.
 */
#pragma once

#include "daemon/conn.h"
#include "daemon/listener.h"
#include "daemon/memory.h"
#include "daemon/metrics.h"
#include "daemon/notify.h"
#include "daemon/pools.h"
#include "daemon/server.h"
#include "daemon/words.h"

struct event;
struct event_base;

struct prefixd_client {
	struct prefixd_server *server;
	struct radix_list link; /* the graveyard */
	uint32_t session;       /* position in server->clients */
	struct prefixd_peer peer;
	struct prefixd_conn conn;
	struct prefixd_words words;
	int pidfd; /* -1: the process cannot be watched */
	struct event *pid_ev, *hello_ev;
	bool connected; /* conn is in use */
	bool ended;     /* the engine knows that the socket is over */
	bool gone;      /* the engine knows that the process is over */
	bool forgotten; /* the engine is done with this number */
	bool internal;  /* no socket: the shell itself asks */
};

/* Replies to an internal client land here. */
struct prefixd_capture {
	uint8_t *bytes;
	size_t len, cap;
};

/* Those that mean something to the daemon. */
#define PREFIXD_SIGNALS                                    \
	{                                                  \
		SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, \
	}
#define PREFIXD_N_SIGNALS 5

struct prefixd_server {
	struct prefixd_options *options;
	int argc;
	char *const *argv;
	char *const *envp;

	struct event_base *base;
	struct prefixd_conns conns;
	struct prefixd_parking parking;
	struct prefixd_listener worker, admin;
	struct prefixd_memory memory;
	struct prefixd_pools pools;
	struct prefixd_engine *engine;
	struct prefixd_tiers *tiers;     /* the helpers; tiers.h */
	struct prefixd_restore *restore; /* what an earlier life left; restore.h */
	const char *handed; /* what a program before this one in this process kept; NULL: none */
	struct event *timer_ev, *signal_ev[PREFIXD_N_SIGNALS];
	uint64_t armed_ns; /* the deadline that timer_ev stands for */
	bool stepping;

	struct prefixd_client **clients; /* by session number; NULL: free */
	uint32_t n_clients;              /* places */
	struct radix_list graveyard;
	struct prefixd_capture capture;
	struct prefixd_http *http; /* NULL: not served */
	struct prefixd_notify notify;
	struct prefixd_upgrade *upgrade; /* upgrade.c */
	struct prefixd_measures measures;
	uint64_t turn_ns; /* when this turn of the loop began to decide; 0: it has not */
	uint64_t cpu_ns;  /* processor time of this thread up to the end of the last turn */
	uint64_t step_ns; /* when the last outermost step began */

	/* Names by id; an id keeps its name for the daemon's life, so a reload only appends. */
	struct prefixd_tenant tenants[PREFIXD_TENANTS_MAX];
	uint32_t n_tenants;

	struct proto_id boot;
	uint64_t started_ns, started_wall_ns;
	uint64_t reload_wall_ns; /* when settings were last taken over */
	bool reload_failed;      /* the last reload was refused */
	bool draining, exiting;
	bool give_up; /* the memory ends with this daemon, whoever keeps it */
	bool hearing; /* client.c is at other ends, for a QUIESCED */
	int exit_code;
};

/* server.c */
uint64_t prefixd_now_ns(void);
uint64_t prefixd_wall_ns(void); /* since 1970 */
/* The time; the first one of a turn is taken for its beginning. */
uint64_t prefixd_server_mark(struct prefixd_server *s);
/* Gives an event to the engine and carries out what it answers. */
void prefixd_server_step(struct prefixd_server *s, struct prefixd_event *event);
void prefixd_server_drain(struct prefixd_server *s, uint64_t timeout_ns, const char *why);
/* End of an outermost callback: write, close, free. */
void prefixd_server_settle(struct prefixd_server *s);
/* Return: 0 with random bytes, negative errno. */
radix_nodiscard int prefixd_random(void *ret, size_t len);

/* client.c */
void prefixd_client_accept_worker(void *server, int fd);
void prefixd_client_accept_admin(void *server, int fd);
struct prefixd_client *prefixd_client_find(struct prefixd_server *s, uint32_t session);
void prefixd_client_forget(struct prefixd_client *c);
/* WATCH: a session of an earlier life, without a socket. */
void prefixd_client_watch(struct prefixd_server *s, const struct prefixd_action *a);
/* Its process is not there (any more); any other turn of the loop. */
void prefixd_client_gone(struct prefixd_server *s, uint32_t session);
/* What parked frames of its sessions want (words.h). */
extern const struct prefixd_words_ops prefixd_client_words;
void prefixd_clients_reap(struct prefixd_server *s);
void prefixd_clients_free(struct prefixd_server *s);
/* A session of the shell's own, as an admin peer; NULL without memory.  Ends with _internal_end. */
struct prefixd_client *prefixd_client_internal(struct prefixd_server *s);
void prefixd_client_internal_end(struct prefixd_client *c);

/* upgrade.c: another program in this process (SIGUSR2) */
radix_nodiscard int prefixd_upgrade_init(struct prefixd_server *s);
void prefixd_upgrade_free(struct prefixd_server *s);
/* A later turn goes on with it; whatever fails, the daemon serves on and says why. */
void prefixd_upgrade_begin(struct prefixd_server *s);
/* Signals have their handlers: those that came since exec are handled. */
void prefixd_upgrade_signals(void);

/* reload.c */
void prefixd_server_reload(struct prefixd_server *s);
/* Takes over the tenants of o: known names keep their ids, names that are gone lose their uids. */
void prefixd_tenants_merge(struct prefixd_tenant *tenants, uint32_t *n_tenants,
			   const struct prefixd_options *o);

/* http_pages.c */
/* Serves the pages if the options say so.  Return: 0; negative errno with a sentence in `why`. */
radix_nodiscard int prefixd_pages_start(struct prefixd_server *s, char *why, size_t why_len);

/* naming_key.c */
/* Return: 0; negative errno with a sentence in `why`. */
radix_nodiscard int prefixd_naming_key(const struct prefixd_options *o, uint8_t ret_key[32],
				       char *why, size_t why_len);

/* admin.c: one ADMIN frame of an admin client. */
void prefixd_admin_frame(struct prefixd_client *c, const struct proto_header *header,
			 const void *body);
/* Counters as log lines (SIGUSR1). */
void prefixd_admin_log_counters(struct prefixd_server *s);
