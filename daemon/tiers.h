/*
 * tiers.h - the loop's side of the helpers: actions become messages, answers become events.
 *
 *     engine's action                         helper                      engine's event
 *     POOL_CREATE, POOL_DESTROY        ->     copy                  ->    POOL_READY, POOL_FAILED
 *     COPY                             ->     copy                  ->    MOVED
 *     STORE, FETCH, NAMES, LOOK, EPOCH ->     redis                 ->    MOVED, LOOKED
 *     STORE of a slot that no CPU reaches ->  copy, then redis      ->    MOVED
 *     FETCH into such a slot           ->     redis, then copy      ->    MOVED
 *     (nobody asked)                          redis                 ->    REDIS_STATE, EPOCH_SEEN
 *
 * What it guarantees.  Every action that wants an answer gets one, in a later turn of the loop and
 * never inside the step that asked; one that no helper can carry out is answered with DOWN or 0.
 * An epoch that was raised here is on the disk before the step that raised it is over.  A helper
 * that ended is started again, at most once a second, and the log says so.
 *
 * What it relies on.  The engine uses a slot for nothing else while it is on its way.
 */
#pragma once

#include "daemon/carrier.h"
#include "daemon/epochs.h"
#include "daemon/redis.h"

struct prefixd_server;
struct prefixd_options;
struct prefixd_engine_config;
struct prefixd_tiers;

/* What the settings say to the engine about tiers. */
void prefixd_tiers_config(const struct prefixd_options *o, struct prefixd_engine_config *config);
/*
 * Starts the helpers; the device is open and the loop's base is there.  Return: 0; negative errno
 * with a sentence in `why`; prefixd_tiers_free() cleans up either way.
 */
radix_nodiscard int prefixd_tiers_start(struct prefixd_server *s, char *why, size_t why_len);
/* Reads what a life before this one left.  Return: as above. */
radix_nodiscard int prefixd_tiers_restore(struct prefixd_server *s, char *why, size_t why_len);
/* Ends the helpers.  Copies may still be at the device: close it before prefixd_tiers_free(). */
void prefixd_tiers_stop(struct prefixd_server *s);
void prefixd_tiers_free(struct prefixd_server *s);

/* Epochs that are not on the disk yet. */
void prefixd_tiers_save(struct prefixd_server *s);
/* The memory of a pool is being made, or waits to be. */
bool prefixd_tiers_making(const struct prefixd_server *s);

/* One of the actions above. */
void prefixd_tiers_act(struct prefixd_server *s, const struct prefixd_action *a);
/* After all actions of a step: what the engine has to hear before anything else. */
void prefixd_tiers_after(struct prefixd_server *s);

/* For whoever shows them; NULL: does not run. */
const struct prefixd_carrier *prefixd_tiers_carrier(const struct prefixd_server *s);
const struct prefixd_redis *prefixd_tiers_redis(const struct prefixd_server *s);

/* naming_key.c: where epochs are kept, beside the naming key; for free(), NULL without memory. */
char *prefixd_epochs_path(const struct prefixd_options *o);
