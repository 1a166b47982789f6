/*
 * namespace.c - opening namespaces, mapping pools, slots.
 *
 * What it guarantees.  A memory is mapped once for each protection.  This machine's stays mapped
 * until the end of the client, so that a pointer from pfx_slot never dangles, whatever the daemon
 * does; a GPU's as well, unless the GPU is lost: then until the caller holds no lease any more.  A
 * daemon that was restarted and kept its memory is met with the mapping that is there.  The same
 * memory is what has the same name and is the same file: neither is believed alone.  Sizes are
 * checked against each other and against the descriptor's real length before anything is mapped:
 * an access inside a slot cannot run past the end of the memory.
 *
 * What it relies on.  Pools are sealed against shrinking by the daemon.
 */
#include "clients/c/namespace.h"

#include "clients/c/device.h"
#include "clients/c/internal.h"
#include "clients/c/prefixd_windows.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct proto_span text(const char *s)
{
	return (struct proto_span){ s ? s : "", s ? (uint32_t)strnlen(s, UINT16_MAX) : 0 };
}

/* The body of OPEN, kept for the next life.  Return: 0, PFX_NO_MEMORY, PFX_ARGUMENT. */
static int encode_open(struct pfx_client *c, const pfx_namespace_options *o,
		       struct pfx_namespace *ns)
{
	struct proto_open_req req = {
		.key_mode = (uint8_t)o->key_mode,
		.flags = o->flags,
		.model = text(o->model),
		.revision = text(o->revision),
		.dtype = text(o->dtype),
		.scales = text(o->scales),
		.layers = o->layers,
		.kv_heads = o->kv_heads,
		.head_dim = o->head_dim,
		.block_tokens = o->block_tokens,
		.block_bytes = o->block_bytes,
		.layout = text(o->layout),
		.windows = text(o->windows),
		.adapter = text(o->adapter),
		.tp_size = o->tp_size,
		.tp_rank = o->tp_rank,
		.engine = text(o->engine),
		.digest_len = o->digest_len,
		.seed_probe = { o->seed_probe, o->seed_probe_len },
		.cold_codec = text(o->cold_codec),
		.exact_layers = text(o->exact_layers),
	};
	uint8_t room[PROTO_MAX_HELLO];
	struct proto_writer w = { .p = room, .cap = sizeof(room) };

	proto_open_req_encode(&w, &req);
	if (w.bad_field)
		return pfx_fail(c, PFX_ARGUMENT, "OPEN: %s is too long or has a byte 0",
				w.bad_field);
	radix_assert(w.len <= w.cap); /* the fields' limits add up to less */
	ns->open_body = malloc(w.len);
	if (!ns->open_body)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for a namespace");
	memcpy(ns->open_body, room, w.len);
	ns->open_body_len = (uint32_t)w.len;
	w.len = 0;
	proto_open_req_encode_as(&w, 2, &req); /* the same bytes, fewer of them */
	ns->open_body_len_2 = (uint32_t)w.len;
	return 0;
}

/* ---- pools ----------------------------------------------------------------------------------- */

static bool long_enough(int fd, uint64_t len)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_size >= 0 && (uint64_t)st.st_size >= len;
}

/* In a child of the client's process what is mapped read-write was not inherited, and its addresses
 * may be somebody else's by now. */
static void pool_free(struct pfx_pool *p, bool child)
{
	if (p->base && !(child && p->not_inherited))
		munmap(p->base, p->len);
	if (p->address && !child) /* a driver does not outlive a fork */
		pfx_device_unmap(p->device, p->address, p->len, p->slab_len);
	if (p->generations) {
		void *v;

		memcpy(&v, &p->generations, sizeof(v)); /* munmap takes no pointer to const */
		munmap(v, p->generations_len);
	}
	free(p);
}

static bool same_file(const struct pfx_file *f, int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino;
}

/* Is that the memory which the reply brought? */
static bool is_memory(const struct pfx_client *c, const struct pfx_pool *p,
		      const struct proto_open_rep *rep, const int *fds)
{
	/* A daemon that names no pool makes new ones in each life. */
	if (proto_id_is_zero(&rep->pool) ? p->life != c->life || p->group != rep->group
					 : !proto_id_equal(&p->id, &rep->pool))
		return false;
	return same_file(&p->file, fds[0]) &&
	       same_file(&p->generations_file, fds[rep->n_pool_fds - 1]);
}

