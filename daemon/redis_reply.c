/*
 * redis_reply.c - see redis_reply.h.
 *
 * hiredis builds a tree of objects by calling the functions given to it.  These here build none:
 * what is no element of an array is handed on at once, in place, and elements go into one flat
 * table.  An object is only a sign that is not NULL; NULL makes hiredis end with an error.
 */
#include "daemon/redis_reply.h"

#include <hiredis/read.h>
#include <stdlib.h>

#define LINE_MAX_LEN (64u << 10)   /* a line, or a string in an array */
#define BULK_MAX     (512ll << 20) /* what Redis itself allows a string */

struct prefixd_replies {
	redisReader *reader;
	size_t max_string;
	bool (*on_reply)(void *ctx, const struct prefixd_reply *reply);
	void *ctx;
	bool dead;
	uint64_t skip; /* bytes of a string too long, to be read past */
	bool array;    /* one is being read */
	uint32_t n_parts;
	struct prefixd_reply_part parts[PREFIXD_REPLY_PARTS];
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
	if (reader_renew(r) < 0) {
		free(r);
		return -ENOMEM;
	}
	*ret_replies = r;
	return 0;
}

struct prefixd_replies *prefixd_replies_free(struct prefixd_replies *r)
{
	if (r && r->reader)
		redisReaderFree(r->reader);
	free(r);
	return NULL;
}

int prefixd_replies_reset(struct prefixd_replies *r)
{
	r->skip = 0;
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

/* What is left unused after all that could be was: is it the beginning of something allowed? */
static int check_rest(struct prefixd_replies *r)
{
	const redisReader *reader = r->reader;
	size_t rest = reader->len - reader->pos, line, there;
	struct prefixd_reply reply;
	int64_t len;

	if (!announced(reader, &len, &line))
		return rest > LINE_MAX_LEN ? -EPROTO : 0;
	if (reader->ridx > 0)
		return len > (int64_t)LINE_MAX_LEN ? -EPROTO : 0;
	if (len <= (int64_t)r->max_string)
		return 0;
	if (len > BULK_MAX)
		return -EPROTO;
	reply = (struct prefixd_reply){ .kind = PREFIXD_REPLY_OVERSIZED, .integer = len };
	there = rest - line;
	if (!tell(r, &reply))
		return -EPROTO;
	/* It is not whole, so less than its bytes and the line's end are there. */
	r->skip = (uint64_t)len + 2 - there;
	return reader_renew(r);
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

static int feed(struct prefixd_replies *r, const uint8_t *p, size_t len)
{
	size_t skip = (size_t)radix_min_u64(r->skip, len);
	int ret;

	r->skip -= skip;
	p += skip;
	len -= skip;
	if (!len)
		return 0;
	if (redisReaderFeed(r->reader, (const char *)p, len) != REDIS_OK)
		return -ENOMEM;
	ret = parse(r);
	return ret < 0 ? ret : check_rest(r);
}

int prefixd_replies_feed(struct prefixd_replies *r, const void *bytes, size_t len)
{
	int ret = r->dead ? -EPROTO : feed(r, bytes, len);

	if (ret < 0)
		r->dead = true;
	return ret;
}
