/*
 * fields.c - messages.h as data; see fields.h.
 */
#include "proto/fields.h"

#define FIELD(name, kind, max) \
	{ #name, PROTO_KIND_##kind, (uint32_t)offsetof(body, name), (uint32_t)(max) },
#define F_U8(name)        FIELD(name, U8, 0)
#define F_U16(name)       FIELD(name, U16, 0)
#define F_U32(name)       FIELD(name, U32, 0)
#define F_U64(name)       FIELD(name, U64, 0)
#define F_ID(name)        FIELD(name, ID, 0)
#define F_STR(name, max)  FIELD(name, STR, max)
#define F_BLOB(name, max) FIELD(name, BLOB, max)
#define F_RUNS(name, max) FIELD(name, RUNS, max)
#define F_SINCE(version)

/*
 * One case per body: the local typedef is what lets every field say offsetof(body, ...).  The last
 * entry of each table has no name, since the empty body's would have no entry otherwise.
 */
const struct proto_body *proto_body_get(enum proto_body_id id)
{
	switch (id) {
#define X(low, FIELDS)                                                                            \
	case PROTO_BODY_##low: {                                                                  \
		typedef struct proto_##low body;                                                  \
		static const struct proto_field fields[] = { FIELDS(F_U8, F_U16, F_U32, F_U64,    \
								    F_ID, F_STR, F_BLOB, F_RUNS,  \
								    F_SINCE){ NULL, 0, 0, 0 } };  \
		static const struct proto_body b = { #low, fields, radix_array_size(fields) - 1,  \
						     (uint32_t)sizeof(body) };                    \
		_Static_assert(sizeof(body) <= PROTO_BODY_SIZE_MAX, "raise PROTO_BODY_SIZE_MAX"); \
		return &b;                                                                        \
	}
		PROTO_BODIES(X)
#undef X
	case PROTO_N_BODIES:
		break;
	}
	__builtin_trap(); /* a programmer error: no such body */
}

#define N_INT(name)       n++;
#define N_SPAN(name, max) n++;
#define N_SINCE(first)         \
	if (version < (first)) \
		return n;

uint32_t proto_body_n_fields(enum proto_body_id id, uint32_t version)
{
	uint32_t n = 0;

	switch (id) {
#define X(low, FIELDS)                                                                     \
	case PROTO_BODY_##low:                                                             \
		FIELDS(N_INT, N_INT, N_INT, N_INT, N_INT, N_SPAN, N_SPAN, N_SPAN, N_SINCE) \
		return n;
		PROTO_BODIES(X)
#undef X
	case PROTO_N_BODIES:
		break;
	}
	__builtin_trap(); /* a programmer error: no such body */
}

int proto_body_of(uint16_t op, uint16_t status, bool reply)
{
	if (reply && status != PROTO_STATUS_OK)
		return PROTO_BODY_error;
	switch (op) {
#define X(sym, req, rep)     \
	case PROTO_OP_##sym: \
		return reply ? (int)PROTO_BODY_##rep : (int)PROTO_BODY_##req;
		PROTO_FRAMES(X)
#undef X
	default:
		return -1;
	}
}