static int file_of(int fd, struct pfx_file *ret)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return -errno;
	*ret = (struct pfx_file){ st.st_dev, st.st_ino };
	return 0;
}

/* What there is of the reply's memory: the pool mapped as wanted, or NULL; and its tag, or 0. */
static struct pfx_pool *pool_find(struct pfx_client *c, const struct proto_open_rep *rep, int map,
				  const int *fds, uint16_t *ret_tag)
{
	*ret_tag = 0;
	for (struct pfx_pool *p = c->pools; p; p = p->next) {
		if (p->lost || !is_memory(c, p, rep, fds))
			continue;
		*ret_tag = p->tag;
		if (p->map == map)
			return p;
	}
	return NULL;
}

/* The slabs side by side, in a range that nothing else is in: p->base, once it is reserved. */
static int map_slabs(struct pfx_pool *p, int prot, const int *fds, uint32_t n_slabs,
		     uint64_t slab_len)
{
	void *v;

	if (n_slabs == 1) /* of huge pages, perhaps: the kernel knows a place for those */
		v = mmap(NULL, p->len, prot, MAP_SHARED, fds[0], 0);
	else
		v = mmap(NULL, p->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			 0);
	if (v == MAP_FAILED)
		return -errno;
	p->base = v;
	for (uint32_t i = 0; n_slabs > 1 && i < n_slabs; i++) {
		size_t at = i * slab_len, len = p->len - at;

		if (mmap(p->base + at, len < slab_len ? len : slab_len, prot,
			 MAP_SHARED | MAP_FIXED, fds[i], 0) == MAP_FAILED)
			return -errno;
	}
	return 0;
}

static int map_both(struct pfx_pool *p, int prot, const int *fds, uint32_t n_fds, uint64_t slab_len)
{
	int e = map_slabs(p, prot, fds, n_fds - 1, slab_len);
	void *v = p->base;

	if (e)
		return e;
	/* A child that could write would go on when nobody keeps its parent's slots any more. */
	p->not_inherited = (prot & PROT_WRITE) && madvise(v, p->len, MADV_DONTFORK) == 0;
	v = mmap(NULL, p->generations_len, PROT_READ, MAP_SHARED, fds[n_fds - 1], 0);
	if (v == MAP_FAILED)
		return -errno;
	p->generations = v;
	return 0;
}

static bool slabs_long_enough(const struct proto_open_rep *rep, const int *fds)
{
	/* A descriptor of a GPU's memory has no length; its driver looks. */
	for (uint32_t i = 0; rep->device == PROTO_DEVICE_MEMORY && i + 1 < rep->n_pool_fds; i++) {
		uint64_t left = rep->pool_len - i * rep->slab_len;

		if (!long_enough(fds[i], left < rep->slab_len ? left : rep->slab_len))
			return false;
	}
	return true;
}

static int pool_add(struct pfx_client *c, struct pfx_pool *p, struct pfx_pool **ret_pool)
{
	p->next = c->pools;
	c->pools = p;
	*ret_pool = p;
	return 0;
}

/* Return: 0, or a public status. */
static int map_device(struct pfx_client *c, struct pfx_pool *p, const struct proto_open_rep *rep,
		      const int *fds)
{
	char why[256] = "no memory";
	void *v;
	int e;

	if (!pfx_device_is(c->device, &rep->device_id)) {
		if (c->device)
			return pfx_fail(c, PFX_UNSUPPORTED,
					"OPEN: pools of one client lie on one GPU");
		e = pfx_device_open(&rep->device_id, &c->device, why, sizeof(why));
		if (e)
			return pfx_fail(c, PFX_UNSUPPORTED, "OPEN: the pool lies on a GPU: %s",
					why);
	}
	p->device = c->device;
	p->slab_len = rep->slab_len;
	e = pfx_device_map(p->device, fds, rep->n_pool_fds - 1u, p->len, p->slab_len, p->map == 1,
			   &p->address, why, sizeof(why));
	if (e)
		return pfx_fail(c, PFX_NO_MEMORY, "OPEN: mapping %llu bytes of a GPU: %s",
				(unsigned long long)p->len, why);
	v = mmap(NULL, p->generations_len, PROT_READ, MAP_SHARED, fds[rep->n_pool_fds - 1], 0);
	if (v == MAP_FAILED)
		return pfx_fail(c, PFX_NO_MEMORY, "OPEN: mapping the generations: %s",
				strerror(errno));
	p->generations = v;
	return 0;
}

