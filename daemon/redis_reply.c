/*
 * redis_reply.c - see redis_reply.h.
 *
 * Who sees what.  Each byte is one of: the beginning of something (hiredis), the body of a large
 * string (`body`), or of one too long (`skip`).  A line that announces a string is always hiredis'.
 *
 * hiredis builds a tree of objects by calling the functions given to it.  These here build none:
 * what is no element of an array is handed on at once, in place, and elements go into one flat
 * table.  An object is only a sign that is not NULL; NULL makes hiredis end with an error.
 */
#include "daemon/redis_reply.h"

#include <hiredis/read.h>
#include <stdlib.h>

#define LINE_MAX_LEN (64u << 10) /* a line, or a string in an array */
#define SMALL        (16u << 10) /* what is read ahead of knowing what it is */
/* Strings from here on, or from half of the longest that there may be, go past hiredis. */
#define LARGE        (8u << 10)
#define BULK_MAX     (512ll << 20) /* what Redis itself allows a string */

struct prefixd_replies {
	redisReader *reader;
	size_t max_string;
	bool (*on_reply)(void *ctx, const struct prefixd_reply *reply);
	void *ctx;
	bool dead;
	uint64_t skip; /* bytes of a string too long, to be read past */
	uint8_t *body; /* max_string + 2 bytes: a large string and the end of its line */
	size_t body_want, body_have; /* want 0: none is being read */
	bool array;                  /* one is being read */
	uint32_t n_parts;
	struct prefixd_reply_part parts[PREFIXD_REPLY_PARTS];
	uint8_t small[SMALL];
};

static char sign; /* the object that hiredis sees */

static void *tell(struct prefixd_replies *r, const struct prefixd_reply *reply)
{
	return r->on_reply(r->ctx, reply) ? &sign : NULL;
}

/* The next element of the array; NULL: more than there is room for. */
static struct prefixd_reply_part *part_next(struct prefixd_replies *r)
{
	struct prefixd_reply_part *p;

	if (r->n_parts == PREFIXD_REPLY_PARTS)
		return NULL;
	p = &r->parts[r->n_parts++];
	p->string = false;
	p->len = 0;
	return p;
}

static void *make_string(const redisReadTask *task, char *text, size_t len)
{
	struct prefixd_replies *r = task->privdata;
	struct prefixd_reply reply = { .kind = PREFIXD_REPLY_STRING, .text = text, .len = len };

	if (task->parent) {
		struct prefixd_reply_part *p = part_next(r);

		if (p && task->type == REDIS_REPLY_STRING && len <= sizeof(p->text)) {
			p->string = true;
			p->len = (uint8_t)len;
			memcpy(p->text, text, len);
		}
		return p ? &sign : NULL;
	}
	if (task->type == REDIS_REPLY_STATUS) {
		reply.kind = PREFIXD_REPLY_STATUS;
	} else if (task->type == REDIS_REPLY_ERROR) {
		reply.kind = PREFIXD_REPLY_ERROR;
	} else if (len > r->max_string) {
		reply = (struct prefixd_reply){ .kind = PREFIXD_REPLY_OVERSIZED,
						.integer = (int64_t)len };
	}
	return tell(r, &reply);
}

static void *make_array(const redisReadTask *task, int n)
{
	struct prefixd_replies *r = task->privdata;

	if (task->parent || n < 0 || (uint32_t)n > PREFIXD_REPLY_PARTS)
		return NULL; /* nothing that is asked for answers with that */
	r->array = true;
	r->n_parts = 0;
	return &sign;
}

static void *make_integer(const redisReadTask *task, long long v)
{
	struct prefixd_replies *r = task->privdata;

	if (task->parent)
		return part_next(r) ? &sign : NULL;
	return tell(r, &(struct prefixd_reply){ .kind = PREFIXD_REPLY_INTEGER, .integer = v });
}

