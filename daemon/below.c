/*
 * below.c - see below.h.
 */
#include "daemon/below.h"

#include "daemon/server_internal.h"
#include "daemon/tiers.h"

bool prefixd_server_redis(const struct prefixd_server *s, struct prefixd_redis_stats *ret)
{
	const struct prefixd_redis *r = prefixd_tiers_redis(s);

	*ret = (struct prefixd_redis_stats){ 0 };
	if (!r)
		return false;
	prefixd_redis_stats(r, ret);
	return true;
}

void prefixd_server_carrier(const struct prefixd_server *s, struct prefixd_carrier_stats *ret)
{
	const struct prefixd_carrier *c = prefixd_tiers_carrier(s);

	*ret = (struct prefixd_carrier_stats){ 0 };
	if (c)
		prefixd_carrier_stats(c, ret);
}

static void helper_get(const struct prefixd_helper *h, uint64_t now_ns,
		       struct prefixd_helper_info *ret)
{
	uint64_t beat = prefixd_helper_beat(h);

	ret->waiting = prefixd_helper_waiting(h);
	ret->beat_age_ns = beat && now_ns > beat ? now_ns - beat : 0;
}

void prefixd_server_helpers(const struct prefixd_server *s, uint64_t now_ns,
			    struct prefixd_helper_info *ret_copy,
			    struct prefixd_helper_info *ret_redis)
{
	const struct prefixd_carrier *c = prefixd_tiers_carrier(s);
	const struct prefixd_redis *r = prefixd_tiers_redis(s);

	*ret_copy = (struct prefixd_helper_info){ 0 };
	*ret_redis = (struct prefixd_helper_info){ 0 };
	if (c && prefixd_carrier_helper(c))
		helper_get(prefixd_carrier_helper(c), now_ns, ret_copy);
	if (r)
		helper_get(prefixd_redis_helper(r), now_ns, ret_redis);
}
