/*
 * holder_wire.h - what prefixd-holder, prefixd and prefixctl say to each other.
 *
 * Every message is one packet of a SOCK_SEQPACKET socket and one frame of fixed length; a request
 * has exactly one reply with the same op and seq, in order.  At most one descriptor goes with it:
 * with PUT to the holder, with the reply of ITEM from him.  Once he speaks unasked: RELEASE with
 * seq 0 tells a daemon that its memory is being given up.
 *
 * What it guarantees.  Decoding reads PROTO_HOLDER_LEN bytes and no more, allocates nothing, and
 * gives texts that end, hold printable bytes only, and have nothing behind their end.
 *
 * The first PROTO_HOLDER_HEAD_LEN bytes mean the same in every version, and so does RELEASE, which
 * needs no more than them: a holder of another version can always be told to go.
 */
#pragma once

#include "radix/base.h"

#define PROTO_HOLDER_MAGIC     0x48584650u /* bytes "PFXH" */
#define PROTO_HOLDER_VERSION   1u
#define PROTO_HOLDER_LEN       192u
#define PROTO_HOLDER_HEAD_LEN  24u
#define PROTO_HOLDER_NAME_LEN  64u /* with the terminating zero */
#define PROTO_HOLDER_TEXT_LEN  32u
#define PROTO_HOLDER_ITEMS_MAX 256u
#define PROTO_HOLDER_SUFFIX    ".holder" /* behind the path of the daemon's admin socket */

/*
 * HELLO    first on a connection.  Flag DAEMON: the sender is the daemon, and may do all; without
 *          it he may ask for ITEM and RELEASE.  timeout_ns (daemon): how long to stay without one
 * PUT      keep the descriptor under `name`, in place of an older one
 * DROP     forget `name`, and what begins with it and a dot
 * ITEM     the item at place `index`; flag SEND: with its descriptor
 * RELEASE  give everything up and leave; flag FORCE: although a daemon is served
 */
#define PROTO_HOLDER_OPS(X) \
	X(HELLO, 1)         \
	X(PUT, 2)           \
	X(DROP, 3)          \
	X(ITEM, 4)          \
	X(RELEASE, 5)

enum proto_holder_op {
#define X(sym, n) PROTO_HOLDER_##sym = n,
	PROTO_HOLDER_OPS(X)
#undef X
};

#define PROTO_HOLDER_STATUSES(X)                                         \
	X(OK, 0, "done")                                                 \
	X(VERSION, 1, "speaks another version of the holder's protocol") \
	X(BAD, 2, "got a frame that is none")                            \
	X(FORBIDDEN, 3, "serves its own user and root only")             \
	X(SERVED, 4, "serves a daemon")                                  \
	X(ORDER, 5, "was asked for what this connection may not have")   \
	X(NO_ITEM, 6, "has no such item")                                \
	X(FULL, 7, "has no place for another item")                      \
	X(NO_DESCRIPTOR, 8, "got no descriptor, or had none left to receive it")

enum proto_holder_status {
#define X(sym, n, text) PROTO_HOLDER_STATUS_##sym = n,
	PROTO_HOLDER_STATUSES(X)
#undef X
};

enum {
	PROTO_HOLDER_DAEMON = 1, /* HELLO */
	PROTO_HOLDER_FORCE = 2,  /* RELEASE */
	PROTO_HOLDER_SEND = 4,   /* ITEM */
};

/* One layout for all; what an op does not name is 0. */
struct proto_holder_frame {
	uint16_t version; /* of this protocol, the sender's */
	uint16_t op;
	uint64_t seq; /* requests count from 1 on */
	uint32_t status;
	uint32_t flags;
	/* The head ends here. */
	uint32_t index;                   /* ITEM */
	uint32_t n_items;                 /* every reply of this version */
	uint32_t holder_pid;              /* HELLO's reply */
	uint32_t daemon_pid;              /* HELLO's reply; 0: none is served */
	uint64_t timeout_ns;              /* HELLO and its reply */
	uint64_t left_ns;                 /* HELLO's reply: until he leaves; UINT64_MAX: he stays */
	uint64_t age_ns;                  /* HELLO's reply: how long he has been there */
	uint64_t size;                    /* ITEM's reply: length of the file */
	uint64_t held;                    /* ITEM's reply: bytes of memory that it takes */
	char name[PROTO_HOLDER_NAME_LEN]; /* an item's; in HELLO's reply the daemon's version */
	char text[PROTO_HOLDER_TEXT_LEN]; /* HELLO and its reply: version of the sender's program */
};