static void *make_nil(const redisReadTask *task)
{
	struct prefixd_replies *r = task->privdata;

	if (task->parent)
		return part_next(r) ? &sign : NULL;
	return tell(r, &(struct prefixd_reply){ .kind = PREFIXD_REPLY_NIL });
}

static void drop_object(void *object)
{
}

static redisReplyObjectFunctions makers = {
	.createString = make_string,
	.createArray = make_array,
	.createInteger = make_integer,
	.createNil = make_nil,
	.freeObject = drop_object,
};

static int reader_renew(struct prefixd_replies *r)
{
	if (r->reader)
		redisReaderFree(r->reader);
	r->array = false;
	r->reader = redisReaderCreateWithFunctions(&makers);
	if (!r->reader)
		return -ENOMEM;
	r->reader->privdata = r; /* the macro for it does not compile with clang */
	r->reader->maxbuf = 0;   /* keep the buffer: one for each string would be slow */
	return 0;
}

int prefixd_replies_new(struct prefixd_replies **ret_replies, size_t max_string,
			bool (*on_reply)(void *ctx, const struct prefixd_reply *reply), void *ctx)
{
	struct prefixd_replies *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->max_string = max_string;
	r->on_reply = on_reply;
	r->ctx = ctx;
	r->body = malloc(max_string + 2);
	if (!r->body || reader_renew(r) < 0) {
		prefixd_replies_free(r);
		return -ENOMEM;
	}
	*ret_replies = r;
	return 0;
}

struct prefixd_replies *prefixd_replies_free(struct prefixd_replies *r)
{
	if (!r)
		return NULL;
	if (r->reader)
		redisReaderFree(r->reader);
	free(r->body);
	free(r);
	return NULL;
}

int prefixd_replies_reset(struct prefixd_replies *r)
{
	r->skip = 0;
	r->body_want = 0;
	r->dead = reader_renew(r) < 0;
	return r->dead ? -ENOMEM : 0;
}

/*
 * The string that is being read and not all there: how long it says it is, and how many bytes its
 * line takes.  False: none, or its line is not complete.
 */
static bool announced(const redisReader *reader, int64_t *ret_len, size_t *ret_line)
{
	const char *p = reader->buf + reader->pos, *end = reader->buf + reader->len;
	int64_t len = 0;

	if (reader->ridx < 0 || reader->rstack[reader->ridx].type != REDIS_REPLY_STRING)
		return false;
	for (; p < end && *p >= '0' && *p <= '9' && len <= BULK_MAX; p++)
		len = len * 10 + (*p - '0');
	if (end - p < 2 || p[0] != '\r' || p[1] != '\n')
		return false;
	*ret_len = len;
	*ret_line = (size_t)(p + 2 - (reader->buf + reader->pos));
	return true;
}

/* The string that hiredis has begun to read is taken from it. */
static int take_over(struct prefixd_replies *r, int64_t len, size_t line)
{
	size_t there = r->reader->len - r->reader->pos - line;

	/* It is not whole, so less than its bytes and the line's end are there. */
	radix_assert(there < (uint64_t)len + 2);
	if (len > (int64_t)r->max_string) {
		struct prefixd_reply reply = { .kind = PREFIXD_REPLY_OVERSIZED, .integer = len };

		if (!tell(r, &reply))
			return -EPROTO;
		r->skip = (uint64_t)len + 2 - there;
	} else {
		memcpy(r->body, r->reader->buf + r->reader->pos + line, there);
		r->body_want = (size_t)len + 2;
		r->body_have = there;
	}
	return reader_renew(r);
}

/* What is left unused after all that could be was: is it the beginning of something allowed? */
static int check_rest(struct prefixd_replies *r)
{
	const redisReader *reader = r->reader;
	size_t line;
	int64_t len;

	if (!announced(reader, &len, &line))
		return reader->len - reader->pos > LINE_MAX_LEN ? -EPROTO : 0;
	if (reader->ridx > 0)
		return len > (int64_t)LINE_MAX_LEN ? -EPROTO : 0;
	if (len > BULK_MAX)
		return -EPROTO;
	return len >= (int64_t)radix_min_u64(LARGE, r->max_string / 2) ? take_over(r, len, line)
								       : 0;
}

