/*
 * server.c - the loop around the engine.
 *
 * Every callback turns what happened into one event, lets the engine decide, and carries the
 * actions out: bytes are queued on connections, which write once per turn.  Actions point into the
 * engine, so nothing may step it again until all of them are done; what a helper answers (tiers.c)
 * comes in a turn of its own.
 */
#include "daemon/server_internal.h"

#include "daemon/budget.h"
#include "daemon/http.h"
#include "daemon/inherit.h"
#include "daemon/keep.h"
#include "daemon/log.h"
#include "daemon/restore.h"
#include "daemon/tiers.h"

#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

const char *prefixd_version(void)
{
	return PREFIXD_VERSION_TEXT;
}

uint64_t prefixd_now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t prefixd_wall_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Processor time of this thread. */
static uint64_t thread_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t prefixd_server_mark(struct prefixd_server *s)
{
	uint64_t now = prefixd_now_ns();

	if (s->turn_ns == 0)
		s->turn_ns = now;
	return now;
}

int prefixd_random(void *ret, size_t len)
{
	uint8_t *p = ret;

	while (len > 0) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

/* ---- actions --------------------------------------------------------------------------------- */

static void capture_add(struct prefixd_capture *cap, const uint8_t *bytes, size_t len)
{
	if (cap->cap - cap->len < len) {
		uint8_t *p = realloc(cap->bytes, cap->len + len);

		if (!p)
			return; /* whoever waits for the reply finds it short */
		cap->bytes = p;
		cap->cap = cap->len + len;
	}
	memcpy(cap->bytes + cap->len, bytes, len);
	cap->len += len;
}

static void act_send(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_client *c = prefixd_client_find(s, a->session);
	int fds[PREFIXD_POOL_FDS_MAX + 2], fd;
	uint32_t n_fds = 0;

	if (!c)
		return;
	if (c->internal) {
		capture_add(&s->capture, a->u.send.bytes, a->u.send.len);
		return;
	}
	if (!c->connected)
		return;
	if (a->u.send.with_fds)
		n_fds = prefixd_pools_fds(&s->pools, a->group, a->u.send.rank, a->u.send.read_only,
					  fds);
	if (a->u.send.with_desk)
		fds[n_fds++] = prefixd_pools_desk_fd(&s->pools, a->u.send.desk);
	if (a->u.send.with_words) {
		fd = prefixd_words_fd(&c->words);
		if (fd < 0) {
			prefixd_error("session %u gets no words, and is closed: %s", c->session,
				      strerror(-fd));
			prefixd_conn_drop(&c->conn, fd == -ENOMEM ? PREFIXD_CLOSED_NO_MEMORY
								  : PREFIXD_CLOSED_NO_DESCRIPTOR);
			return;
		}
		fds[n_fds++] = fd;
	}
	prefixd_conn_send(&c->conn, a->u.send.bytes, a->u.send.len, fds, n_fds);
	c->conn.tell |= a->u.send.tell_ready;
}

static void act_close(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_client *c = prefixd_client_find(s, a->session);

	if (!c)
		return;
	c->ended = true; /* the engine counts the socket as over from here on */
	if (c->connected)
		prefixd_conn_close(&c->conn, PREFIXD_CLOSED_REFUSED);
}

static void act_exit(struct prefixd_server *s)
{
	if (s->exiting)
		return;
	s->exiting = true;
	s->exit_code = PREFIXD_EXIT_DRAINED;
	(void)event_base_loopexit(s->base,
				  NULL); /* after this round; without memory: at the next */
}

static void server_act(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_client *c;

	switch (a->type) {
	case PREFIXD_ACTION_SEND:
		act_send(s, a);
		return;
	case PREFIXD_ACTION_CLOSE:
		act_close(s, a);
		return;
	case PREFIXD_ACTION_FORGET:
		c = prefixd_client_find(s, a->session);
		if (c)
			prefixd_client_forget(c);
		return;
	case PREFIXD_ACTION_POISON:
		prefixd_pools_poison(&s->pools, a->group, a->u.poison);
		return;
	case PREFIXD_ACTION_LOG:
		prefixd_log_text(a->u.log.level, a->u.log.text);
		return;
	case PREFIXD_ACTION_WATCH:
		prefixd_client_watch(s, a);
		return;
	case PREFIXD_ACTION_POOL_CREATE:
	case PREFIXD_ACTION_POOL_ADOPT:
	case PREFIXD_ACTION_POOL_DESTROY:
	case PREFIXD_ACTION_VERIFY:
	case PREFIXD_ACTION_COPY:
	case PREFIXD_ACTION_STORE:
	case PREFIXD_ACTION_FETCH:
	case PREFIXD_ACTION_NAMES:
	case PREFIXD_ACTION_LOOK:
	case PREFIXD_ACTION_EPOCH:
	case PREFIXD_ACTION_DESK_CREATE:
	case PREFIXD_ACTION_DESK_DESTROY:
	case PREFIXD_ACTION_TAKE:
		prefixd_tiers_act(s, a);
		return;
	case PREFIXD_ACTION_EXIT:
		act_exit(s);
		return;
	}
}

/* Arms the one timer for the engine's next deadline. */
static void server_arm(struct prefixd_server *s)
{
	uint64_t deadline = prefixd_engine_deadline(s->engine), now, left;
	struct timeval tv;

	if (deadline == s->armed_ns)
		return;
	s->armed_ns = deadline;
	if (deadline == UINT64_MAX) {
		(void)event_del(s->timer_ev); /* a timer of this base; cannot fail */
		return;
	}
	now = prefixd_now_ns();
	left = deadline > now ? deadline - now : 0;
	left += 999; /* not before it is due */
	tv.tv_sec = (time_t)radix_min_u64(left / 1000000000u, 86400);
	tv.tv_usec = (suseconds_t)(left % 1000000000u / 1000u);
	if (event_add(s->timer_ev, &tv) < 0)
		prefixd_error("no memory for a timer; deadlines may pass unnoticed");
}

void prefixd_server_step(struct prefixd_server *s, struct prefixd_event *event)
{
	struct prefixd_actions actions;
	uint64_t now = prefixd_server_mark(s);

	radix_assert(!s->stepping);
	s->stepping = true;
	actions = prefixd_engine_step(s->engine, event, now);
	for (uint32_t i = 0; i < actions.n; i++)
		server_act(s, &actions.v[i]);
	s->stepping = false;
	prefixd_tiers_after(s);
	prefixd_restore_look(s);
	s->step_ns = now;
	server_arm(s);
}

void prefixd_server_settle(struct prefixd_server *s)
{
	prefixd_conns_turn(&s->conns);
	prefixd_clients_reap(s);
}

/* ---- timer and signals ----------------------------------------------------------------------- */

static void server_on_timer(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_server *s = ctx;
	struct prefixd_event event = { .type = PREFIXD_EVENT_TIMER };

	s->armed_ns = UINT64_MAX; /* it has fired, whatever comes next must be armed anew */
	if (prefixd_engine_deadline(s->engine) <= prefixd_now_ns())
		prefixd_server_step(s, &event);
	else
		server_arm(s); /* the timer's longest step was shorter than the wait */
	prefixd_server_settle(s);
}

void prefixd_server_drain(struct prefixd_server *s, uint64_t timeout_ns, const char *why)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_DRAIN };

	if (s->draining)
		return;
	s->draining = true;
	prefixd_info("draining for at most %llu ms: %s", (unsigned long long)(timeout_ns / 1000000),
		     why);
	/* New workers see at once that nobody serves; the admin socket answers to the end. */
	prefixd_listener_stop(&s->worker);
	prefixd_notify_stopping(&s->notify, timeout_ns);
	event.u.drain.deadline_ns = prefixd_now_ns() + timeout_ns;
	prefixd_server_step(s, &event);
}

