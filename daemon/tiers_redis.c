/*
 * tiers_redis.c - tiers.h's part about Redis: its client's settings, blocks on their way there and
 * back, and buffers for those whose slots no CPU reaches.
 *
 * A block of such a slot goes in two steps, through a buffer of its pool.  Who finds no buffer
 * waits for one, first come, first served.
 */
#include "daemon/log.h"
#include "daemon/tiers_internal.h"

#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES_MAX (UINT64_C(256) << 20) /* of all ranks; a value has to hold it */

/* ---- settings -------------------------------------------------------------------------------- */

/* The first line of a file that nobody else may read.  Return: 0; negative errno, `why`. */
static int password_read(const char *path, char *out, size_t out_len, char *why, size_t why_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	ssize_t n;
	int r = 0;

	if (fd < 0 || fstat(fd, &st) < 0) {
		r = -errno;
		snprintf(why, why_len, "redis-password-file: cannot read %s: %s", path,
			 strerror(-r));
	} else if (!S_ISREG(st.st_mode) || (st.st_mode & 077) ||
		   (st.st_uid != geteuid() && st.st_uid != 0)) {
		r = -EPERM;
		snprintf(why, why_len,
			 "redis-password-file: %s must be a file of this user that nobody else may "
			 "read: chmod 600 %s",
			 path, path);
	} else {
		n = read(fd, out, out_len - 1);
		out[n > 0 ? n : 0] = '\0';
		out[strcspn(out, "\r\n")] = '\0';
		if (n < 0)
			r = -errno;
		else if ((size_t)n == out_len - 1 || out[0] == '\0')
			r = -EINVAL;
		if (r < 0)
			snprintf(why, why_len,
				 "redis-password-file: the first line of %s must be a password of "
				 "1 to %zu bytes",
				 path, out_len - 3);
	}
	if (fd >= 0)
		(void)close(fd); /* it was only read */
	return r;
}

int prefixd_redis_begin(struct prefixd_redis **ret_r, const struct prefixd_options *o, char *why,
			size_t why_len)
{
	struct prefixd_redis_config config;
	int r;

	prefixd_redis_config_init(&config);
	snprintf(config.url, sizeof(config.url), "%s", o->redis);
	snprintf(config.user, sizeof(config.user), "%s", o->redis_user);
	config.encrypt = o->redis_encrypt != 0;
	config.ttl_ns = o->redis_ttl;
	config.deadline_ns = o->redis_timeout;
	config.in_flight_bytes = o->redis_in_flight;
	config.max_block_bytes = BLOCK_BYTES_MAX;
	r = prefixd_random(&config.seed, sizeof(config.seed));
	if (r < 0)
		snprintf(why, why_len, "no random bytes: %s", strerror(-r));
	if (r == 0 && o->redis_password_file[0])
		r = password_read(o->redis_password_file, config.password, sizeof(config.password),
				  why, why_len);
	if (r == 0)
		r = prefixd_naming_key(o, config.naming_key, why, why_len);
	if (r == 0)
		r = prefixd_redis_start(ret_r, &config, why, why_len);
	explicit_bzero(&config, sizeof(config));
	return r;
}

/* ---- blocks to and from Redis ---------------------------------------------------------------- */

/* Where the CPU reaches the block in one piece, as Redis has it; NULL: nowhere. */
static void *slot_view(const struct prefixd_server *s, const struct prefixd_pool *pool,
		       enum radix_tier tier, uint32_t slot)
{
	if (tier == RADIX_TIER_HOST)
		return prefixd_pool_host(pool, slot);
	if (pool->cold.codec != GPU_CODEC_NONE)
		return NULL; /* what Redis has is coded: it goes by a buffer */
	if (pool->n_ranks > 1 || !prefixd_pools_live(&s->pools, pool))
		return NULL;
	return prefixd_pool_slot(pool, 0, slot);
}

static void redis_send(struct prefixd_server *s, struct prefixd_redis_message *m)
{
	prefixd_helper_send(prefixd_redis_helper(s->tiers->redis), &m->message);
}

