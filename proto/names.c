/*
 * names.c - numbers of the protocol as the words that people and metrics see.
 */
#include "proto/codec.h"

const char *proto_op_to_string(uint16_t op)
{
	switch (op) {
#define X(code, sym, low) \
	case code:        \
		return #sym;
		PROTO_OPS(X)
#undef X
	default:
		return "?";
	}
}

const char *proto_status_to_string(uint16_t status)
{
	switch (status) {
#define X(code, sym, cure) \
	case code:         \
		return #sym;
		PROTO_STATUSES(X)
#undef X
	default:
		return "?";
	}
}

/* What the worker does about it. */
const char *proto_status_cure(uint16_t status)
{
	switch (status) {
#define X(code, sym, cure) \
	case code:         \
		return cure;
		PROTO_STATUSES(X)
#undef X
	default:
		return "compute; this client is older than the daemon";
	}
}

const char *proto_reason_to_string(uint8_t reason)
{
	switch (reason) {
#define X(code, sym, text) \
	case code:         \
		return text;
		PROTO_REASONS(X)
#undef X
	default:
		return "?";
	}
}

const char *proto_wait_state_to_string(uint8_t state)
{
	switch (state) {
#define X(code, sym, text) \
	case code:         \
		return text;
		PROTO_WAIT_STATES(X)
#undef X
	default:
		return "?";
	}
}

const char *proto_tier_to_string(uint8_t tier)
{
	switch (tier) {
#define X(code, sym, text) \
	case code:         \
		return text;
		PROTO_TIERS(X)
#undef X
	default:
		return "?";
	}
}

const char *proto_change_to_string(uint8_t kind)
{
	switch (kind) {
#define X(code, sym, text) \
	case code:         \
		return text;
		PROTO_CHANGES(X)
#undef X
	default:
		return "?";
	}
}

const char *proto_removal_to_string(uint8_t reason)
{
	switch (reason) {
#define X(code, sym, text) \
	case code:         \
		return text;
		PROTO_REMOVALS(X)
#undef X
	default:
		return "?";
	}
}
