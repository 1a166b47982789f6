/*
 * namespace.h - namespaces and the pools that they are mapped from; a part of internal.h, which
 * includes it.
 */
#pragma once

#include "clients/c/prefixd.h"
#include "clients/c/prefixd_device.h"
#include "proto/codec.h"

#include <sys/types.h>

struct pfx_client;

/* Which file a descriptor is of: its inode, while somebody maps it. */
struct pfx_file {
	dev_t dev;
	ino_t ino;
};

/* A mapped pool with its generations; one per memory and protection, kept until pfx_close. */
struct pfx_pool {
	struct pfx_pool *next;
	uint32_t life, group; /* of the OPEN that was last told of it */
	struct proto_id id;   /* its name; zeroes from daemons that name none */
	struct pfx_file file, generations_file;
	uint16_t tag;       /* in reuse counters; the same for both protections of one memory */
	int map;            /* as asked for: 1 read-write, 2 read-only */
	bool not_inherited; /* children of a fork do not have `base` */
	uint8_t *base;      /* NULL: it is a device's */
	struct pfx_device *device; /* the client's; NULL: it is this machine's memory */
	uint64_t address;          /* of slot 0, on the device; 0: not mapped */
	uint64_t slab_len;
	size_t len;
	const uint64_t *generations;
	size_t generations_len;
	uint32_t n_slots;
	bool lost; /* with its device; unmapped when nobody holds a lease any more */
};

/* Memory to write in, of one session and pool group: desk.c. */
struct pfx_desk {
	struct pfx_desk *next;
	uint32_t life, group;
	uint32_t n_places;
	bool not_inherited;        /* children of a fork do not have `base` */
	uint8_t *base;             /* NULL: it is a device's */
	struct pfx_device *device; /* the client's; NULL: it is this machine's memory */
	uint64_t address;          /* of place 0, on the device; 0: not mapped */
	size_t len;
};

struct pfx_namespace {
	struct pfx_namespace *next;
	struct pfx_client *client;
	uint32_t life; /* under which it is open; another than the client's: OPEN again */
	bool stale;    /* its pool was lost since: the same */
	int map;
	uint8_t *open_body; /* OPEN's body as first sent; sent again after a reconnect */
	uint32_t open_body_len;
	uint32_t open_body_len_2; /* of what versions before 3 take of it */
	struct pfx_pool *pool;    /* NULL: not mapped */
	struct pfx_desk *desk;    /* NULL: blocks are written into the pool, or not at all */
	struct pfx_cache *caches; /* kernels.c */
	int device;               /* PFX_DEVICE_* */
	struct proto_id device_id;
	uint32_t window; /* blocks before its end that a match has slots for; 0: all */
	pfx_namespace_info info;
};

/* ---- namespace.c ----------------------------------------------------------------------------- */

/* LOST: the namespaces of that group are opened again, and map anew, when they are used. */
void pfx_group_lost(struct pfx_client *c, uint64_t group);
/* What is mapped of lost devices goes once no lease is held: after LOST, and when leases end. */
void pfx_let_go(struct pfx_client *c);
/* Sends OPEN again when the namespace is of an earlier life, or lost.  Return: as pfx_request. */
int pfx_namespace_ensure(struct pfx_client *c, struct pfx_namespace *ns);
void pfx_namespace_deinit_all(struct pfx_client *c);

/* ---- desk.c ---------------------------------------------------------------------------------- */

/* What the reply says of memory to write in, mapped.  Return: 0, or a public status. */
int pfx_desk_map(struct pfx_client *c, const struct proto_open_rep *rep, int fd,
		 struct pfx_desk **ret_desk);
/* Those of a group whose device is lost are written in no more: the next OPEN brings others. */
void pfx_desks_lost(struct pfx_client *c, uint64_t group);
/* The memory to write in was let go of, and the pool is not to be written. */
bool pfx_desk_gone(const struct pfx_namespace *ns);
/* Those of ended connections and lost devices go, once nobody can be writing in them. */
void pfx_desks_let_go(struct pfx_client *c);
void pfx_desks_free(struct pfx_client *c, bool child);

/* ---- kernels.c ------------------------------------------------------------------------------- */

/* The namespace's caches end, while its pool is mapped. */
void pfx_caches_free(struct pfx_namespace *ns, bool child);
