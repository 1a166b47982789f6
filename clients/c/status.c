/*
 * status.c - statuses and reasons as words.
 */
#include "clients/c/internal.h"

const char *pfx_status_to_string(int status)
{
	switch (status) {
	case PFX_GONE:
		return "GONE";
	case PFX_PROTOCOL:
		return "PROTOCOL";
	case PFX_FORKED:
		return "FORKED";
	case PFX_ARGUMENT:
		return "ARGUMENT";
	case PFX_TOO_SMALL:
		return "TOO_SMALL";
	default:
		if (status < 0 || status > UINT16_MAX)
			return "?";
		return proto_status_to_string((uint16_t)status);
	}
}

const char *pfx_reason_to_string(int reason)
{
	if (reason < 0 || reason > UINT8_MAX)
		return "?";
	return proto_reason_to_string((uint8_t)reason);
}