/* Asks the carrier to fill the buffer from the slot, or the slot from the buffer. */
static bool stage_copy(struct prefixd_server *s, struct prefixd_staged *st)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));
	const struct prefixd_carry *c = &st->m->carry;
	bool out = c->to == RADIX_TIER_REDIS;

	if (!m)
		return false;
	m->message.kind = PREFIXD_CARRIER_COPY;
	m->ctx = st;
	m->pool = prefixd_pool_of(s, st->m->group);
	m->from = out ? PREFIXD_PLACE_DEVICE : PREFIXD_PLACE_STAGE;
	m->to = out ? PREFIXD_PLACE_STAGE : PREFIXD_PLACE_DEVICE;
	m->src = out ? c->src : st->stage;
	m->dst = out ? st->stage : c->dst;
	m->urgent = c->urgent;
	m->coded = !out && st->m->coded;
	if (out) { /* of the other direction the redis helper has checked it */
		m->checksum_kind = c->checksum_kind;
		memcpy(m->checksum, c->checksum, sizeof(m->checksum));
	}
	prefixd_carrier_send(s->tiers->carrier, m);
	return true;
}

/* Gives it a buffer if one is free, and takes the first step.  False: it waits. */
static bool stage_begin(struct prefixd_server *s, struct prefixd_staged *st)
{
	struct prefixd_pool *pool = prefixd_pool_of(s, st->m->group);
	uint64_t all = pool->n_stage < 64 ? (UINT64_C(1) << pool->n_stage) - 1 : UINT64_MAX;
	uint64_t unused = all & ~pool->stage_used;

	if (!unused)
		return false;
	st->stage = (uint32_t)__builtin_ctzll(unused);
	pool->stage_used |= UINT64_C(1) << st->stage;
	radix_list_add_tail(&s->tiers->staged, &st->link);
	st->m->block = prefixd_pool_stage(pool, st->stage);
	if (st->m->carry.from == RADIX_TIER_REDIS) {
		st->ours = false;
		redis_send(s, st->m);
	} else if (!stage_copy(s, st)) {
		prefixd_later_moved(s, st->m->carry.id, PREFIXD_MOVE_FAILED);
		pool->stage_used &= ~(UINT64_C(1) << st->stage);
		radix_list_remove(&st->link);
		prefixd_redis_message_free(st->m);
		free(st);
	}
	return true;
}

/* Its buffer is free, and it is gone; others get the buffer. */
static void stage_end(struct prefixd_server *s, struct prefixd_staged *st)
{
	struct radix_list *it, *tmp;

	prefixd_pool_of(s, st->m->group)->stage_used &= ~(UINT64_C(1) << st->stage);
	radix_list_remove(&st->link);
	prefixd_redis_message_free(st->m);
	free(st);
	radix_list_foreach_safe(it, tmp, &s->tiers->unstaged) {
		struct prefixd_staged *next = radix_list_entry(it, struct prefixd_staged, link);

		radix_list_remove(it);
		if (stage_begin(s, next))
			continue;
		radix_list_add_head(&s->tiers->unstaged, it);
		return;
	}
}

static void stage_add(struct prefixd_server *s, struct prefixd_redis_message *m)
{
	struct prefixd_staged *st = calloc(1, sizeof(*st));

	if (!st) {
		prefixd_later_moved(s, m->carry.id, PREFIXD_MOVE_FAILED);
		prefixd_redis_message_free(m);
		return;
	}
	st->m = m;
	st->ours = true;
	st->stage = RADIX_NONE;
	radix_list_init(&st->link);
	if (!radix_list_empty(&s->tiers->unstaged) || !stage_begin(s, st))
		radix_list_add_tail(&s->tiers->unstaged, &st->link);
}

void prefixd_act_carry(struct prefixd_server *s, const struct prefixd_action *a)
{
	const struct prefixd_carry *c = &a->u.carry;
	bool out = a->type == PREFIXD_ACTION_STORE;
	struct prefixd_redis_message *m;
	struct prefixd_pool *pool;
	void *block;

	if (!s->tiers->redis) {
		prefixd_later_moved(s, c->id, PREFIXD_MOVE_DOWN);
		return;
	}
	pool = prefixd_pool_of(s, a->group);
	block = slot_view(s, pool, out ? c->from : c->to, out ? c->src : c->dst);
	if (pool->block_bytes > BLOCK_BYTES_MAX) { /* it would be stored, and never be read */
		prefixd_later_moved(s, c->id, PREFIXD_MOVE_FAILED);
		return;
	}
	m = prefixd_redis_message_new(a, block, pool->block_bytes);
	if (m)
		m->n_pieces = pool->n_ranks;
	if (m && pool->cold.codec != GPU_CODEC_NONE) {
		m->codec = pool->cold.codec;
		m->cold_bytes = prefixd_pool_cold_bytes(pool);
		m->coded = m->sealed = block; /* a host slot */
	}
	if (!m)
		prefixd_later_moved(s, c->id, PREFIXD_MOVE_FAILED);
	else if (block)
		redis_send(s, m);
	else
		stage_add(s, m);
}

