/*
 * redis_link.c - the life of the connection, and what happens with time.
 *
 * The breaker and the connection are one thing: CLOSED is a connection whose PING was answered,
 * HALF_OPEN one that is being made and asked, OPEN none.  So a connection that timed out is never
 * used again, and no late reply of it can be taken for another's.
 *
 * Two clocks end what does not end by itself.  A request has its own deadline; when that passes it
 * is answered, and counts as one failure.  The connection stalls when a reply is owed and no byte
 * came for config.deadline_ns, or none is owed and no byte went: then it is given up at once.  A
 * Redis that is busy with many large blocks moves bytes and is left alone.
 */
#include "daemon/redis_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define EPOCHS_NS 1000000000ull

static const char *const error_texts[] = {
#define X(sym, text) text,
	PREFIXD_REDIS_ERRORS(X)
#undef X
};

static struct timeval to_timeval(uint64_t ns)
{
	return (struct timeval){ .tv_sec = (time_t)(ns / 1000000000),
				 .tv_usec = (suseconds_t)(ns / 1000 % 1000000) };
}

/* ---- what the loop is told ------------------------------------------------------------------- */

/*
 * STATE, with lines for the loop's log in its data: '<' and the digit of a level before each.  It
 * stays due until there is memory for it.
 */
static void tell_state(struct prefixd_redis *r)
{
	struct prefixd_redis_message *m = calloc(1, sizeof(*m) + 640);
	char *text;
	int n;

	if (!m)
		return;
	text = (char *)m->data;
	m->message.kind = PREFIXD_REDIS_STATE;
	m->up = r->up;
	if (r->up) {
		char policy[32];

		memcpy(policy, r->counts.policy, sizeof(policy));
		n = snprintf(text, 300, "<%dredis: %s is up\n", PREFIXD_LOG_INFO, r->place);
		if (!r->warned_policy && !strcmp(policy, "noeviction")) {
			r->warned_policy = true;
			snprintf(text + n, 300,
				 "<%dredis: maxmemory-policy is noeviction, so that a full Redis "
				 "refuses new blocks instead of dropping old ones; set "
				 "allkeys-lru\n",
				 PREFIXD_LOG_WARN);
		}
	} else {
		snprintf(text, 600, "<%dredis: %s is down: %s; trying again\n", PREFIXD_LOG_WARN,
			 r->place, r->why);
	}
	r->told_up = r->up;
	r->state_due = false;
	prefixd_redis_post(r, m);
}

static void set_state(struct prefixd_redis *r, bool up)
{
	r->up = up;
	r->state_due = true;
	tell_state(r);
}

static void show_breaker(struct prefixd_redis *r)
{
	atomic_store_explicit(&r->counts.breaker, (uint32_t)r->breaker.state, memory_order_relaxed);
	atomic_store_explicit(&r->counts.connected, r->breaker.state == PREFIXD_BREAKER_CLOSED,
			      memory_order_relaxed);
}

/* ---- failures -------------------------------------------------------------------------------- */

void prefixd_redis_break(struct prefixd_redis *r, enum prefixd_redis_error error)
{
	if (r->broken)
		return;
	prefixd_count(&r->counts.errors[error], 1);
	r->broken = true;
	r->error = error;
}

void prefixd_redis_failed(struct prefixd_redis *r, enum prefixd_redis_error error)
{
	if (r->broken)
		return;
	if (prefixd_breaker_failed(&r->breaker))
		prefixd_redis_break(r, error);
	else
		prefixd_count(&r->counts.errors[error], 1);
}

static void wait_for_retry(struct prefixd_redis *r)
{
	uint64_t now = prefixd_redis_now();
	struct timeval tv = to_timeval(r->breaker.retry_ns > now ? r->breaker.retry_ns - now : 0);

	/* When it cannot be added the tick looks after it. */
	(void)evtimer_add(r->retry, &tv);
}

/* No connection from here on, until the breaker says so. */
static void link_down(struct prefixd_redis *r)
{
	bool was_up;

	snprintf(r->why, sizeof(r->why), "%s", error_texts[r->error]);
	(void)evtimer_del(r->connect_limit);
	prefixd_line_close(r);
	was_up = prefixd_breaker_open(&r->breaker, prefixd_redis_now());
	r->broken = false;
	show_breaker(r);
	/* Before the answers: whoever gets one knows that it is of no use to ask again. */
	if (was_up) {
		prefixd_count(&r->counts.breaker_opened, 1);
		set_state(r, false);
	}
	prefixd_ops_fail_all(r);
	prefixd_epochs_lost(r);
	wait_for_retry(r);
}