static void server_on_signal(evutil_socket_t signal, short what, void *ctx)
{
	struct prefixd_server *s = ctx;

	(void)prefixd_server_mark(s); /* what follows may take a while */
	switch ((int)signal) {
	case SIGHUP:
		prefixd_server_reload(s);
		break;
	case SIGUSR1:
		prefixd_admin_log_counters(s);
		break;
	case SIGUSR2:
		prefixd_upgrade_begin(s);
		break;
	default:
		s->give_up |= signal == SIGINT; /* somebody sits there, and means it */
		if (s->draining && !s->exiting) {
			prefixd_warn("second signal: stopping without waiting for leases");
			s->exit_code = PREFIXD_EXIT_STOPPED;
			s->exiting = true;
			(void)event_base_loopbreak(s->base); /* the base lives; cannot fail */
			return;
		}
		prefixd_server_drain(s, s->options->drain_timeout,
				     signal == SIGTERM ? "SIGTERM" : "SIGINT");
	}
	prefixd_server_settle(s);
}

static int signals_init(struct prefixd_server *s)
{
	static const int numbers[PREFIXD_N_SIGNALS] = PREFIXD_SIGNALS;

	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
		return -errno;
	for (size_t i = 0; i < PREFIXD_N_SIGNALS; i++) {
		s->signal_ev[i] = evsignal_new(s->base, numbers[i], server_on_signal, s);
		if (!s->signal_ev[i] || event_add(s->signal_ev[i], NULL) < 0)
			return -ENOMEM;
	}
	prefixd_upgrade_signals();
	return 0;
}

