/*
 * redis_ops.c - requests become commands, replies become answers.
 *
 * A message is answered once: by the reply, by its deadline, or because the connection broke.  What
 * comes first takes it from the command; a command without a message stays in line for its reply
 * and throws it away.  So a block is written to only while its request is alive.
 */
#include "daemon/redis_internal.h"

#include <stdlib.h>

/* ---- answers --------------------------------------------------------------------------------- */

void prefixd_redis_post(struct prefixd_redis *r, struct prefixd_redis_message *m)
{
	radix_list_add_tail(&r->answers, &m->message.link);
}

void prefixd_redis_post_all(struct prefixd_redis *r)
{
	while (!radix_list_empty(&r->answers)) {
		struct prefixd_message *m = radix_list_first(&r->answers, struct prefixd_message,
							     link);

		radix_list_remove(&m->link);
		prefixd_helper_answer(r->helper, m);
	}
}

void prefixd_ops_answer(struct prefixd_redis *r, struct prefixd_redis_message *m,
			enum prefixd_move_result result)
{
	m->result = result;
	prefixd_redis_post(r, m);
}

/* The message leaves its command and is answered. */
static void answer(struct prefixd_redis_command *c, enum prefixd_move_result result)
{
	struct prefixd_redis_message *m = c->m;

	if (!m)
		return;
	c->m = NULL;
	if (c->timed)
		(void)evtimer_del(&c->timer); /* accepts one that has run */
	c->timed = false;
	m->n = result == PREFIXD_MOVE_OK ? c->present : 0;
	m->ns = c->begun_ns ? prefixd_redis_now() - c->begun_ns : 0;
	prefixd_ops_answer(c->redis, m, result);
}

static void drop(struct prefixd_redis *r, struct prefixd_redis_command *c,
		 enum prefixd_move_result result)
{
	prefixd_line_remove(r, c);
	answer(c, result);
	prefixd_command_free(c);
}

void prefixd_ops_fail_all(struct prefixd_redis *r)
{
	struct radix_list *lists[] = { &r->awaiting, &r->writing, &r->urgent, &r->waiting };

	for (size_t i = 0; i < radix_array_size(lists); i++) {
		while (!radix_list_empty(lists[i]))
			drop(r, radix_list_first(lists[i], struct prefixd_redis_command, link),
			     PREFIXD_MOVE_DOWN);
	}
}

