/*
 * codec.c - headers and bodies, both ways.
 *
 * Every read goes through take(), every write through put(): these two and get_span() hold all the
 * bounds checks there are.  The rest is expanded from the tables of messages.h.  Lengths are
 * compared in 64 bits, so no count times size can wrap.  Cost is per field, not per byte, but for
 * STR, which is searched for a byte 0 (at most 512 bytes, and none in MATCH): a name with a byte 0
 * would read as another, shorter name wherever C strings are used.
 */
#include "proto/codec.h"

#include "proto/fields.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "the wire is little endian, as is memory");
_Static_assert(sizeof(struct radix_run) == 8, "a run on the wire is two u32");
_Static_assert(sizeof(struct proto_header) == PROTO_HEADER_LEN, "the header has no padding");

/* ---- reading --------------------------------------------------------------------------------- */

/* The next n bytes; NULL once anything was wrong. */
static inline const uint8_t *take(struct proto_reader *r, const char *field, uint64_t n)
{
	const uint8_t *p = r->p;

	if (radix_unlikely(r->bad_field || n > r->left)) {
		if (!r->bad_field)
			r->bad_field = field;
		return NULL;
	}
	r->p += n;
	r->left -= (uint32_t)n;
	return p;
}

static inline void get(struct proto_reader *r, const char *field, void *ret, uint32_t n)
{
	const uint8_t *p = take(r, field, n);

	if (radix_likely(p))
		memcpy(ret, p, n);
	else
		memset(ret, 0, n);
}

/* A span of at most max units of unit bytes, behind its length of len_width bytes. */
static inline struct proto_span get_span(struct proto_reader *r, const char *field,
					 uint32_t len_width, uint64_t max, uint32_t unit)
{
	struct proto_span s = { NULL, 0 };
	uint32_t n = 0;

	get(r, field, &n, len_width);
	/* The limit first: a length over it is wrong however long the body. */
	if (radix_unlikely(n > max)) {
		if (!r->bad_field)
			r->bad_field = field;
		return s;
	}
	s.p = take(r, field, (uint64_t)n * unit);
	if (radix_likely(s.p))
		s.n = n;
	return s;
}

static inline struct proto_span get_str(struct proto_reader *r, const char *field, uint64_t max)
{
	struct proto_span s = get_span(r, field, 2, max, 1);

	if (radix_unlikely(s.n && memchr(s.p, 0, s.n)))
		r->bad_field = field; /* s.n > 0: nothing was wrong before */
	return s;
}

/* ---- writing --------------------------------------------------------------------------------- */

static inline void put(struct proto_writer *w, const void *p, size_t n)
{
	/* len may have run past cap; it goes on counting, and nothing more is written. */
	if (radix_likely(w->len <= w->cap && n <= w->cap - w->len && n > 0))
		memcpy(w->p + w->len, p, n);
	w->len += n;
}

static inline void put_span(struct proto_writer *w, const char *field, struct proto_span s,
			    uint32_t len_width, uint64_t max, uint32_t unit)
{
	if (radix_unlikely(s.n > max)) {
		if (!w->bad_field)
			w->bad_field = field;
		s.n = 0;
	}
	put(w, &s.n, len_width); /* little endian: the low bytes come first */
	put(w, s.p, (size_t)s.n * unit);
}

static inline void put_str(struct proto_writer *w, const char *field, struct proto_span s,
			   uint64_t max)
{
	if (radix_unlikely(s.n && s.n <= max && memchr(s.p, 0, s.n)) && !w->bad_field)
		w->bad_field = field;
	put_span(w, field, s, 2, max, 1);
}

/* ---- header and frame ------------------------------------------------------------------------ */

int proto_header_decode(const void *p, size_t n, uint32_t max_frame, struct proto_header *ret_h,
			enum proto_status *ret_status)
{
	struct proto_header h;