void prefixd_act_look(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_redis_message *m = NULL;

	if (s->tiers->redis)
		m = prefixd_redis_message_new(a, NULL, 0);
	if (m)
		redis_send(s, m);
	else
		prefixd_later(s, (struct prefixd_later){ .type = PREFIXD_EVENT_LOOKED,
							 .id = a->u.look.id });
}

/* Nobody waits for these; a name that is not kept makes its block unknown in Redis, no more. */
void prefixd_act_tell(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_redis_message *m;

	if (!s->tiers->redis)
		return;
	m = prefixd_redis_message_new(a, NULL, 0);
	if (m)
		redis_send(s, m);
	else
		prefixd_error("no memory to tell the redis helper what it should know");
}

/* A buffer was filled from its slot, or a slot from its buffer. */
void prefixd_stage_copied(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_MOVED };
	struct prefixd_staged *st = m->ctx;
	enum radix_tier from = st->m->carry.from, to = st->m->carry.to;

	st->copied_ns = m->ns;
	if (st->m->carry.to == RADIX_TIER_REDIS && m->result == PREFIXD_MOVE_OK) {
		st->ours = false;
		st->m->coded = m->coded;
		redis_send(s, st->m);
		return;
	}
	/* On its way down: it was not to be had.  On its way up: it is there, or is not. */
	if (st->m->carry.to == RADIX_TIER_REDIS || !prefixd_redis_event(st->m, &event))
		event.u.moved.id = st->m->carry.id;
	if (m->result != PREFIXD_MOVE_OK) {
		event.u.moved.result = m->result;
		event.u.moved.summed = false;
	}
	event.u.moved.ns += m->ns;
	stage_end(s, st);
	prefixd_tiers_moved(s, from, to, &event);
}

static struct prefixd_staged *staged_find(struct prefixd_server *s,
					  const struct prefixd_redis_message *m)
{
	struct radix_list *it;

	radix_list_foreach(it, &s->tiers->staged) {
		struct prefixd_staged *st = radix_list_entry(it, struct prefixd_staged, link);

		if (st->m == m)
			return st;
	}
	return NULL;
}

/* Takes the message. */
static void redis_answer(struct prefixd_server *s, struct prefixd_redis_message *m)
{
	struct prefixd_staged *st = staged_find(s, m);
	struct prefixd_event event;

	if (st && m->carry.from == RADIX_TIER_REDIS && m->result == PREFIXD_MOVE_OK) {
		st->ours = true;
		if (stage_copy(s, st))
			return;
		m->result = PREFIXD_MOVE_FAILED;
	}
	if (prefixd_redis_event(m, &event)) {
		if (event.type == PREFIXD_EVENT_EPOCH_SEEN &&
		    prefixd_epochs_set(&s->tiers->epochs, event.u.epoch.digest,
				       &event.u.epoch.epoch) < 0)
			prefixd_error("no memory to keep an epoch");
		if (event.type == PREFIXD_EVENT_MOVED) {
			event.u.moved.ns += st ? st->copied_ns : 0;
			prefixd_tiers_moved(s, m->carry.from, m->carry.to, &event);
		} else {
			prefixd_server_step(s, &event);
		}
	}
	if (st)
		stage_end(s, st);
	else
		prefixd_redis_message_free(m);
}

void prefixd_on_redis(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_server *s = ctx;
	struct prefixd_message *m;
	uint64_t began = prefixd_server_mark(s);

	for (uint32_t i = 0; prefixd_answers_fit(i, began); i++) {
		m = prefixd_helper_receive(prefixd_redis_helper(s->tiers->redis));
		if (!m)
			break;
		redis_answer(s, radix_container_of(m, struct prefixd_redis_message, message));
	}
	prefixd_server_settle(s);
}

void prefixd_staged_drop(struct radix_list *list)
{
	while (!radix_list_empty(list)) {
		struct prefixd_staged *st = radix_list_first(list, struct prefixd_staged, link);

		radix_list_remove(&st->link);
		if (st->ours)
			prefixd_redis_message_free(st->m);
		free(st);
	}
}