static void on_deadline(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_redis_command *c = ctx;
	struct prefixd_redis *r = c->redis;

	/* Without a beginning it is this daemon that was slow.  And a worker that asks for an
	 * answer within a millisecond must not bring Redis down for all others. */
	if (c->begun_ns && c->patient)
		prefixd_redis_failed(r, PREFIXD_REDIS_ERROR_TIMEOUT);
	else
		prefixd_count(&r->counts.errors[PREFIXD_REDIS_ERROR_TIMEOUT], 1);
	if (!c->begun_ns || (c->written == 0 && prefixd_command_len(c))) {
		drop(r, c, PREFIXD_MOVE_DOWN);
	} else {
		/* The slot may be used again once this is answered: what is left to be written of
		 * it has to come from elsewhere.  */
		if (prefixd_command_detach(c) < 0)
			prefixd_redis_break(r, PREFIXD_REDIS_ERROR_OTHER);
		else
			answer(c, PREFIXD_MOVE_DOWN);
	}
	prefixd_redis_settle(r);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Puts a command in line.  Its message is answered when that cannot be. */
static void enqueue(struct prefixd_redis *r, struct prefixd_redis_command *c,
		    struct prefixd_redis_message *m, uint64_t deadline_ns, bool urgent)
{
	uint64_t now = prefixd_redis_now();
	struct timeval tv;
	uint64_t us;

	c->m = m;
	c->deadline_ns = deadline_ns ? deadline_ns : now + r->config.deadline_ns;
	us = c->deadline_ns > now ? (c->deadline_ns - now) / 1000 : 0;
	c->patient = us * 1000 >= r->config.deadline_ns / 1000 * 1000;
	tv.tv_sec = (time_t)(us / 1000000);
	tv.tv_usec = (suseconds_t)(us % 1000000);
	c->timed = us && evtimer_assign(&c->timer, r->base, on_deadline, c) == 0 &&
		   evtimer_add(&c->timer, &tv) == 0;
	if (!c->timed) {
		answer(c, PREFIXD_MOVE_DOWN);
		prefixd_command_free(c);
		return;
	}
	radix_list_add_tail(urgent ? &r->urgent : &r->waiting, &c->link);
	r->n_queued++;
	prefixd_gauge(&r->counts.queued, r->n_queued);
}

static bool down(const struct prefixd_redis *r)
{
	return r->breaker.state != PREFIXD_BREAKER_CLOSED || r->broken;
}

/* Redis is full, or takes no writes: nothing is sent there only to be refused. */
static bool held(const struct prefixd_redis *r)
{
	return r->hold_ns && prefixd_redis_now() < r->hold_ns;
}

static void take_carry(struct prefixd_redis *r, struct prefixd_redis_message *m, bool store)
{
	struct prefixd_redis_command *c;
	uint8_t name[32];

	if (down(r) || (store && held(r))) {
		prefixd_ops_answer(r, m, PREFIXD_MOVE_DOWN);
		return;
	}
	c = prefixd_command_new(r, store ? PREFIXD_COMMAND_STORE : PREFIXD_COMMAND_FETCH);
	if (!c) {
		prefixd_ops_answer(r, m, PREFIXD_MOVE_FAILED);
		return;
	}
	/* Now, not when it is begun: the entry may be named anew by a later message. */
	if (!prefixd_names_find(r->names, m->group, m->carry.entry, c->name, c->before)) {
		prefixd_command_free(c);
		prefixd_ops_answer(r, m, PREFIXD_MOVE_FAILED);
		return;
	}
	/* A key that does not lead to the name would put a block under another's. */
	prefixd_name_derive(r->config.naming_key, RADIX_KEYS_TOKENS, c->before, m->carry.key,
			    m->carry.key_len, name);
	if (memcmp(name, c->name, sizeof(name)) != 0)
		prefixd_name_derive(r->config.naming_key, RADIX_KEYS_DIGEST, c->before,
				    m->carry.key, m->carry.key_len, name);
	if (memcmp(name, c->name, sizeof(name)) != 0) {
		prefixd_command_free(c);
		prefixd_ops_answer(r, m, PREFIXD_MOVE_FAILED);
		return;
	}
	c->cost = m->block_bytes + m->carry.key_len + PREFIXD_VALUE_OVERHEAD;
	enqueue(r, c, m, m->carry.deadline_ns, m->carry.urgent);
}

static void take_look(struct prefixd_redis *r, struct prefixd_redis_message *m)
{
	struct prefixd_redis_command *c;
	int ret;

	m->n = 0;
	if (down(r) || !m->names.n) {
		prefixd_ops_answer(r, m, down(r) ? PREFIXD_MOVE_DOWN : PREFIXD_MOVE_OK);
		return;
	}
	c = prefixd_command_new(r, PREFIXD_COMMAND_LOOK);
	if (!c) {
		prefixd_ops_answer(r, m, PREFIXD_MOVE_FAILED);
		return;
	}
	c->m = m;
	ret = prefixd_command_look(c);
	if (ret < 0) {
		answer(c, PREFIXD_MOVE_FAILED);
		prefixd_command_free(c);
		return;
	}
	c->cost = c->text_len;
	enqueue(r, c, m, m->deadline_ns, true); /* it is small, and somebody may be waiting */
}

void prefixd_ops_take(struct prefixd_redis *r, struct prefixd_redis_message *m)
{
	int ret;

	switch (m->message.kind) {
	case PREFIXD_REDIS_STORE:
	case PREFIXD_REDIS_FETCH:
		take_carry(r, m, m->message.kind == PREFIXD_REDIS_STORE);
		break;
	case PREFIXD_REDIS_LOOK:
		take_look(r, m);
		break;
	case PREFIXD_REDIS_NAMES:
		ret = prefixd_names_learn(r->names, m->group, &m->names);
		prefixd_ops_answer(r, m, ret < 0 ? PREFIXD_MOVE_FAILED : PREFIXD_MOVE_OK);
		break;
	case PREFIXD_REDIS_EPOCH:
		ret = prefixd_epochs_learn(r, m->ns_digest, m->epoch, m->raised);
		prefixd_ops_answer(r, m, ret < 0 ? PREFIXD_MOVE_FAILED : PREFIXD_MOVE_OK);
		break;
	default:
		prefixd_ops_answer(r, m, PREFIXD_MOVE_FAILED); /* an answer is no request */
	}
}

bool prefixd_ops_begin(struct prefixd_redis *r, struct prefixd_redis_command *c)
{
	int ret = 0;

	if (c->kind == PREFIXD_COMMAND_STORE && held(r)) {
		drop(r, c, PREFIXD_MOVE_DOWN);
		return false;
	}
	if (c->kind == PREFIXD_COMMAND_STORE)
		ret = prefixd_command_store(c);
	else if (c->kind == PREFIXD_COMMAND_FETCH)
		ret = prefixd_command_fetch(c);
	if (ret < 0)
		drop(r, c, ret == -EBADMSG ? PREFIXD_MOVE_CORRUPT : PREFIXD_MOVE_FAILED);
	return ret == 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

enum prefixd_redis_error prefixd_redis_error_of(const char *text, size_t len)
{
	static const struct {
		const char *code;
		enum prefixd_redis_error error;
	} codes[] = {
		{ "OOM", PREFIXD_REDIS_ERROR_OOM },
		{ "LOADING", PREFIXD_REDIS_ERROR_LOADING },
		{ "READONLY", PREFIXD_REDIS_ERROR_READONLY },
		{ "NOAUTH", PREFIXD_REDIS_ERROR_AUTH },
		{ "WRONGPASS", PREFIXD_REDIS_ERROR_AUTH },
		{ "NOPERM", PREFIXD_REDIS_ERROR_AUTH },
		{ "MOVED", PREFIXD_REDIS_ERROR_MOVED },
		{ "ASK", PREFIXD_REDIS_ERROR_MOVED },
	};
	const char *end = memchr(text, ' ', len);
	size_t n = end ? (size_t)(end - text) : len;

	for (size_t i = 0; i < radix_array_size(codes); i++) {
		if (n == strlen(codes[i].code) && !memcmp(text, codes[i].code, n))
			return codes[i].error;
	}
	return PREFIXD_REDIS_ERROR_OTHER;
}

static bool is_error(const struct prefixd_reply *reply, const char *code)
{
	size_t n = strlen(code);

	return reply->kind == PREFIXD_REPLY_ERROR && reply->len >= n &&
	       !memcmp(reply->text, code, n);
}

/* What an error to a command of data means beside that it failed. */
static void on_error(struct prefixd_redis *r, const struct prefixd_reply *reply)
{
	enum prefixd_redis_error error = prefixd_redis_error_of(reply->text, reply->len);
	uint64_t now = prefixd_redis_now();

	if (error == PREFIXD_REDIS_ERROR_OOM || error == PREFIXD_REDIS_ERROR_READONLY) {
		/* Reads go on.  All that were in flight are refused: once is enough. */
		prefixd_count(&r->counts.errors[error], 1);
		if (now >= r->hold_ns)
			r->hold_ns = now +
				     prefixd_backoff(&r->hold_backoff_ns, r->config.backoff_min_ns,
						     r->config.backoff_max_ns, &r->breaker.seed);
	} else if (error == PREFIXD_REDIS_ERROR_LOADING || is_error(reply, "NOAUTH")) {
		prefixd_redis_break(r, error); /* nothing else will work either */
	} else {
		prefixd_redis_failed(r, error);
	}
}

static void worked(struct prefixd_redis *r, const struct prefixd_redis_command *c)
{
	uint64_t ns = prefixd_redis_now() - c->begun_ns;
	uint64_t old = atomic_load_explicit(&r->counts.latency_ns, memory_order_relaxed);

	prefixd_breaker_worked(&r->breaker);
	prefixd_gauge(&r->counts.latency_ns, old ? old - old / 16 + ns / 16 : ns);
}

/* The value is not the block: nobody shall read it again. */
static void on_bad_value(struct prefixd_redis *r, struct prefixd_redis_command *c,
			 enum prefixd_redis_bad why)
{
	struct prefixd_redis_command *u = prefixd_command_new(r, PREFIXD_COMMAND_UNLINK);
	char key[PREFIXD_REDIS_KEY_LEN];

	prefixd_count(&r->counts.bad_values[why], 1);
	prefixd_name_redis_key(c->name, key);
	/* Without memory it stays and is found bad again. */
	if (u && prefixd_command_words(
			 u, (struct prefixd_redis_word[]){ { "UNLINK", 6 }, { key, sizeof(key) } },
			 2) == 0)
		prefixd_line_send(r, u);
	else if (u)
		prefixd_command_free(u);
	answer(c, PREFIXD_MOVE_CORRUPT);
}

static bool reply_fetch(struct prefixd_redis *r, struct prefixd_redis_command *c,
			const struct prefixd_reply *reply)
{
	struct prefixd_value_of of;
	enum prefixd_redis_bad why;

	if (reply->kind == PREFIXD_REPLY_NIL) {
		worked(r, c);
		prefixd_count(&r->counts.lost, c->m ? 1 : 0);
		answer(c, PREFIXD_MOVE_LOST);
		return true;
	}
	if (reply->kind == PREFIXD_REPLY_ERROR && !is_error(reply, "WRONGTYPE ")) {
		on_error(r, reply);
		answer(c, PREFIXD_MOVE_FAILED);
		return true;
	}
	if (reply->kind != PREFIXD_REPLY_ERROR && reply->kind != PREFIXD_REPLY_STRING &&
	    reply->kind != PREFIXD_REPLY_OVERSIZED)
		return false;
	worked(r, c);
	if (!c->m)
		return true; /* too late: what it says does not matter any longer */
	of = prefixd_command_of(c);
	if (reply->kind == PREFIXD_REPLY_ERROR) {
		on_bad_value(r, c, PREFIXD_REDIS_BAD_TYPE);
	} else if (reply->kind == PREFIXD_REPLY_OVERSIZED) {
		on_bad_value(r, c, PREFIXD_REDIS_BAD_OVERSIZED);
	} else if (!prefixd_value_parse(reply->text, reply->len, &of, &r->cipher, c->m->block,
					c->m->checksum, &why)) {
		on_bad_value(r, c, why);
	} else {
		prefixd_count(&r->counts.fetched, 1);
		c->m->coded = of.coded;
		prefixd_count(&r->counts.bytes_in, of.coded ? of.cold_bytes : of.block_bytes);
		answer(c, PREFIXD_MOVE_OK);
	}
	return true;
}

static bool reply_store(struct prefixd_redis *r, struct prefixd_redis_command *c,
			const struct prefixd_reply *reply)
{
	if (reply->kind == PREFIXD_REPLY_ERROR) {
		on_error(r, reply);
		answer(c, PREFIXD_MOVE_FAILED);
		return true;
	}
	if (reply->kind != PREFIXD_REPLY_STATUS || reply->len != 2 ||
	    memcmp(reply->text, "OK", 2) != 0)
		return false;
	worked(r, c);
	r->hold_ns = r->hold_backoff_ns = 0;
	prefixd_count(&r->counts.stored, 1);
	if (c->m)
		prefixd_count(&r->counts.bytes_out,
			      c->m->coded ? c->m->cold_bytes : c->m->block_bytes);
	answer(c, PREFIXD_MOVE_OK);
	return true;
}

static bool reply_look(struct prefixd_redis *r, struct prefixd_redis_command *c,
		       const struct prefixd_reply *reply)
{
	if (reply->kind == PREFIXD_REPLY_ERROR) {
		on_error(r, reply);
		c->gap = true;
	} else if (reply->kind != PREFIXD_REPLY_INTEGER) {
		return false;
	} else if (reply->integer != 1) {
		c->gap = true;
	} else if (!c->gap) {
		c->present++;
	}
	if (!c->n_replies) {
		worked(r, c);
		prefixd_count(&r->counts.looks, 1);
		prefixd_count(&r->counts.looks_present, c->present);
		answer(c, PREFIXD_MOVE_OK);
	}
	return true;
}

static bool reply_unlink(struct prefixd_redis *r, const struct prefixd_reply *reply)
{
	if (reply->kind == PREFIXD_REPLY_ERROR)
		on_error(r, reply);
	else if (reply->kind != PREFIXD_REPLY_INTEGER)
		return false;
	else if (reply->integer == 1)
		prefixd_count(&r->counts.unlinked, 1);
	return true;
}

bool prefixd_ops_reply(struct prefixd_redis *r, struct prefixd_redis_command *c,
		       const struct prefixd_reply *reply)
{
	switch (c->kind) {
	case PREFIXD_COMMAND_STORE:
		return reply_store(r, c, reply);
	case PREFIXD_COMMAND_FETCH:
		return reply_fetch(r, c, reply);
	case PREFIXD_COMMAND_LOOK:
		return reply_look(r, c, reply);
	case PREFIXD_COMMAND_UNLINK:
		return reply_unlink(r, reply);
	case PREFIXD_COMMAND_EPOCHS:
	case PREFIXD_COMMAND_EPOCH_SET:
		return prefixd_epochs_reply(r, c, reply);
	case PREFIXD_COMMAND_AUTH:
	case PREFIXD_COMMAND_SETNAME:
	case PREFIXD_COMMAND_PING:
	case PREFIXD_COMMAND_INFO:
		break;
	}
	return prefixd_link_reply(r, c, reply);
}