/* ---- start ----------------------------------------------------------------------------------- */

static void libevent_log(int severity, const char *text)
{
	char line[512];

	snprintf(line, sizeof(line), "libevent: %s", text);
	prefixd_log_text(severity == EVENT_LOG_ERR    ? PREFIXD_LOG_ERROR
			 : severity == EVENT_LOG_WARN ? PREFIXD_LOG_WARN
						      : PREFIXD_LOG_DEBUG,
			 line);
}

static void libevent_fatal(int err)
{
	prefixd_error("libevent cannot go on (%d)", err);
	abort();
}

static int engine_start(struct prefixd_server *s, char *why, size_t why_len)
{
	const struct prefixd_options *o = s->options;
	struct prefixd_engine_config config;
	int r;

	prefixd_engine_config_init(&config);
	config.alloc = &s->memory.alloc;
	config.boot = s->boot;
	config.tenants = s->tenants;
	config.n_tenants = s->n_tenants;
	prefixd_options_limits(o, &config.limits);
	config.pool_blocks = o->pool_blocks == PREFIXD_AUTO ? 0 : (uint32_t)o->pool_blocks;
	config.pool_bytes = prefixd_budget_pools(o);
	config.grace_ns = s->pools.ops->grace_ns;
	config.device = s->pools.ops->kind == GPU_KIND_CUDA ? PROTO_DEVICE_CUDA
							    : PROTO_DEVICE_MEMORY;
	config.watches_processes = true; /* where a process cannot be, its end is its socket's */
	config.version = "prefixd " PREFIXD_VERSION_TEXT;
	config.event_ring = (uint32_t)o->event_ring;
	config.max_ranks = PREFIXD_RANKS_MAX;
	prefixd_tiers_config(o, &config);
	r = prefixd_random(config.secret, sizeof(config.secret));
	if (r < 0) {
		snprintf(why, why_len, "no random bytes: %s", strerror(-r));
		return r;
	}
	r = prefixd_naming_key(o, config.naming_key, why, why_len);
	if (r == 0)
		r = prefixd_restore_start(s, &config, why, why_len);
	if (r < 0) {
		explicit_bzero(&config, sizeof(config));
		return r;
	}
	r = prefixd_engine_new(&s->engine, &config);
	explicit_bzero(&config, sizeof(config));
	if (r < 0)
		snprintf(why, why_len, "cannot make the engine: %s", strerror(-r));
	return r;
}