void prefixd_redis_settle(struct prefixd_redis *r)
{
	if (r->state_due)
		tell_state(r);
	prefixd_epochs_settle(r);
	if (!r->broken)
		prefixd_line_pump(r);
	if (r->broken)
		link_down(r);
	prefixd_redis_post_all(r);
}

/* ---- probing --------------------------------------------------------------------------------- */

static int send_words(struct prefixd_redis *r, enum prefixd_redis_command_kind kind,
		      const struct prefixd_redis_word *words, uint32_t n)
{
	struct prefixd_redis_command *c = prefixd_command_new(r, kind);

	if (!c)
		return -ENOMEM;
	if (prefixd_command_words(c, words, n) < 0) {
		prefixd_command_free(c);
		return -ENOMEM;
	}
	prefixd_line_send(r, c);
	return 0;
}

void prefixd_link_connected(struct prefixd_redis *r)
{
	const struct prefixd_redis_config *config = &r->config;
	struct prefixd_redis_word auth[3] = { { "AUTH", 4 } };
	uint32_t n = 1;
	int ret = 0;

	prefixd_count(&r->counts.connects, 1);
	if (config->user[0])
		auth[n++] = (struct prefixd_redis_word){ config->user, strlen(config->user) };
	if (config->user[0] || config->password[0])
		auth[n++] = (struct prefixd_redis_word){ config->password,
							 strlen(config->password) };
	if (n > 1)
		ret = send_words(r, PREFIXD_COMMAND_AUTH, auth, n);
	if (ret == 0)
		ret = send_words(r, PREFIXD_COMMAND_SETNAME,
				 (struct prefixd_redis_word[]){
					 { "CLIENT", 6 }, { "SETNAME", 7 }, { "prefixd", 7 } },
				 3);
	/* Before PING: when that is answered, what INFO said is known. */
	if (ret == 0)
		ret = send_words(r, PREFIXD_COMMAND_INFO,
				 (struct prefixd_redis_word[]){ { "INFO", 4 }, { "memory", 6 } },
				 2);
	if (ret == 0)
		ret = send_words(r, PREFIXD_COMMAND_PING,
				 (struct prefixd_redis_word[]){ { "PING", 4 } }, 1);
	if (ret < 0)
		prefixd_redis_break(r, PREFIXD_REDIS_ERROR_OTHER);
}

/* The line of INFO that names the policy, as four words that anyone may read. */
static void learn_policy(struct prefixd_redis *r, const char *text, size_t len)
{
	static const char name[] = "maxmemory_policy:";
	const char *p = memmem(text, len, name, sizeof(name) - 1);
	char policy[32] = { 0 };
	uint64_t words[4];

	if (p) {
		p += sizeof(name) - 1;
		for (size_t i = 0; i < sizeof(policy) - 1 && p<text + len && * p> ' ' && *p < 127;
		     i++)
			policy[i] = *p++;
	}
	memcpy(words, policy, sizeof(words));
	for (int i = 0; i < 4; i++)
		prefixd_gauge(&r->counts.policy[i], words[i]);
}

static void link_up(struct prefixd_redis *r)
{
	(void)evtimer_del(r->connect_limit);
	prefixd_breaker_close(&r->breaker, prefixd_redis_now());
	prefixd_count(&r->counts.breaker_closed, 1);
	r->hold_ns = r->hold_backoff_ns = 0;
	show_breaker(r);
	set_state(r, true);
	prefixd_epochs_ask(r, prefixd_redis_now());
}

bool prefixd_link_reply(struct prefixd_redis *r, struct prefixd_redis_command *c,
			const struct prefixd_reply *reply)
{
	bool error = reply->kind == PREFIXD_REPLY_ERROR;

	if (c->kind == PREFIXD_COMMAND_INFO && reply->kind == PREFIXD_REPLY_STRING)
		learn_policy(r, reply->text, reply->len);
	if (c->kind == PREFIXD_COMMAND_SETNAME || c->kind == PREFIXD_COMMAND_INFO)
		return true; /* it works without */
	if (error)
		prefixd_redis_break(r, prefixd_redis_error_of(reply->text, reply->len));
	else if (reply->kind != PREFIXD_REPLY_STATUS)
		return false;
	else if (c->kind == PREFIXD_COMMAND_PING)
		link_up(r);
	return true;
}