/* All replies that are whole.  Return: 0, -EPROTO. */
static int parse(struct prefixd_replies *r)
{
	void *object;

	do {
		object = NULL;
		if (redisReaderGetReply(r->reader, &object) != REDIS_OK)
			return -EPROTO;
		if (object && r->array) {
			r->array = false;
			if (!tell(r, &(struct prefixd_reply){ .kind = PREFIXD_REPLY_ARRAY,
							      .parts = r->parts,
							      .n_parts = r->n_parts }))
				return -EPROTO;
		}
	} while (object);
	return 0;
}

/* Bytes that nobody knows yet. */
static int feed_reader(struct prefixd_replies *r, const uint8_t *p, size_t len)
{
	int ret;

	if (!len)
		return 0;
	if (redisReaderFeed(r->reader, (const char *)p, len) != REDIS_OK)
		return -ENOMEM;
	ret = parse(r);
	return ret < 0 ? ret : check_rest(r);
}

/* The large string is whole. */
static int body_end(struct prefixd_replies *r)
{
	size_t len = r->body_want - 2;

	r->body_want = 0;
	if (r->body[len] != '\r' || r->body[len + 1] != '\n')
		return -EPROTO;
	return tell(r, &(struct prefixd_reply){ .kind = PREFIXD_REPLY_STRING,
						.text = (char *)r->body,
						.len = len })
		       ? 0
		       : -EPROTO;
}

/* How much of what is read past fits into `body`, where it is thrown away. */
static size_t skip_room(const struct prefixd_replies *r)
{
	return (size_t)radix_min_u64(r->skip, r->max_string + 2);
}

int prefixd_replies_room(struct prefixd_replies *r, struct iovec ret_room[2])
{
	int n = 0;

	if (r->dead)
		return 0;
	if (r->skip) {
		ret_room[n++] = (struct iovec){ r->body, skip_room(r) };
		if (r->skip > skip_room(r))
			return n; /* what follows is not known to be anything else */
	} else if (r->body_want) {
		ret_room[n++] = (struct iovec){ r->body + r->body_have,
						r->body_want - r->body_have };
	}
	ret_room[n++] = (struct iovec){ r->small, sizeof(r->small) };
	return n;
}

static int filled(struct prefixd_replies *r, size_t len)
{
	size_t some = 0;
	int ret = 0;

	if (r->skip) {
		some = (size_t)radix_min_u64(len, skip_room(r));
		r->skip -= some;
		radix_assert(!r->skip || len == some);
	} else if (r->body_want) {
		some = (size_t)radix_min_u64(len, r->body_want - r->body_have);
		r->body_have += some;
		if (r->body_have == r->body_want)
			ret = body_end(r);
	}
	return ret < 0 ? ret : feed_reader(r, r->small, len - some);
}

int prefixd_replies_filled(struct prefixd_replies *r, size_t len)
{
	int ret = r->dead ? -EPROTO : filled(r, len);

	if (ret < 0)
		r->dead = true;
	return ret;
}

int prefixd_replies_feed(struct prefixd_replies *r, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;

	do {
		struct iovec room[2];
		int n = prefixd_replies_room(r, room), ret;
		size_t done = 0;

		if (!n)
			return -EPROTO;
		for (int i = 0; i < n && len; i++) {
			size_t some = len < room[i].iov_len ? len : room[i].iov_len;

			memcpy(room[i].iov_base, p, some);
			p += some;
			len -= some;
			done += some;
		}
		ret = prefixd_replies_filled(r, done);
		if (ret < 0)
			return ret;
	} while (len);
	return 0;
}