/* Return: 0 with the pool on the client's list, or a public status. */
static int pool_map(struct pfx_client *c, const struct proto_open_rep *rep, int map, const int *fds,
		    uint16_t tag, struct pfx_pool **ret_pool)
{
	int prot = map == 1 ? PROT_READ | PROT_WRITE : PROT_READ;
	struct pfx_pool *p;
	int e;

	if (map == 1 && (rep->flags & PROTO_OPENED_READ_ONLY))
		return pfx_fail(c, PFX_FORBIDDEN,
				"OPEN: this process may map the pool read-only (map = 2)");
	if (!slabs_long_enough(rep, fds) ||
	    !long_enough(fds[rep->n_pool_fds - 1], (uint64_t)rep->n_slots * 8))
		return pfx_fail(c, PFX_PROTOCOL, "OPEN: the pool is shorter than the reply says");
	p = calloc(1, sizeof(*p));
	if (!p)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for a mapping");
	p->life = c->life;
	p->group = rep->group;
	p->id = rep->pool;
	p->tag = tag;
	p->map = map;
	p->n_slots = rep->n_slots;
	p->len = rep->pool_len;
	p->generations_len = (size_t)rep->n_slots * 8;
	e = file_of(fds[0], &p->file);
	if (e == 0)
		e = file_of(fds[rep->n_pool_fds - 1], &p->generations_file);
	if (e == 0 && rep->device == PROTO_DEVICE_CUDA) {
		e = map_device(c, p, rep, fds);
		if (e) {
			pool_free(p, false);
			return e;
		}
		return pool_add(c, p, ret_pool);
	}
	if (e == 0)
		e = map_both(p, prot, fds, rep->n_pool_fds, rep->slab_len);
	if (e) {
		pool_free(p, false);
		return pfx_fail(c, PFX_NO_MEMORY, "OPEN: mapping %llu bytes: %s",
				(unsigned long long)rep->pool_len, strerror(-e));
	}
	return pool_add(c, p, ret_pool);
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

/* NULL, or what does not fit together. */
static const char *bad_geometry(const struct pfx_namespace *ns, const struct proto_open_rep *rep)
{
	if (rep->digest.n != sizeof(ns->info.digest))
		return "digest";
	if (!rep->block_bytes || rep->slot_stride < rep->block_bytes)
		return "slot_stride";
	if (!rep->n_slots || rep->n_slots > rep->pool_len / rep->slot_stride)
		return "pool_len";
	if (rep->pool_len > SIZE_MAX / 2)
		return "pool_len";
	if (!rep->key_len || !rep->block_tokens)
		return "key_len";
	if (pfx_open_fds(rep) > PFX_MAX_FDS)
		return "n_pool_fds";
	if (rep->n_write > rep->write_len / rep->slot_stride || rep->write_len > SIZE_MAX / 2 ||
	    (rep->n_write && !(rep->flags & PROTO_OPENED_READ_ONLY)))
		return "n_write";
	if (rep->device >= PROTO_DEVICE_N)
		return "device";
	/* So many slabs that the last one has something, and no more. */
	if (rep->n_pool_fds > 1 &&
	    (!rep->slab_len || (rep->pool_len - 1) / rep->slab_len != rep->n_pool_fds - 2u))
		return "slab_len";
	/* The same fields were sent: the caller's keys and blocks can not have changed size. */
	if (ns->life &&
	    (rep->key_len != ns->info.key_len || rep->block_tokens != ns->info.block_tokens ||
	     rep->block_bytes != ns->info.block_bytes))
		return "geometry, which was another one before";
	return NULL;
}

/*
 * A GPU's memory that was lost: until all who map it let go of it there may be none for the next
 * pool, so this waits for no OPEN.  A lease may still be read through, so it stays while one is
 * held; without one no slot of it means anything to the caller, and pfx_slot_address names none.
 */
void pfx_let_go(struct pfx_client *c)
{
	struct pfx_pool **at = &c->pools, *p;

	pfx_desks_let_go(c);
	if (pfx_lease_any(c))
		return;
	while ((p = *at)) {
		if (!p->lost || !p->address) {
			at = &p->next;
			continue;
		}
		for (struct pfx_namespace *ns = c->namespaces; ns; ns = ns->next)
			if (ns->pool == p)
				ns->pool = NULL;
		*at = p->next;
		pool_free(p, false);
	}
}

void pfx_group_lost(struct pfx_client *c, uint64_t group)
{
	for (struct pfx_namespace *ns = c->namespaces; ns; ns = ns->next)
		ns->stale |= ns->life == c->life && ns->info.group == group;
	for (struct pfx_pool *p = c->pools; p; p = p->next)
		p->lost |= p->life == c->life && p->group == group;
	pfx_desks_lost(c, group);
	pfx_let_go(c);
}

static int take_open(struct pfx_client *c, struct pfx_namespace *ns,
		     const struct proto_open_rep *rep, const int *fds)
{
	bool staged = ns->map == 1 && rep->n_write > 0;
	int map = staged ? 2 : ns->map; /* the pool is the daemon's to write */
	struct pfx_pool *pool = NULL;
	struct pfx_desk *desk = NULL;
	uint16_t tag;
	int r = 0;

	if (ns->map) {
		if (rep->n_pool_fds < 2)
			return pfx_fail(c, PFX_UNSUPPORTED,
					"OPEN: no pool came with the reply (map = 0)");
		pool = pool_find(c, rep, map, fds, &tag);
		if (pool && (pool->len != rep->pool_len || pool->n_slots != rep->n_slots))
			return pfx_fail(c, PFX_PROTOCOL, "OPEN: one pool, two sizes");
		if (!pool)
			r = pool_map(c, rep, map, fds, tag ? tag : ++c->n_memories, &pool);
		if (r == 0 && staged)
			r = pfx_desk_map(c, rep, fds[rep->n_pool_fds], &desk);
		if (r)
			return r;
		pool->life = c->life;
		pool->group = rep->group;
	}
	ns->pool = pool;
	ns->desk = desk;
	ns->life = c->life;
	ns->stale = false;
	pfx_let_go(c);
	ns->info = (pfx_namespace_info){
		.struct_size = sizeof(ns->info),
		.id = rep->ns,
		.group = rep->group,
		.key_len = rep->key_len,
		.block_tokens = rep->block_tokens,
		.block_bytes = rep->block_bytes,
		.slot_stride = rep->slot_stride,
		.n_slots = rep->n_slots,
		.n_write = rep->n_write,
		.seed_mismatch = (rep->flags & PROTO_OPENED_SEED_MISMATCH) != 0,
		.cold_bytes = rep->cold_bytes,
		.kept = (rep->flags & PROTO_OPENED_KEPT) != 0,
	};
	ns->device = rep->device;
	ns->device_id = rep->device_id;
	memcpy(ns->info.pool, rep->pool.b, sizeof(ns->info.pool));
	ns->window = rep->window;
	memcpy(ns->info.digest, rep->digest.p, sizeof(ns->info.digest));
	return 0;
}

int pfx_namespace_ensure(struct pfx_client *c, struct pfx_namespace *ns)
{
	int fds[PFX_MAX_FDS];
	struct proto_open_rep rep;
	struct pfx_frame f;
	const char *bad;
	uint32_t n_fds;
	int r;

	if (ns->life == c->life && !ns->stale)
		return 0;
	r = pfx_request(c, PROTO_OP_OPEN, ns, &f);
	if (r)
		return r;
	if (proto_open_rep_decode_as(f.h.version, f.body, f.h.len, &rep, &bad))
		return pfx_bad_reply(c, PROTO_OP_OPEN, bad);
	if (f.h.version < 2)
		rep.flags &= PROTO_OPENED_ALL_1; /* it defines no other */
	if (f.h.version < 3) {
		rep.slab_len = rep.pool_len;
		rep.cold_bytes = rep.block_bytes;
	}
	bad = bad_geometry(ns, &rep);
	if (bad)
		return pfx_bad_reply(c, PROTO_OP_OPEN, bad);
	n_fds = pfx_open_fds(&rep);
	if (!pfx_wire_take_fds(&c->wire, n_fds, fds))
		return pfx_bad_reply(c, PROTO_OP_OPEN, "fewer descriptors than it names");
	r = rep.n_words ? pfx_words_take(c, rep.n_words, fds[n_fds - 1]) : 0;
	if (r == 0)
		r = take_open(c, ns, &rep, fds);
	for (uint32_t i = 0; i < n_fds; i++)
		close(fds[i]); /* the mappings keep the memory */
	return r;
}

static void namespace_free(struct pfx_namespace *ns)
{
	free(ns->open_body);
	free(ns);
}

void pfx_namespace_deinit_all(struct pfx_client *c)
{
	while (c->namespaces) {
		struct pfx_namespace *ns = c->namespaces;

		c->namespaces = ns->next;
		pfx_caches_free(ns, getpid() != c->pid);
		namespace_free(ns);
	}
	while (c->pools) {
		struct pfx_pool *p = c->pools;

		c->pools = p->next;
		pool_free(p, getpid() != c->pid);
	}
	pfx_desks_free(c, getpid() != c->pid);
	pfx_words_deinit(c);
	pfx_device_close(c->device);
	c->device = NULL;
}

int pfx_open(pfx_client *c, const pfx_namespace_options *options, pfx_namespace **ret_ns)
{
	pfx_namespace_options o;
	struct pfx_namespace *ns;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!options || !ret_ns || !pfx_struct_in(&o, sizeof(o), options))
		return pfx_fail(c, PFX_ARGUMENT, "options, their struct_size or ret_ns is missing");
	if (o.key_mode != PFX_KEYS_TOKENS && o.key_mode != PFX_KEYS_DIGEST)
		return pfx_fail(c, PFX_ARGUMENT, "key_mode is %d, neither tokens nor digest",
				o.key_mode);
	if (o.map < 0 || o.map > 2)
		return pfx_fail(c, PFX_ARGUMENT, "map is %d, not 0, 1 or 2", o.map);
	if (o.seed_probe_len && !o.seed_probe)
		return pfx_fail(c, PFX_ARGUMENT, "seed_probe is NULL and seed_probe_len is not 0");
	ns = calloc(1, sizeof(*ns));
	if (!ns)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for a namespace");
	ns->client = c;
	ns->map = o.map;
	r = encode_open(c, &o, ns);
	for (int round = 0; r == 0; round++) {
		r = pfx_ready(c, NULL);
		if (r)
			break;
		r = pfx_namespace_ensure(c, ns);
		if (r != PFX_LOST || round)
			break;
		r = 0; /* the connection had died unnoticed: once more on a new one */
	}
	if (r || !ns->life) {
		namespace_free(ns);
		return pfx_gone(c, r);
	}
	ns->next = c->namespaces;
	c->namespaces = ns;
	*ret_ns = ns;
	return 0;
}

