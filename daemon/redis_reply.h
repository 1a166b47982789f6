/*
 * redis_reply.h - replies of Redis out of a stream of bytes that nobody vouches for.
 *
 * hiredis' reader takes the protocol apart; around it lie the limits that it does not know of.
 *
 * What it guarantees.  Memory is bounded by what a reply may be, not by what it announces: a longer
 * string is read past and reported by its length, anything else that grows beyond bounds, nests, or
 * is no protocol at all ends the stream with -EPROTO.
 *
 * Where bytes go.  The caller reads from its socket into the room that is offered here.  That is a
 * small buffer, whose bytes go through hiredis; but once hiredis has read the line that announces a
 * large string, the rest of it is read to where it stays, and hiredis, which would copy it twice,
 * never sees it.
 *
 * What it relies on.  hiredis 0.14's reader hands a string over when the whole of it is there, and
 * its state (what is being read, and the bytes not used yet) is public.
 */
#pragma once

#include "radix/base.h"

#include <sys/uio.h>

/* Elements of an array, and bytes of one of them, that are worth keeping. */
#define PREFIXD_REPLY_PARTS    256u
#define PREFIXD_REPLY_PART_LEN 100u

enum prefixd_reply_kind {
	PREFIXD_REPLY_STATUS,
	PREFIXD_REPLY_ERROR,
	PREFIXD_REPLY_INTEGER,
	PREFIXD_REPLY_NIL,
	PREFIXD_REPLY_STRING,
	PREFIXD_REPLY_ARRAY,
	PREFIXD_REPLY_OVERSIZED, /* a string longer than max_string; `integer`: its length */
};

struct prefixd_reply_part {
	bool string; /* else nil, a number, or too long to be kept */
	uint8_t len;
	char text[PREFIXD_REPLY_PART_LEN];
};

struct prefixd_reply {
	enum prefixd_reply_kind kind;
	int64_t integer;
	char *text; /* STATUS, ERROR, STRING: may be changed, valid during the call, no NUL */
	size_t len;
	const struct prefixd_reply_part *parts; /* ARRAY */
	uint32_t n_parts;
};

struct prefixd_replies; /* opaque */

/*
 * `on_reply` is called once per reply, in order; false: this reply cannot be, end the stream.  It
 * may not call into this reader.
 */
radix_nodiscard int prefixd_replies_new(struct prefixd_replies **ret_replies, size_t max_string,
					bool (*on_reply)(void *ctx,
							 const struct prefixd_reply *reply),
					void *ctx);
struct prefixd_replies *prefixd_replies_free(struct prefixd_replies *r);
/*
 * Where the next bytes of the stream belong: one or two pieces, to be filled in order.  Return: how
 * many pieces; 0: the stream is over.
 */
int prefixd_replies_room(struct prefixd_replies *r, struct iovec ret_room[2]);
/*
 * `len` bytes were read into the room that was offered last.  Return: 0; -EPROTO or -ENOMEM, the
 * stream is over then.
 */
radix_nodiscard int prefixd_replies_filled(struct prefixd_replies *r, size_t len);
/* Both, for bytes that lie elsewhere.  Return: as above; -EPROTO when the stream was over. */
radix_nodiscard int prefixd_replies_feed(struct prefixd_replies *r, const void *bytes, size_t len);
/* As new, for another connection.  Return: 0; -ENOMEM, the stream is over until it succeeds. */
radix_nodiscard int prefixd_replies_reset(struct prefixd_replies *r);