static void try_again(struct prefixd_redis *r)
{
	struct timeval tv = to_timeval(r->config.connect_ns);
	int ret;

	if (!prefixd_breaker_probe(&r->breaker, prefixd_redis_now()))
		return;
	show_breaker(r);
	ret = prefixd_line_open(r);
	if (ret < 0)
		prefixd_redis_break(r, PREFIXD_REDIS_ERROR_CONNECT);
	else if (evtimer_add(r->connect_limit, &tv) < 0)
		prefixd_redis_break(r, PREFIXD_REDIS_ERROR_OTHER);
}

/* ---- events of time -------------------------------------------------------------------------- */

static void on_retry(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_redis *r = ctx;

	try_again(r);
	prefixd_redis_settle(r);
	/* libevent's clock is coarser than ours and may have been early. */
	if (r->breaker.state == PREFIXD_BREAKER_OPEN && !evtimer_pending(r->retry, NULL))
		wait_for_retry(r);
}

static void on_connect_limit(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_redis *r = ctx;

	prefixd_redis_break(r, r->connected ? PREFIXD_REDIS_ERROR_TIMEOUT
					    : PREFIXD_REDIS_ERROR_CONNECT);
	prefixd_redis_settle(r);
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_redis *r = ctx;
	uint64_t now = prefixd_redis_now();

	prefixd_helper_alive(r->helper, now);
	if (r->breaker.state == PREFIXD_BREAKER_CLOSED) {
		if (r->n_in_flight && now - r->progress_ns >= r->config.deadline_ns)
			prefixd_redis_break(r, PREFIXD_REDIS_ERROR_TIMEOUT);
		else if (now - r->epochs_ns >= EPOCHS_NS)
			prefixd_epochs_ask(r, now);
	} else {
		try_again(r);
	}
	prefixd_redis_settle(r);
}

static void on_requests(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_redis *r = ctx;
	struct prefixd_message *m;

	if (prefixd_helper_stopping(r->helper)) {
		event_base_loopbreak(r->base);
		return;
	}
	while ((m = prefixd_helper_take(r->helper)))
		prefixd_ops_take(r, radix_container_of(m, struct prefixd_redis_message, message));
	prefixd_redis_settle(r);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

int prefixd_link_init(struct prefixd_redis *r)
{
	struct event_config *config = event_config_new();

	/* One thread uses it. */
	if (config && event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0)
		r->base = event_base_new_with_config(config);
	if (config)
		event_config_free(config);
	if (!r->base)
		return -ENOMEM;
	r->tick = event_new(r->base, -1, EV_PERSIST, on_tick, r);
	r->retry = evtimer_new(r->base, on_retry, r);
	r->connect_limit = evtimer_new(r->base, on_connect_limit, r);
	if (!r->tick || !r->retry || !r->connect_limit)
		return -ENOMEM;
	prefixd_breaker_init(&r->breaker, &r->config);
	show_breaker(r);
	return 0;
}

void prefixd_link_start(struct prefixd_redis *r)
{
	/* A stall is noticed within a quarter of the deadline. */
	uint64_t ns = r->config.deadline_ns / 4;
	struct timeval tv;

	ns = ns < 10000000 ? 10000000 : radix_min_u64(ns, 250000000);
	tv = to_timeval(ns);
	r->requests = event_new(r->base, prefixd_helper_request_fd(r->helper), EV_READ | EV_PERSIST,
				on_requests, r);
	if (!r->requests || event_add(r->requests, NULL) < 0 || event_add(r->tick, &tv) < 0)
		return; /* the loop has nothing to do then and ends; the helper is run again */
	try_again(r);
	prefixd_redis_settle(r);
}

void prefixd_link_stop(struct prefixd_redis *r)
{
	if (r->requests)
		event_free(r->requests);
	r->requests = NULL;
	(void)event_del(r->tick); /* these accept events that are not added */
	(void)evtimer_del(r->retry);
	if (r->breaker.state != PREFIXD_BREAKER_OPEN) {
		prefixd_redis_break(r, PREFIXD_REDIS_ERROR_CLOSED);
		link_down(r);
		(void)evtimer_del(r->retry);
	}
	prefixd_ops_fail_all(r);
	prefixd_redis_post_all(r);
}

void prefixd_link_deinit(struct prefixd_redis *r)
{
	struct event *events[] = { r->requests, r->tick, r->retry, r->connect_limit };

	for (size_t i = 0; i < radix_array_size(events); i++) {
		if (events[i])
			event_free(events[i]);
	}
	r->requests = r->tick = r->retry = r->connect_limit = NULL;
	if (r->base)
		event_base_free(r->base);
	r->base = NULL;
}