enum {
	_PROTO_HOLDER_E_OK,
	PROTO_HOLDER_E_VERSION, /* only the head was decoded */
	PROTO_HOLDER_E_BAD,     /* no frame */
};

/* Names of items: letters, digits, dot, minus, underscore; at least one. */
static inline bool proto_holder_name_ok(const char *name)
{
	size_t n = strnlen(name, PROTO_HOLDER_NAME_LEN);

	for (size_t i = 0; i < n; i++) {
		char c = name[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
		    c != '.' && c != '-' && c != '_')
			return false;
	}
	return n > 0 && n < PROTO_HOLDER_NAME_LEN;
}

/* Printable ASCII, then zeroes up to the end of the field. */
static inline bool proto_holder_text_ok(const char *text, size_t len)
{
	size_t n = strnlen(text, len);

	for (size_t i = 0; i < len; i++)
		if (i < n ? text[i] < ' ' || text[i] > '~' : text[i] != '\0')
			return false;
	return n < len;
}

/* The wire and every machine that this runs on are little endian. */
#define PROTO_HOLDER_FIELDS(X) \
	X(version, 4)          \
	X(op, 6)               \
	X(seq, 8)              \
	X(status, 16)          \
	X(flags, 20)           \
	X(index, 24)           \
	X(n_items, 28)         \
	X(holder_pid, 32)      \
	X(daemon_pid, 36)      \
	X(timeout_ns, 40)      \
	X(left_ns, 48)         \
	X(age_ns, 56)          \
	X(size, 64)            \
	X(held, 72)            \
	X(name, 80)            \
	X(text, 144)

static inline void proto_holder_encode(const struct proto_holder_frame *f,
				       uint8_t ret_bytes[PROTO_HOLDER_LEN])
{
	const uint32_t magic = PROTO_HOLDER_MAGIC;

	memset(ret_bytes, 0, PROTO_HOLDER_LEN);
	memcpy(ret_bytes, &magic, sizeof(magic));
#define X(field, at) memcpy(ret_bytes + (at), &f->field, sizeof(f->field));
	PROTO_HOLDER_FIELDS(X)
#undef X
}

/*
 * The packet at p[0..n).  Return: 0; PROTO_HOLDER_E_VERSION with the head, the rest 0;
 * PROTO_HOLDER_E_BAD, also for a frame of this version whose unused bytes are not 0.
 */
static inline int proto_holder_decode(const void *p, size_t n, struct proto_holder_frame *ret)
{
	struct proto_holder_frame f = { 0 };
	const uint8_t *bytes = p;
	uint32_t magic;

	if (n < PROTO_HOLDER_HEAD_LEN)
		return PROTO_HOLDER_E_BAD;
	memcpy(&magic, bytes, sizeof(magic));
	if (magic != PROTO_HOLDER_MAGIC)
		return PROTO_HOLDER_E_BAD;
	memcpy(&f.version, bytes + 4, sizeof(f.version));
#define X(field, at)                                                            \
	if ((at) < PROTO_HOLDER_HEAD_LEN ||                                     \
	    (f.version == PROTO_HOLDER_VERSION && (at) + sizeof(f.field) <= n)) \
		memcpy(&f.field, bytes + (at), sizeof(f.field));
	PROTO_HOLDER_FIELDS(X)
#undef X
	if (f.version != PROTO_HOLDER_VERSION) {
		*ret = f;
		return PROTO_HOLDER_E_VERSION;
	}
	if (n != PROTO_HOLDER_LEN || !proto_holder_text_ok(f.name, sizeof(f.name)) ||
	    !proto_holder_text_ok(f.text, sizeof(f.text)))
		return PROTO_HOLDER_E_BAD;
	for (size_t i = 176; i < PROTO_HOLDER_LEN; i++)
		if (bytes[i] != 0)
			return PROTO_HOLDER_E_BAD;
	*ret = f;
	return 0;
}

static inline const char *proto_holder_status_to_string(uint32_t status)
{
	switch (status) {
#define X(sym, n, text) \
	case n:         \
		return text;
		PROTO_HOLDER_STATUSES(X)
#undef X
	default:
		return "says what this version does not know";
	}
}