	if (n < PROTO_HEADER_LEN)
		return PROTO_E_SHORT;
	memcpy(&h, p, sizeof(h));
	*ret_h = h;
	/* What a later version may change is looked at only once the version is known. */
	if (h.magic != PROTO_MAGIC)
		*ret_status = PROTO_STATUS_BAD_FRAME;
	else if (h.version < PROTO_VERSION_MIN || h.version > PROTO_VERSION)
		*ret_status = PROTO_STATUS_VERSION;
	else if (h.flags)
		*ret_status = PROTO_STATUS_BAD_FRAME;
	else if ((uint64_t)h.len + PROTO_HEADER_LEN > max_frame)
		*ret_status = PROTO_STATUS_TOO_LARGE;
	else
		return 0;
	return PROTO_E_BAD;
}

void proto_header_encode(const struct proto_header *h, uint8_t ret_bytes[PROTO_HEADER_LEN])
{
	memcpy(ret_bytes, h, PROTO_HEADER_LEN);
}

/* Room for the header.  Return: where the frame starts, for proto_frame_end. */
size_t proto_frame_begin(struct proto_writer *w)
{
	static const uint8_t room[PROTO_HEADER_LEN];
	size_t start = w->len;

	put(w, room, sizeof(room));
	return start;
}

int proto_frame_end(struct proto_writer *w, size_t start, struct proto_header *h)
{
	size_t len = w->len - start;

	radix_assert(len >= PROTO_HEADER_LEN);
	if (w->bad_field || len > PROTO_MAX_FRAME_LIMIT)
		return -EMSGSIZE;
	if (w->len > w->cap)
		return -ENOSPC;
	h->magic = PROTO_MAGIC;
	if (!h->version)
		h->version = PROTO_VERSION;
	h->len = (uint32_t)(len - PROTO_HEADER_LEN);
	proto_header_encode(h, w->p + start);
	return 0;
}

uint32_t proto_body_version(const struct proto_header *h, const void *body, bool reply)
{
	uint16_t agreed;

	if (!reply || h->op != PROTO_OP_HELLO || h->status != PROTO_STATUS_OK)
		return h->version;
	if (h->len < sizeof(agreed))
		return 0;
	memcpy(&agreed, body, sizeof(agreed));
	return agreed >= PROTO_VERSION_MIN && agreed <= PROTO_VERSION ? agreed : 0;
}

/* ---- HELLO's list of tenants ----------------------------------------------------------------- */

void proto_tenant_encode(struct proto_writer *w, uint32_t id, struct proto_span name)
{
	put(w, &id, sizeof(id));
	put_str(w, "tenants", name, UINT16_MAX);
}