static int loop_start(struct prefixd_server *s, char *why, size_t why_len)
{
	struct event_config *cfg = event_config_new();
	int r = -ENOMEM;

	snprintf(why, why_len, "cannot make the event loop: out of memory");
	event_set_log_callback(libevent_log);
	event_set_fatal_callback(libevent_fatal);
	if (cfg && event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK) == 0)
		s->base = event_base_new_with_config(cfg);
	if (cfg)
		event_config_free(cfg);
	if (!s->base)
		return r;
	s->timer_ev = evtimer_new(s->base, server_on_timer, s);
	if (!s->timer_ev)
		return r;
	r = prefixd_conns_init(&s->conns, s->base);
	s->conns.slow_ns = &s->options->slow_reader_timeout;
	prefixd_parking_init(&s->parking, s->base, &prefixd_client_words, s);
	return r < 0 ? r : signals_init(s);
}

/* Every worker costs two descriptors (socket, process), every pool three. */
static void descriptors_raise(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) < 0 || rl.rlim_cur >= rl.rlim_max)
		return;
	rl.rlim_cur = rl.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &rl) < 0)
		prefixd_debug("cannot raise the limit of descriptors: %m");
}

static void log_line(void *ctx, const char *text)
{
	prefixd_log_text(PREFIXD_LOG_INFO, text);
}

static int server_start(struct prefixd_server *s, char *why, size_t why_len)
{
	const struct prefixd_options *o = s->options;
	int r;

	prefixd_log_set_level((enum prefixd_log_level)o->log_level);
	if (o->unknown_env[0])
		prefixd_warn("%s in the environment means nothing to prefixd; ignoring it",
			     o->unknown_env);
	descriptors_raise();
	prefixd_memory_init(&s->memory, o->huge_pages == 0);
	prefixd_tenants_merge(s->tenants, &s->n_tenants, o);
	r = prefixd_random(&s->boot, sizeof(s->boot));
	if (r < 0) {
		snprintf(why, why_len, "no random bytes: %s", strerror(-r));
		return r;
	}
	r = prefixd_budget_folder_check(o, why, why_len);
	if (r < 0)
		return r;
	r = loop_start(s, why, why_len);
	if (r < 0)
		return r;
	r = prefixd_pools_init(&s->pools, o->device, why, why_len);
	if (r < 0)
		return r;
	prefixd_info("device %s: %s", s->pools.ops->name, why);
	r = prefixd_notify_init(&s->notify, s->base, why, why_len);
	if (r < 0)
		return r;
	/* Before the keeper is asked, who clears the environment of them. */
	prefixd_inherit_add(o->socket, prefixd_keep_listener("prefixd"));
	prefixd_inherit_add(o->admin_socket, prefixd_keep_listener("prefixd-admin"));
	s->handed = prefixd_inherit_kept();
	/* The admin socket first, since its lock also guards the naming key beside it. */
	r = prefixd_listener_init(&s->admin, s->base, o->admin_socket, 0600,
				  prefixd_client_accept_admin, s, why, why_len);
	if (r < 0)
		return r;
	s->admin.refused = &s->measures.rejected_no_descriptor;
	r = engine_start(s, why, why_len);
	if (r == 0)
		r = prefixd_tiers_start(s, why, why_len);
	if (r == 0)
		r = prefixd_tiers_restore(s, why, why_len);
	if (r < 0)
		return r;
	prefixd_restore_go(s);
	r = prefixd_pages_start(s, why, why_len);
	if (r < 0)
		return r;
	r = prefixd_listener_init(&s->worker, s->base, o->socket, (mode_t)o->socket_mode,
				  prefixd_client_accept_worker, s, why, why_len);
	s->worker.refused = &s->measures.rejected_no_descriptor;
	prefixd_inherit_end();
	s->handed = NULL;
	return r;
}

