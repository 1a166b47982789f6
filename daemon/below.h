/*
 * below.h - what operators see of the threads below the loop: Redis, and how the helpers fare.
 *
 * One place that knows where the shell keeps them, for the pages and for the admin socket.
 */
#pragma once

#include "daemon/carrier.h"
#include "daemon/redis.h"

struct prefixd_server;

/* False, and zeroes, where no Redis is configured. */
bool prefixd_server_redis(const struct prefixd_server *s, struct prefixd_redis_stats *ret);

/* Zeroes where it does not run. */
void prefixd_server_carrier(const struct prefixd_server *s, struct prefixd_carrier_stats *ret);

struct prefixd_helper_info {
	uint64_t waiting;     /* requests */
	uint64_t beat_age_ns; /* since it last said that it is alive */
};

/* Zeroes for one that does not run. */
void prefixd_server_helpers(const struct prefixd_server *s, uint64_t now_ns,
			    struct prefixd_helper_info *ret_copy,
			    struct prefixd_helper_info *ret_redis);
/* True: the device is lost, and the text says by what. */
bool prefixd_server_device_lost(const struct prefixd_server *s, char *text, size_t len);
