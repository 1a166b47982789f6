/*
 * world_desk.c - see world_desk.h.
 */
#include "tests/lib/world_desk.h"

#include <check.h>
#include <stdlib.h>

#include "tests/lib/world_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static void desk_drop(struct world_desk *d)
{
	free(d->bytes);
	*d = (struct world_desk){ 0 };
}

void world_desks_drop(struct world *w)
{
	for (uint32_t i = 0; i < WORLD_DESKS; i++)
		if (w->desks.v[i].used)
			desk_drop(&w->desks.v[i]);
	w->desks.n = w->desks.n_wanted = w->desks.n_takes = 0;
}

void world_desk_act(struct world *w, const struct prefixd_action *a)
{
	struct world_desks *ds = &w->desks;
	struct world_desk *d;

	if (a->type == PREFIXD_ACTION_TAKE) {
		world_check(w, ds->n_takes < WORLD_TAKES && a->u.take.desk < WORLD_DESKS);
		world_check(w,
			    ds->v[a->u.take.desk].used && ds->v[a->u.take.desk].group == a->group);
		ds->takes[ds->n_takes] = (struct world_take){
			.group = a->group,
			.desk = a->u.take.desk,
			.place = a->u.take.place,
			.slot = a->u.take.slot,
			.checksum_kind = a->u.take.checksum_kind,
		};
		memcpy(ds->takes[ds->n_takes++].checksum, a->u.take.checksum, 16);
		world_note(w, "       take %u of desk %u into slot %u of pool %u\n",
			   a->u.take.place, a->u.take.desk, a->u.take.slot, a->group);
		return;
	}
	world_check(w, a->u.desk.id < WORLD_DESKS);
	d = &ds->v[a->u.desk.id];
	world_check(w, d->used == (a->type == PREFIXD_ACTION_DESK_DESTROY));
	world_note(w, "       desk %u of pool %u %s\n", a->u.desk.id, a->group,
		   d->used ? "goes" : "wanted");
	if (d->used) {
		for (uint32_t i = 0; i < ds->n_takes; i++)
			world_check(w, ds->takes[i].desk != a->u.desk.id);
		desk_drop(d);
		ds->n--;
		return;
	}
	*d = (struct world_desk){ .used = true,
				  .group = a->group,
				  .n_places = a->u.desk.n_places,
				  .slot_bytes = a->u.desk.slot_bytes };
	d->bytes = calloc(d->n_places, d->slot_bytes);
	world_check(w, d->bytes && d->slot_bytes == w->pools[a->group].slot_bytes);
	ds->n++;
	ds->wanted[ds->n_wanted++] = a->u.desk.id;
}

void world_desk_answer(struct world *w, bool ready)
{
	struct world_desks *ds = &w->desks;
	uint32_t id = ds->wanted[0];
	struct prefixd_event event = { .type = PREFIXD_EVENT_DESK_READY };

	world_check(w, ds->n_wanted > 0);
	memmove(&ds->wanted[0], &ds->wanted[1], --ds->n_wanted * sizeof(ds->wanted[0]));
	event.u.desk.id = id;
	event.u.desk.len = ds->v[id].n_places * ds->v[id].slot_bytes;
	if (!ready) {
		event.type = PREFIXD_EVENT_DESK_FAILED;
		event.u.desk.why = "the device is full";
		desk_drop(&ds->v[id]);
		ds->n--;
	}
	world_step(w, &event);
}

void world_take_answer(struct world *w, uint32_t i, enum prefixd_move_result result)
{
	struct world_desks *ds = &w->desks;
	struct prefixd_event event = { .type = PREFIXD_EVENT_TAKEN };
	struct world_take t;
	struct world_desk *d;
	XXH128_canonical_t sum;
	void *bytes;

	world_check(w, i < ds->n_takes);
	t = ds->takes[i];
	d = &ds->v[t.desk];
	memmove(&ds->takes[i], &ds->takes[i + 1], (--ds->n_takes - i) * sizeof(ds->takes[0]));
	event.u.taken.desk = t.desk;
	event.u.taken.place = t.place;
	if (result == PREFIXD_MOVE_OK) {
		bytes = d->bytes + t.place * d->slot_bytes;
		world_write(w, t.group, t.slot, bytes, (uint32_t)d->slot_bytes);
		XXH128_canonicalFromHash(&sum, XXH3_128bits(bytes, d->slot_bytes));
		memcpy(event.u.taken.checksum, sum.digest, 16);
		if (t.checksum_kind == PROTO_CHECKSUM_XXH3_128 &&
		    memcmp(sum.digest, t.checksum, 16) != 0)
			result = PREFIXD_MOVE_CORRUPT;
	}
	event.u.taken.result = result;
	world_step(w, &event);
}

void world_desks_deliver(struct world *w)
{
	while (w->engine && w->desks.n_wanted && !w->config.hold_desks)
		world_desk_answer(w, true);
	while (w->engine && w->desks.n_takes && !w->config.hold_takes)
		world_take_answer(w, 0, PREFIXD_MOVE_OK);
}

void world_desk_write(struct world_client *c, uint32_t place, const void *bytes, uint32_t len)
{
	struct world_desk *d = &c->w->desks.v[c->desk];

	world_check(c->w, c->with_desk && d->used && place < d->n_places && len <= d->slot_bytes);
	memcpy(d->bytes + place * d->slot_bytes, bytes, len);
}