int prefixd_server_new(struct prefixd_server **ret_server, struct prefixd_options *options,
		       int argc, char *const *argv, char *const *envp, char *why, size_t why_len)
{
	struct prefixd_server *s = calloc(1, sizeof(*s));
	int r;

	if (!s) {
		snprintf(why, why_len, "out of memory");
		prefixd_options_free(options);
		return -ENOMEM;
	}
	s->options = options;
	s->argc = argc;
	s->argv = argv;
	s->envp = envp;
	s->armed_ns = UINT64_MAX;
	s->started_ns = prefixd_now_ns();
	s->started_wall_ns = s->reload_wall_ns = prefixd_wall_ns();
	radix_list_init(&s->graveyard);
	s->notify.fd = -1;
	s->parking.timer = -1;
	r = prefixd_upgrade_init(s);
	if (r < 0)
		snprintf(why, why_len, "out of memory");
	else
		r = server_start(s, why, why_len);
	if (r < 0) {
		prefixd_server_free(s);
		return r;
	}
	*ret_server = s;
	return 0;
}

/* How long others had to wait for this turn, and how much of that was its own work. */
static void turn_measure(struct prefixd_server *s)
{
	uint64_t cpu = thread_ns();

	prefixd_histogram_add(&s->measures.turn, prefixd_now_ns() - s->turn_ns);
	prefixd_histogram_add(&s->measures.turn_cpu, cpu - s->cpu_ns);
	s->cpu_ns = cpu;
}

/*
 * Turn by turn, so that each can be timed: from its first decision to its end, where the next wait
 * begins.  libevent 2.1 tells nobody when its wait is over; reading the first socket is left out.
 */
static int loop_run(struct prefixd_server *s)
{
	int r;

	s->cpu_ns = thread_ns();
	do {
		s->turn_ns = 0;
		r = event_base_loop(s->base, EVLOOP_ONCE);
		if (s->turn_ns != 0)
			turn_measure(s);
	} while (r == 0 && !event_base_got_exit(s->base) && !event_base_got_break(s->base));
	return r;
}

int prefixd_server_run(struct prefixd_server *s)
{
	const struct prefixd_options *o = s->options;

	char pools[160];

	prefixd_budget_pools_print(o, pools, sizeof(pools));
	prefixd_server_memory_table(o, log_line, NULL);
	prefixd_info("ready: socket %s, admin socket %s, device %s, pools %s, version %s",
		     o->socket, o->admin_socket, s->pools.ops->name, pools, prefixd_version());
	prefixd_notify_ready(&s->notify, NULL);
	if (loop_run(s) < 0) {
		prefixd_error("the event loop failed");
		return PREFIXD_EXIT_FAILED;
	}
	if (s->exit_code == PREFIXD_EXIT_DRAINED)
		prefixd_info("drained, leaving");
	return s->exit_code;
}

struct prefixd_server *prefixd_server_free(struct prefixd_server *s)
{
	if (!s)
		return NULL;
	s->http = prefixd_http_free(s->http);
	prefixd_listener_deinit(&s->worker);
	prefixd_listener_deinit(&s->admin);
	prefixd_clients_free(s);
	/* Helpers end before what they work on: threads, then the device, then its memory. */
	prefixd_tiers_stop(s);
	s->engine = prefixd_engine_free(s->engine);
	if (prefixd_restore_keep(s) && !s->give_up && s->pools.devices.n > 0)
		gpu_leave_memory(s->pools.devices.v[0]); /* of all: only sim has to know */
	prefixd_pools_deinit(&s->pools);
	prefixd_tiers_free(s);
	prefixd_restore_stop(s, s->give_up);
	prefixd_upgrade_free(s);
	prefixd_notify_deinit(&s->notify);
	for (size_t i = 0; i < PREFIXD_N_SIGNALS; i++)
		if (s->signal_ev[i])
			event_free(s->signal_ev[i]);
	if (s->timer_ev)
		event_free(s->timer_ev);
	prefixd_conns_deinit(&s->conns);
	prefixd_parking_deinit(&s->parking);
	if (s->base)
		event_base_free(s->base);
	if (s->memory.n_live > 0)
		prefixd_error("%llu pieces of the engine's memory were not given back",
			      (unsigned long long)s->memory.n_live);
	free(s->capture.bytes);
	prefixd_options_free(s->options);
	free(s);
	return NULL;
}
