/*
 * desk.c - memory of this session to write in, where the daemon has workers map pools read-only and
 * copies what they commit (its option pool-write staged).
 *
 * What it guarantees.  One mapping for each session and memory of a pool group, for writing, beside
 * the pool's.  That of an ended connection stays while a lease of it is not released, and that of a
 * lost device while any is held: streams may still write.
 *
 * What it relies on.  The daemon has one such memory for each session and group, and names it in
 * every reply to OPEN of that group.
 */
#include "clients/c/device.h"
#include "clients/c/internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* In a child of the client's process the mapping is not there. */
static void desk_free(struct pfx_desk *d, bool child)
{
	if (d->base && !(child && d->not_inherited))
		munmap(d->base, d->len);
	if (d->address && !child)
		pfx_device_unmap(d->device, d->address, d->len, d->len);
	free(d);
}

void pfx_desks_free(struct pfx_client *c, bool child)
{
	while (c->desks) {
		struct pfx_desk *d = c->desks;

		c->desks = d->next;
		desk_free(d, child);
	}
}

void pfx_desks_lost(struct pfx_client *c, uint64_t group)
{
	for (struct pfx_desk *d = c->desks; d; d = d->next)
		if (d->life == c->life && d->group == group)
			d->life = 0; /* of none: lives count from 1 */
}

void pfx_desks_let_go(struct pfx_client *c)
{
	struct pfx_desk **at = &c->desks;
	bool held = pfx_lease_any(c);

	while (*at) {
		struct pfx_desk *d = *at;

		/* Leases of an ended connection are told from others; those of a lost device are
		 * not, until they are asked about. */
		if (d->life == c->life || (d->life ? c->leases.n_lost != 0 : held)) {
			at = &d->next;
			continue;
		}
		for (struct pfx_namespace *ns = c->namespaces; ns; ns = ns->next)
			if (ns->desk == d)
				ns->desk = NULL;
		*at = d->next;
		desk_free(d, false);
	}
}

static int map_memory(struct pfx_client *c, struct pfx_desk *d, int fd)
{
	struct stat st;
	void *v;

	if (fstat(fd, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size < d->len)
		return pfx_fail(c, PFX_PROTOCOL,
				"OPEN: the memory to write in is shorter than the reply says");
	v = mmap(NULL, d->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (v == MAP_FAILED)
		return pfx_fail(c, PFX_NO_MEMORY, "OPEN: mapping %llu bytes to write in: %s",
				(unsigned long long)d->len, strerror(errno));
	d->base = v;
	d->not_inherited = madvise(v, d->len, MADV_DONTFORK) == 0;
	return 0;
}

static int map_device(struct pfx_client *c, struct pfx_desk *d, int fd)
{
	char why[256] = "no memory";
	int e = pfx_device_map(c->device, &fd, 1, d->len, d->len, true, &d->address, why,
			       sizeof(why));

	if (e)
		return pfx_fail(c, PFX_NO_MEMORY,
				"OPEN: mapping %llu bytes of a GPU to write in: %s",
				(unsigned long long)d->len, why);
	d->device = c->device;
	return 0;
}

int pfx_desk_map(struct pfx_client *c, const struct proto_open_rep *rep, int fd,
		 struct pfx_desk **ret_desk)
{
	struct pfx_desk *d;
	int r;

	pfx_desks_let_go(c);
	for (d = c->desks; d; d = d->next) {
		if (d->life != c->life || d->group != rep->group)
			continue;
		if (d->len != rep->write_len || d->n_places != rep->n_write)
			return pfx_fail(c, PFX_PROTOCOL, "OPEN: one memory to write in, two sizes");
		*ret_desk = d;
		return 0;
	}
	d = calloc(1, sizeof(*d));
	if (!d)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for a mapping");
	d->life = c->life;
	d->group = rep->group;
	d->len = rep->write_len;
	d->n_places = rep->n_write;
	r = rep->device == PROTO_DEVICE_CUDA ? map_device(c, d, fd) : map_memory(c, d, fd);
	if (r) {
		desk_free(d, false);
		return r;
	}
	d->next = c->desks;
	c->desks = d;
	*ret_desk = d;
	return 0;
}

bool pfx_desk_gone(const struct pfx_namespace *ns)
{
	return !ns->desk && ns->map == 1 && ns->info.n_write > 0;
}

void *pfx_write_slot(const pfx_namespace *ns, uint32_t slot)
{
	if (!ns || !ns->desk)
		return ns && pfx_desk_gone(ns) ? NULL : pfx_slot(ns, slot);
	if (!ns->desk->base || slot >= ns->desk->n_places)
		return NULL;
	return ns->desk->base + (size_t)slot * ns->info.slot_stride;
}

uint64_t pfx_write_address(const pfx_namespace *ns, uint32_t slot)
{
	if (!ns || !ns->desk)
		return ns && pfx_desk_gone(ns) ? 0 : pfx_slot_address(ns, slot);
	if (!ns->desk->address || slot >= ns->desk->n_places)
		return 0;
	return ns->desk->address + slot * ns->info.slot_stride;
}