/* ---- looking --------------------------------------------------------------------------------- */

int pfx_namespace_get(const pfx_namespace *ns, pfx_namespace_info *ret_info)
{
	if (!ns || !ret_info || !pfx_struct_ok(ret_info))
		return PFX_ARGUMENT;
	pfx_struct_out(ret_info, &ns->info, sizeof(ns->info));
	return 0;
}

void *pfx_slot(const pfx_namespace *ns, uint32_t slot)
{
	if (!ns || !ns->pool || !ns->pool->base || slot >= ns->pool->n_slots)
		return NULL;
	return ns->pool->base + (size_t)slot * ns->info.slot_stride;
}

int pfx_slot_stale(const pfx_namespace *ns, uint32_t slot, uint64_t reuse)
{
	if (!ns || !ns->pool || slot >= ns->pool->n_slots)
		return 1;
	if ((uint16_t)(reuse >> PFX_REUSE_BITS) != ns->pool->tag)
		return 1; /* named in another memory than this number means now */
	/* What was read before this call has been read before the generation is. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&ns->pool->generations[slot], __ATOMIC_ACQUIRE) >
	       (reuse & PFX_REUSE_MASK);
}

int pfx_pool_device(const pfx_namespace *ns, uint8_t ret_uuid[16])
{
	if (!ns)
		return PFX_ARGUMENT;
	if (ret_uuid)
		memcpy(ret_uuid, ns->device_id.b, sizeof(ns->device_id.b));
	return ns->device;
}

uint64_t pfx_slot_address(const pfx_namespace *ns, uint32_t slot)
{
	if (!ns || !ns->pool || !ns->pool->address || slot >= ns->pool->n_slots)
		return 0;
	return ns->pool->address + slot * ns->info.slot_stride;
}

uint32_t pfx_window(const struct pfx_namespace *ns)
{
	return ns ? ns->window : 0;
}
