/*
 * moves.c - the daemon's status, before and after a replay.
 *
 * A daemon that was restarted meanwhile counts from 0 again; what it says then is all of its own.
 */
#include "clients/replay/moves.h"

#include "clients/c/prefixd.h"
#include "clients/replay/util.h"

#include <errno.h>
#include <jansson.h>

const char *replay_tier_to_string(enum replay_tier tier)
{
	static const char *const names[] = { "device", "host", "redis" };

	return tier < REPLAY_N_TIERS ? names[tier] : "?";
}

/* {"device": {"host": 12, "redis": 0}, ...}; what is not there is 0. */
static void take(const json_t *all, uint64_t ret[REPLAY_N_TIERS][REPLAY_N_TIERS])
{
	for (int from = 0; from < REPLAY_N_TIERS; from++) {
		const json_t *by_to =
			json_object_get(all, replay_tier_to_string((enum replay_tier)from));

		for (int to = 0; to < REPLAY_N_TIERS; to++) {
			const char *name = replay_tier_to_string((enum replay_tier)to);
			json_int_t n = json_integer_value(json_object_get(by_to, name));

			ret[from][to] = n > 0 ? (uint64_t)n : 0;
		}
	}
}

int replay_moves_ask(const char *admin_socket, struct replay_moves *ret)
{
	pfx_connect_options o = { .struct_size = sizeof(o),
				  .socket = admin_socket,
				  .name = "prefixd-replay",
				  .deadline_ms = 10000 };
	pfx_client *client = NULL;
	json_t *status = NULL;
	char *text = NULL;
	int r = pfx_connect(&o, &client);

	if (r == PFX_OK)
		r = pfx_admin(client, "{\"op\": \"status\"}", 0, &text);
	if (r == PFX_OK)
		status = json_loads(text, 0, NULL);
	if (!json_is_true(json_object_get(status, "ok"))) {
		replay_say("cannot ask the daemon at %s: %s", admin_socket,
			   r == PFX_OK ? "its status does not read" : pfx_error(client));
		r = -EIO;
	} else {
		take(json_object_get(status, "demoted_blocks"), ret->demoted);
		take(json_object_get(status, "promoted_blocks"), ret->promoted);
		r = 0;
	}
	json_decref(status);
	pfx_free_string(text);
	pfx_close(client);
	return r;
}

static void subtract(uint64_t *now, uint64_t before)
{
	if (*now >= before)
		*now -= before;
}

void replay_moves_since(struct replay_moves *now, const struct replay_moves *before)
{
	for (int from = 0; from < REPLAY_N_TIERS; from++) {
		for (int to = 0; to < REPLAY_N_TIERS; to++) {
			subtract(&now->demoted[from][to], before->demoted[from][to]);
			subtract(&now->promoted[from][to], before->promoted[from][to]);
		}
	}
}
