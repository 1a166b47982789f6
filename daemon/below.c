/*
 * below.c - see below.h.
 */
#include "daemon/below.h"

#include "daemon/server_internal.h"

bool prefixd_server_redis(const struct prefixd_server *s, struct prefixd_redis_stats *ret)
{
	*ret = (struct prefixd_redis_stats){ 0 };
	return false;
}

void prefixd_server_helpers(const struct prefixd_server *s, uint64_t now_ns,
			    struct prefixd_helper_info *ret_copy,
			    struct prefixd_helper_info *ret_redis)
{
	*ret_copy = (struct prefixd_helper_info){ 0 };
	*ret_redis = (struct prefixd_helper_info){ 0 };
}
