/*
 * prefixd_events.h - what is stored and what goes, as a stream: for routers and indexers.
 *
 *     pfx_subscribe(client, NULL, 0, NULL, 0, &last);
 *     while (pfx_next_event(client, 1000, &event) ...)
 *
 * A client that subscribed is used for nothing else: its other calls answer PFX_WRONG_STATE, but
 * for pfx_close and pfx_error.  A worker hears of the namespaces that it opened (before it
 * subscribes; map = 0 is enough) and of tenants that it may name; a client of the admin socket
 * hears of all.
 *
 * Keep, for each root, the blocks told by STORED; take away those told by REMOVED; forget all of a
 * namespace at CLEARED and everything at RESYNC.  Blocks stored before are not told.  Who reads too
 * slowly loses events, and hears so by one RESYNC; the daemon waits for nobody.
 */
#ifndef PREFIXD_EVENTS_H
#define PREFIXD_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef PFX_API
#if defined(__GNUC__)
#define PFX_API __attribute__((visibility("default")))
#else
#define PFX_API
#endif
#endif

typedef struct pfx_client pfx_client;
typedef struct pfx_namespace pfx_namespace;

enum pfx_change_kind {
	PFX_CHANGE_STORED = 1,
	PFX_CHANGE_REMOVED = 2,
	PFX_CHANGE_MOVED = 3, /* its highest copy is in another tier now */
	PFX_CHANGE_CLEARED = 4,
	PFX_CHANGE_RESYNC = 5
};

typedef struct {
	size_t struct_size;
	int kind;            /* PFX_CHANGE_* */
	int tier, from_tier; /* 0 device, 1 host, 2 redis */
	int reason;          /* removed: pfx_removal_to_string() */
	uint64_t number;     /* rises; to go on later ask for the next one */
	uint32_t ns, tenant;
	uint8_t root[16];               /* as pfx_match names it */
	uint8_t block[64], parent[64];  /* digests; in token mode 16 bytes that mean nothing */
	uint32_t block_len, parent_len; /* parent_len 0: it begins a prompt, or an island */
	uint32_t position;              /* stored, token mode: blocks before it; else UINT32_MAX */
	uint32_t n_tokens;
	uint32_t slot;     /* UINT32_MAX: none */
	uint64_t revision; /* cleared: counts the clears of the namespace */
} pfx_change;

/*
 * ns NULL: every namespace that this client may see.  from 0: from now on; else the number of the
 * first event wanted, and `life` the 16 bytes of pfx_boot_id() under which it was counted.
 * *ret_last (may be NULL): number of the last event so far.  Return: PFX_OK; PFX_WRONG_STATE when
 * it has subscribed already; any other status.
 */
PFX_API int pfx_subscribe(pfx_client *client, pfx_namespace *ns, uint64_t from,
			  const uint8_t life[16], uint32_t deadline_ms, uint64_t *ret_last);
/*
 * The next event.  Return: PFX_OK; PFX_DEADLINE: none came, the stream goes on; PFX_WRONG_STATE:
 * not subscribed; PFX_GONE: the connection ended and the subscription with it: subscribe again,
 * from the number after the last one.
 */
PFX_API int pfx_next_event(pfx_client *client, uint32_t deadline_ms, pfx_change *ret);
PFX_API const char *pfx_change_to_string(int kind);
PFX_API const char *pfx_removal_to_string(int reason);
PFX_API const char *pfx_tier_to_string(int tier);

#ifdef __cplusplus
}
#endif

#endif
