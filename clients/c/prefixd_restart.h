/*
 * prefixd_restart.h - libprefixd: over the end of a connection, and of a daemon.
 *
 * What ends with a connection: leases, as far as calls name them.  They answer PFX_UNKNOWN_LEASE
 * from then on, at once, and so does the call that met the end if a daemon is there again
 * (PFX_GONE if none is).  The next call connects anew and opens the namespaces.
 *
 * What does not end: the memory.  Addresses from pfx_slot stay good.  What this process had
 * leased stays where it is, and what it had reserved stays its own, for the daemon knows that a
 * device may be at it: also when it was not the connection but the daemon that ended, if the next
 * one kept its memory.  So a step that is under way goes on as if nothing had happened, only that
 * pfx_commit will not store it.  A daemon that kept no memory comes back with another pool
 * (pfx_namespace_info.pool tells), and nobody keeps the old one right any more.
 *
 * Who says when it is over: the worker, for nobody else knows what a device still does.
 *
 *     pfx_release      as ever, for each lease when nothing of it is read or written any more; also
 *                      for one that answered PFX_UNKNOWN_LEASE or PFX_REVOKED.  With the last one
 *                      of these the library tells the daemon (QUIESCED).
 *     pfx_quiesced     for all of these at once, whatever was released.  *ret_n_slots may be NULL:
 *                      slots of their own that came free by it.  PFX_GONE, PFX_DEADLINE: say it
 *                      again later.
 *
 * A worker that releases every lease that it was given need do nothing else.  One that forgets
 * them when a call fails has to call pfx_quiesced after its step, or its blocks are kept from
 * others until the process ends.  Each client speaks for itself: several in one process are
 * strangers.
 */
#ifndef PREFIXD_RESTART_H
#define PREFIXD_RESTART_H

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

/* Leases of this client's ended connections that the daemon holds; 0: nothing is to be said. */
PFX_API int pfx_orphans(pfx_client *client, uint32_t *ret_n_leases);

#ifdef __cplusplus
}
#endif

#endif