bool proto_tenant_next(struct proto_span *rest, uint32_t *ret_id, struct proto_span *ret_name)
{
	struct proto_reader r = { rest->p, rest->n, NULL };
	struct proto_span name;
	uint32_t id;

	get(&r, "tenants", &id, sizeof(id));
	name = get_str(&r, "tenants", UINT16_MAX);
	if (r.bad_field)
		return false;
	*rest = (struct proto_span){ r.p, r.left };
	*ret_id = id;
	*ret_name = name;
	return true;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static inline void refuse_bits(struct proto_reader *r, const char *field, uint32_t bits,
			       uint32_t defined)
{
	if (radix_unlikely(bits & ~defined) && !r->bad_field)
		r->bad_field = field;
}

/*
 * Bits that a request sets and this version does not define are refused, so that a later version
 * can give them a meaning without an older daemon silently doing something else.  `id` is a
 * constant at every call: the switch costs nothing.
 */
static inline void check_bits(struct proto_reader *r, enum proto_body_id id, uint32_t version,
			      const void *msg)
{
#define CHECK(low, field, defined)                                                           \
	case PROTO_BODY_##low:                                                               \
		refuse_bits(r, #field, ((const struct proto_##low *)msg)->field, (defined)); \
		break;
	switch ((int)id) {
		CHECK(match_req, has, PROTO_HAS_ALL)
		CHECK(probe_req, has, PROTO_HAS_ALL)
		CHECK(explain_req, has, PROTO_HAS_ALL)
		CHECK(prefetch_req, has, PROTO_HAS_ALL)
	default:
		break;
	}
	switch ((int)id) {
		CHECK(hello_req, flags, PROTO_HELLO_ALL)
		CHECK(open_req, flags, version < 3 ? PROTO_OPEN_ALL_1 : PROTO_OPEN_ALL)
		CHECK(match_req, flags, version < 3 ? PROTO_MATCH_ALL_1 : PROTO_MATCH_ALL)
		CHECK(extend_req, flags, PROTO_EXTEND_ALL)
		CHECK(release_req, flags, PROTO_RELEASE_ALL)
		CHECK(probe_req, flags, PROTO_PROBE_ALL)
	default:
		break;
	}
#undef CHECK
}

/* Return: 0, or PROTO_E_BAD with the first field that was wrong. */
static inline int finish(struct proto_reader *r, const char **ret_bad_field)
{
	if (radix_unlikely(r->left && !r->bad_field))
		r->bad_field = "trailing bytes";
	if (radix_likely(!r->bad_field))
		return 0;
	*ret_bad_field = r->bad_field;
	return PROTO_E_BAD;
}

#define D_INT(name)       get(r, #name, &msg->name, sizeof(msg->name));
#define D_STR(name, max)  msg->name = get_str(r, #name, max);
#define D_BLOB(name, max) msg->name = get_span(r, #name, 4, max, 1);
#define D_RUNS(name, max) msg->name = get_span(r, #name, 4, max, sizeof(struct radix_run));
#define D_SINCE(first)         \
	if (version < (first)) \
		return;

#define E_INT(name)       put(w, &m->name, sizeof(m->name));
#define E_STR(name, max)  put_str(w, #name, m->name, max);
#define E_BLOB(name, max) put_span(w, #name, m->name, 4, max, 1);
#define E_RUNS(name, max) put_span(w, #name, m->name, 4, max, sizeof(struct radix_run));
#define E_SINCE(first)         \
	if (version < (first)) \
		return;

#define X(low, FIELDS)                                                                       \
	static inline void get_##low(struct proto_reader *r, uint32_t version,               \
				     struct proto_##low *msg)                                \
	{                                                                                    \
		(void)r;                                                                     \
		(void)version;                                                               \
		(void)msg;                                                                   \
		FIELDS(D_INT, D_INT, D_INT, D_INT, D_INT, D_STR, D_BLOB, D_RUNS, D_SINCE)    \
	}                                                                                    \
	int proto_##low##_decode_as(uint32_t version, const void *body, uint32_t n,          \
				    struct proto_##low *ret_msg, const char **ret_bad_field) \
	{                                                                                    \
		struct proto_reader r = { n ? body : "", n, NULL };                          \
		struct proto_##low msg = {};                                                 \
                                                                                             \
		get_##low(&r, version, &msg);                                                \
		check_bits(&r, PROTO_BODY_##low, version, &msg);                             \
		if (finish(&r, ret_bad_field))                                               \
			return PROTO_E_BAD;                                                  \
		*ret_msg = msg;                                                              \
		return 0;                                                                    \
	}                                                                                    \
	void proto_##low##_encode_as(struct proto_writer *w, uint32_t version,               \
				     const struct proto_##low *m)                            \
	{                                                                                    \
		(void)version;                                                               \
		FIELDS(E_INT, E_INT, E_INT, E_INT, E_INT, E_STR, E_BLOB, E_RUNS, E_SINCE)    \
	}
PROTO_BODIES(X)
#undef X

/* ---- CHANGES' events ------------------------------------------------------------------------- */

void proto_change_append(struct proto_writer *w, const struct proto_change *change)
{
	size_t start = w->len;
	uint16_t n = 0;

	put(w, &n, sizeof(n));
	proto_change_encode(w, change);
	n = (uint16_t)(w->len - start - sizeof(n)); /* two digests and some integers: it fits */
	if (proto_writer_ok(w))
		memcpy(w->p + start, &n, sizeof(n));
}

int proto_change_next(struct proto_span *rest, struct proto_change *ret_change)
{
	struct proto_reader r = { rest->p, rest->n, NULL };
	struct proto_span body;
	const char *bad;

	if (!rest->n)
		return PROTO_E_SHORT;
	body = get_span(&r, "events", 2, UINT16_MAX, 1);
	if (r.bad_field || proto_change_decode(body.p, body.n, ret_change, &bad))
		return PROTO_E_BAD;
	*rest = (struct proto_span){ r.p, r.left };
	return 0;
}
