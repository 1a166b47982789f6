/*
 * ledger.c - the store of the ledger: head, chunks, records, checks.
 *
 * What it guarantees.  A record counts from the store of its word on, and until the word is 0.
 * Whatever bit of the store is wrong, what reads it finds a record that agrees with its check, or
 * none.  Nothing is written that an earlier life's record may still be read from.
 *
 * What it relies on.  radix/store.h.  The checks tell accidents, not attackers: who can write the
 * store can write the pools too.
 *
 *     | head | chunk | chunk | ...        chunk:  | header | record | record | ...
 *
 * A chunk's header says whose it is, twice; one of the two is enough.
 */
#include "daemon/ledger.h"

#include "daemon/engine_ledger.h"
#include "radix/crash.h"

#include <sodium.h>
#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	HEAD_LEN = 4096,
	CHUNK_LEN = 16384,
	CHUNK_HEADER = 64,
	VERSION = 1,
	MAX_CHUNKS = 65536, /* 1 GiB: a million leases, and as many roots */
};

#define MAGIC 0x72676c3164786670u /* "pfxd1lgr" */

struct cell {
	uint64_t value, check;
};

struct ledger_head {
	uint64_t magic; /* stored last */
	uint32_t version, chunk_len;
	uint8_t key[16]; /* of the naming key, which it does not tell */
	uint64_t check;  /* over version, chunk_len and key */
	/* what changes; damaged, it is 0 */
	struct cell lives, attempts, boot[2];
};

static const uint32_t codes[PREFIXD_LEDGER_N_KINDS] = {
	[PREFIXD_LEDGER_GROUP] = 0x3a5c91e7,   [PREFIXD_LEDGER_TENANT] = 0x94d2663b,
	[PREFIXD_LEDGER_NS] = 0xc8176da5,      [PREFIXD_LEDGER_ROOT] = 0x61be35d8,
	[PREFIXD_LEDGER_SESSION] = 0x5df08a4e, [PREFIXD_LEDGER_LEASE] = 0xa6492f13,
	[PREFIXD_LEDGER_COLD] = 0x0c7b5ee1,    [PREFIXD_LEDGER_DEVICES] = 0x7a1fd43c,
};

/* Bytes of a record, and of those at its beginning that do not change while it counts. */
static const struct {
	uint32_t len, constant;
} sizes[PREFIXD_LEDGER_N_KINDS] = {
	[PREFIXD_LEDGER_GROUP] = { sizeof(struct prefixd_group_record),
				   sizeof(struct prefixd_group_record) },
	[PREFIXD_LEDGER_TENANT] = { sizeof(struct prefixd_tenant_record),
				    sizeof(struct prefixd_tenant_record) },
	[PREFIXD_LEDGER_NS] = { sizeof(struct prefixd_ns_record),
				offsetof(struct prefixd_ns_record, epoch) },
	[PREFIXD_LEDGER_ROOT] = { sizeof(struct prefixd_root_record),
				  sizeof(struct prefixd_root_record) },
	[PREFIXD_LEDGER_SESSION] = { sizeof(struct prefixd_session_record),
				     offsetof(struct prefixd_session_record, users) },
	[PREFIXD_LEDGER_LEASE] = { sizeof(struct prefixd_lease_record),
				   offsetof(struct prefixd_lease_record, half) },
	[PREFIXD_LEDGER_COLD] = { sizeof(struct prefixd_cold_record),
				  sizeof(struct prefixd_cold_record) },
	[PREFIXD_LEDGER_DEVICES] = { sizeof(struct prefixd_devices_record),
				     sizeof(struct prefixd_devices_record) },
};

static uint32_t per_chunk(enum prefixd_ledger_kind kind)
{
	return (CHUNK_LEN - CHUNK_HEADER) / sizes[kind].len;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 m = (unsigned __int128)(a ^ 0x9e3779b97f4a7c15u) *
			      (b ^ 0xc2b2ae3d27d4eb4fu);

	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* ---- the head -------------------------------------------------------------------------------- */

uint64_t prefixd_ledger_len(void)
{
	return HEAD_LEN + (uint64_t)MAX_CHUNKS * CHUNK_LEN;
}

static uint64_t head_check(const struct ledger_head *h)
{
	return XXH3_64bits(&h->version, offsetof(struct ledger_head, check) -
						offsetof(struct ledger_head, version));
}

static void key_mark(const uint8_t naming_key[32], uint8_t ret[16])
{
	static const char purpose[] = "prefixd ledger";

	(void)crypto_generichash(ret, 16, (const uint8_t *)purpose, sizeof(purpose) - 1, naming_key,
				 32);
}

static uint64_t cell_get(const struct cell *c)
{
	return c->check == mix(c->value, MAGIC) ? c->value : 0;
}

static void cell_set(struct cell *c, uint64_t value)
{
	radix_publish(&c->value, value);
	radix_publish(&c->check, mix(value, MAGIC));
}

static const struct ledger_head *head_of(const struct radix_store *store)
{
	return store->base;
}

static uint32_t groups_in(const struct radix_store *store);

enum prefixd_ledger_content prefixd_ledger_look(const struct radix_store *store,
						const uint8_t naming_key[32],
						struct prefixd_ledger_info *ret_info, char *why,
						size_t why_len)
{
	const struct ledger_head *h = head_of(store);
	struct prefixd_ledger_info info = { 0 };
	uint8_t key[16];
	uint64_t boot[2];

	if (store->committed < HEAD_LEN || h->magic == 0) {
		*ret_info = info;
		return PREFIXD_LEDGER_EMPTY;
	}
	if (h->magic != MAGIC || h->check != head_check(h)) {
		snprintf(why, why_len,
			 "the memory that was kept holds no ledger of prefixd, or a damaged one");
		return PREFIXD_LEDGER_FOREIGN;
	}
	info.version = h->version;
	if (h->version != VERSION || h->chunk_len != CHUNK_LEN) {
		*ret_info = info;
		snprintf(why, why_len,
			 "the memory that was kept is of ledger version %u, and this program reads "
			 "version %d only",
			 h->version, VERSION);
		return PREFIXD_LEDGER_VERSION;
	}
	key_mark(naming_key, key);
	info.n_groups = groups_in(store);
	info.n_lives = (uint32_t)cell_get(&h->lives);
	info.attempts = (uint32_t)cell_get(&h->attempts);
	boot[0] = cell_get(&h->boot[0]);
	boot[1] = cell_get(&h->boot[1]);
	memcpy(&info.boot, boot, sizeof(boot));
	*ret_info = info;
	if (memcmp(key, h->key, sizeof(key)) != 0) {
		snprintf(why, why_len,
			 "the memory that was kept was filled under another naming key: start with "
			 "that one");
		return PREFIXD_LEDGER_KEY;
	}
	return PREFIXD_LEDGER_STATE;
}

void prefixd_ledger_set_version(struct radix_store *store, uint32_t version)
{
	struct ledger_head *h = store->base;

	h->version = version;
	h->check = head_check(h);
}

void prefixd_ledger_begin(struct radix_store *store)
{
	struct ledger_head *h = store->base;

	if (store->committed >= HEAD_LEN && h->magic == MAGIC)
		cell_set(&h->attempts, cell_get(&h->attempts) + 1);
}

void prefixd_ledger_settled(struct radix_store *store)
{
	struct ledger_head *h = store->base;

	if (store->committed >= HEAD_LEN && h->magic == MAGIC)
		cell_set(&h->attempts, 0);
}

static int head_make(struct prefixd_ledger *l, const uint8_t naming_key[32])
{
	struct radix_store *s = l->store;
	struct ledger_head *h = s->base;

	if (s->committed < HEAD_LEN && (!s->commit || s->commit(s, HEAD_LEN) < 0))
		return -ENOMEM;
	/* Whoever was killed here before may have left something. */
	memset(s->base, 0, s->committed);
	h->version = VERSION;
	h->chunk_len = CHUNK_LEN;
	key_mark(naming_key, h->key);
	h->check = head_check(h);
	radix_crash_point("ledger_head");
	radix_publish(&h->magic, MAGIC);
	return 0;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

struct chunk_header {
	uint64_t word[2]; /* equal: kind, number, check */
};

static uint8_t *chunk_at(const struct prefixd_ledger *l, uint32_t i)
{
	return (uint8_t *)l->store->base + HEAD_LEN + (size_t)i * CHUNK_LEN;
}

static uint64_t chunk_word(enum prefixd_ledger_kind kind, uint32_t number)
{
	uint64_t id = (uint64_t)(kind + 1) << 24 | number;

	return id << 32 | (uint32_t)mix(id, MAGIC);
}

/* Return: true, and whose the chunk is; else nobody's, or its header is damaged. */
static bool chunk_read(const uint8_t *chunk, enum prefixd_ledger_kind *ret_kind,
		       uint32_t *ret_number)
{
	const struct chunk_header *h = (const struct chunk_header *)(const void *)chunk;

	for (uint32_t i = 0; i < 2; i++) {
		uint32_t kind = (uint32_t)(h->word[i] >> 56) - 1;
		uint32_t number = (uint32_t)(h->word[i] >> 32) & 0xffffff;

		if (kind >= PREFIXD_LEDGER_N_KINDS || number >= MAX_CHUNKS ||
		    h->word[i] != chunk_word(kind, number))
			continue;
		*ret_kind = kind;
		*ret_number = number;
		return true;
	}
	return false;
}

static int array_room(struct prefixd_ledger *l, struct prefixd_ledger_array *a, uint32_t n)
{
	uint32_t cap = a->cap ? a->cap : 4;
	uint8_t **v;

	if (n <= a->cap)
		return 0;
	while (cap < n)
		cap *= 2;
	v = radix_take(l->alloc, cap * sizeof(*v));
	if (!v)
		return -ENOMEM;
	memset(v, 0, cap * sizeof(*v));
	if (a->cap)
		memcpy(v, a->chunks, a->cap * sizeof(*v));
	radix_give(l->alloc, a->chunks, a->cap * sizeof(*v));
	a->chunks = v;
	a->cap = cap;
	return 0;
}

/* Another chunk at the end of the store becomes the array's chunk `number`. */
static int chunk_add(struct prefixd_ledger *l, enum prefixd_ledger_kind kind, uint32_t number)
{
	struct prefixd_ledger_array *a = &l->arrays[kind];
	struct radix_store *s = l->store;
	uint64_t end = HEAD_LEN + (uint64_t)(l->n_chunks + 1) * CHUNK_LEN;
	struct chunk_header *h;

	if (l->n_chunks >= MAX_CHUNKS || end > s->len || array_room(l, a, number + 1) < 0)
		return -ENOMEM;
	if (s->committed < end && (!s->commit || s->commit(s, end) < 0))
		return -ENOMEM;
	h = (struct chunk_header *)(void *)chunk_at(l, l->n_chunks);
	/* It may have been a damaged one's. */
	memset(h, 0, CHUNK_LEN);
	h->word[1] = chunk_word(kind, number);
	radix_crash_point("ledger_chunk");
	radix_publish(&h->word[0], chunk_word(kind, number));
	a->chunks[number] = (uint8_t *)h;
	a->n_chunks = number + 1 > a->n_chunks ? number + 1 : a->n_chunks;
	l->n_chunks++;
	return 0;
}

/* Finds the chunks of an earlier life.  Return: 0, -ENOMEM. */
static int chunks_find(struct prefixd_ledger *l)
{
	uint64_t n = (l->store->committed - HEAD_LEN) / CHUNK_LEN;

	for (uint32_t i = 0; i < radix_min_u64(n, MAX_CHUNKS); i++) {
		enum prefixd_ledger_kind kind;
		struct prefixd_ledger_array *a;
		uint32_t number;

		if (!chunk_read(chunk_at(l, i), &kind, &number))
			continue;
		a = &l->arrays[kind];
		if (array_room(l, a, number + 1) < 0)
			return -ENOMEM;
		if (a->chunks[number])
			continue;
		a->chunks[number] = chunk_at(l, i);
		a->n_chunks = number + 1 > a->n_chunks ? number + 1 : a->n_chunks;
		a->n = a->n_chunks * per_chunk(kind);
		l->n_chunks = i + 1; /* one that was never signed is used again */
	}
	return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

int prefixd_ledger_init(struct prefixd_ledger *l, const struct radix_alloc *alloc,
			struct radix_store *store, const uint8_t naming_key[32])
{
	struct prefixd_ledger_info info;
	enum prefixd_ledger_content content;
	char why[256];

	*l = (struct prefixd_ledger){ .alloc = alloc, .store = store };
	for (uint32_t k = 0; k < PREFIXD_LEDGER_N_KINDS; k++)
		l->arrays[k].free = RADIX_NONE;
	content = prefixd_ledger_look(store, naming_key, &info, why, sizeof(why));
	if (content == PREFIXD_LEDGER_EMPTY)
		return head_make(l, naming_key);
	if (content != PREFIXD_LEDGER_STATE)
		return -EINVAL;
	l->found = true;
	return chunks_find(l);
}

void prefixd_ledger_deinit(struct prefixd_ledger *l)
{
	for (uint32_t k = 0; k < PREFIXD_LEDGER_N_KINDS; k++)
		radix_give(l->alloc, l->arrays[k].chunks, l->arrays[k].cap * sizeof(uint8_t *));
	*l = (struct prefixd_ledger){ 0 };
}

void prefixd_ledger_life(struct prefixd_ledger *l, const struct proto_id *boot)
{
	struct ledger_head *h = l->store ? l->store->base : NULL;
	uint64_t words[2];

	if (!h)
		return;
	memcpy(words, boot->b, sizeof(words));
	cell_set(&h->boot[0], words[0]);
	cell_set(&h->boot[1], words[1]);
	cell_set(&h->lives, cell_get(&h->lives) + 1);
}

void prefixd_ledger_wipe(struct prefixd_ledger *l)
{
	l->found = false;
	for (uint32_t k = 0; k < PREFIXD_LEDGER_N_KINDS; k++) {
		struct prefixd_ledger_array *a = &l->arrays[k];

		for (uint32_t i = 0; i < a->n; i++) {
			uint64_t *word = prefixd_ledger_at(l, k, i);

			if (word)
				radix_retract(word, 0);
		}
		a->n = 0;
		a->free = RADIX_NONE;
	}
}

/* ---- places ---------------------------------------------------------------------------------- */

void *prefixd_ledger_at(const struct prefixd_ledger *l, enum prefixd_ledger_kind kind,
			uint32_t place)
{
	const struct prefixd_ledger_array *a = &l->arrays[kind];
	uint32_t chunk = place / per_chunk(kind);

	if (chunk >= a->n_chunks || !a->chunks[chunk])
		return NULL;
	return a->chunks[chunk] + CHUNK_HEADER +
	       (size_t)(place % per_chunk(kind)) * sizes[kind].len;
}

int prefixd_ledger_room(struct prefixd_ledger *l, enum prefixd_ledger_kind kind, uint32_t place)
{
	struct prefixd_ledger_array *a = &l->arrays[kind];

	if (!prefixd_ledger_at(l, kind, place) && chunk_add(l, kind, place / per_chunk(kind)) < 0)
		return -ENOMEM;
	if (place >= a->n)
		a->n = place + 1;
	return 0;
}

/* The next free place, in a record that does not count. */
static uint32_t *next_of(void *record)
{
	return (uint32_t *)(void *)((uint8_t *)record + sizeof(uint64_t));
}

int prefixd_ledger_take(struct prefixd_ledger *l, enum prefixd_ledger_kind kind,
			uint32_t *ret_place)
{
	struct prefixd_ledger_array *a = &l->arrays[kind];
	uint32_t place = a->free;

	if (place != RADIX_NONE) {
		a->free = *next_of(prefixd_ledger_at(l, kind, place));
	} else {
		place = a->n;
		if (prefixd_ledger_room(l, kind, place) < 0)
			return -ENOMEM;
	}
	*ret_place = place;
	return 0;
}

void prefixd_ledger_put(struct prefixd_ledger *l, enum prefixd_ledger_kind kind, uint32_t place)
{
	uint64_t *record = prefixd_ledger_at(l, kind, place);

	radix_retract(record, 0);
	radix_crash_point("ledger_put");
	*next_of(record) = l->arrays[kind].free;
	l->arrays[kind].free = place;
}

void prefixd_ledger_collect(struct prefixd_ledger *l)
{
	for (uint32_t k = 0; k < PREFIXD_LEDGER_LEASE; k++) {
		struct prefixd_ledger_array *a = &l->arrays[k];

		a->free = RADIX_NONE;
		for (uint32_t i = a->n; i-- > 0;) {
			uint64_t *record = prefixd_ledger_at(l, k, i);

			if (!record || prefixd_ledger_is(l, k, i))
				continue;
			if (k == PREFIXD_LEDGER_GROUP || k == PREFIXD_LEDGER_TENANT)
				radix_retract(record, 0);
			else
				prefixd_ledger_put(l, k, i);
		}
	}
}

/* ---- checks ---------------------------------------------------------------------------------- */

static uint64_t word_of(enum prefixd_ledger_kind kind, uint32_t place, const uint8_t *record)
{
	uint64_t h = XXH3_64bits_withSeed(record + sizeof(uint64_t),
					  sizes[kind].constant - sizeof(uint64_t), place);

	return (uint64_t)codes[kind] << 32 | (uint32_t)(h ^ h >> 32);
}

/* Records of a few words, as they are read without a ledger over the store. */
union small_record {
	uint64_t word;
	struct prefixd_group_record group;
	struct prefixd_cold_record cold;
	struct prefixd_devices_record devices;
};

/* Record `i` of a chunk; false: it does not count. */
static bool small_read(const uint8_t *chunk, enum prefixd_ledger_kind kind, uint32_t i,
		       uint32_t place, union small_record *ret)
{
	radix_assert(sizes[kind].len <= sizeof(*ret));
	memcpy(ret, chunk + CHUNK_HEADER + (size_t)i * sizes[kind].len, sizes[kind].len);
	return ret->word && ret->word == word_of(kind, place, (const uint8_t *)ret);
}

/* How many of a kind there are; *ret is the one of this place, or all zero. */
static uint32_t small_look(const struct radix_store *store, enum prefixd_ledger_kind what,
			   uint32_t place, union small_record *ret)
{
	const uint32_t each = per_chunk(what);
	uint64_t n = (store->committed - HEAD_LEN) / CHUNK_LEN;
	union small_record record;
	uint32_t found = 0;

	memset(ret, 0, sizeof(*ret));
	for (uint32_t i = 0; i < radix_min_u64(n, MAX_CHUNKS); i++) {
		const uint8_t *chunk = (const uint8_t *)store->base + HEAD_LEN +
				       (size_t)i * CHUNK_LEN;
		enum prefixd_ledger_kind kind;
		uint32_t number;

		if (!chunk_read(chunk, &kind, &number) || kind != what)
			continue;
		for (uint32_t k = 0; k < each; k++) {
			if (!small_read(chunk, kind, k, number * each + k, &record))
				continue;
			found++;
			if (number * each + k == place)
				*ret = record;
		}
	}
	return found;
}

static uint32_t groups_in(const struct radix_store *store)
{
	union small_record any;

	return small_look(store, PREFIXD_LEDGER_GROUP, 0, &any);
}

bool prefixd_ledger_group(const struct radix_store *store, uint32_t group,
			  struct prefixd_ledger_group *ret)
{
	union small_record r, cold = { 0 }, devices = { 0 };

	(void)small_look(store, PREFIXD_LEDGER_GROUP, group, &r);
	if (r.group.tiers & PREFIXD_GROUP_COLD)
		(void)small_look(store, PREFIXD_LEDGER_COLD, group, &cold);
	if (r.group.tiers & PREFIXD_GROUP_DEVICES)
		(void)small_look(store, PREFIXD_LEDGER_DEVICES, group, &devices);
	*ret = (struct prefixd_ledger_group){
		.slot_bytes = (r.group.slot_bytes + 63) & ~63ull,
		.host_slot_bytes = prefixd_cold_stride(&cold.cold.cold, r.group.slot_bytes,
						       r.group.n_ranks ? r.group.n_ranks : 1),
		.n_slots = r.group.n_slots,
		.n_host = r.group.n_host,
		.on_devices = devices.word != 0,
	};
	memcpy(ret->device_ids, devices.devices.ids, sizeof(ret->device_ids));
	return r.word != 0;
}

void prefixd_ledger_sign(struct prefixd_ledger *l, enum prefixd_ledger_kind kind, uint32_t place)
{
	uint64_t *record = prefixd_ledger_at(l, kind, place);

	radix_crash_point("ledger_fields");
	radix_publish(record, word_of(kind, place, (const uint8_t *)record));
	radix_crash_point("ledger_signed");
}

bool prefixd_ledger_is(const struct prefixd_ledger *l, enum prefixd_ledger_kind kind,
		       uint32_t place)
{
	const uint64_t *record = prefixd_ledger_at(l, kind, place);

	return record && *record && *record == word_of(kind, place, (const uint8_t *)record);
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* The word's upper half: the code, and behind it the half that counts, far apart. */
static uint32_t lease_code(uint32_t half)
{
	return codes[PREFIXD_LEDGER_LEASE] ^ (half ? 0x00ffff00u : 0);
}

static uint64_t lease_check(const struct prefixd_lease_record *r, uint32_t idx)
{
	uint64_t h = mix(r->id, idx), id[2];

	h = mix(h, (uint64_t)r->session << 32 | r->session_check);
	h = mix(h, (uint64_t)r->group << 32 | r->root);
	if (r->n_ranks == 0) /* as older programs wrote all of them */
		return h;
	h = mix(h, (uint64_t)r->n_ranks << 32 | r->rank);
	memcpy(id, r->decision.b, sizeof(id));
	return mix(mix(mix(h, r->shared), id[0]), id[1]);
}

static uint64_t lease_word(uint64_t check, uint32_t half)
{
	return (uint64_t)lease_code(half) << 32 | (uint32_t)(check >> 32 ^ check);
}

static uint64_t half_check(const struct prefixd_lease_half *h, uint64_t id)
{
	uint64_t c = mix(h->pin_generation, id);

	c = mix(c, h->donor_generation);
	return mix(c, (uint64_t)h->pin << 32 | h->donor);
}

static void half_set(struct prefixd_lease_record *r, uint32_t i, struct radix_member pin,
		     struct radix_member donor)
{
	struct prefixd_lease_half *h = &r->half[i];

	h->pin = pin.entry;
	h->pin_generation = pin.generation;
	h->donor = donor.entry;
	h->donor_generation = donor.generation;
	radix_crash_point("ledger_lease_half_fields");
	h->check = half_check(h, r->id);
}

void prefixd_ledger_lease_begin(struct prefixd_lease_record *r,
				const struct prefixd_lease_name *name, struct radix_member pin,
				struct radix_member donor)
{
	r->id = name->id;
	r->session = name->session;
	r->session_check = name->session_check;
	r->group = name->group;
	r->root = name->root;
	r->n_ranks = name->n_ranks;
	r->rank = name->rank;
	r->shared = name->shared;
	r->decision = name->decision;
	half_set(r, 0, pin, donor);
	r->half[1] = r->half[0];
	radix_crash_point("ledger_lease_fields");
	radix_publish(&r->word, lease_word(lease_check(r, name->idx), 0));
	radix_crash_point("ledger_lease_given");
}

static uint32_t half_now(const struct prefixd_lease_record *r)
{
	return (uint32_t)(r->word >> 32) != lease_code(0);
}

void prefixd_ledger_lease_move(struct prefixd_lease_record *r, struct radix_member pin,
			       struct radix_member donor)
{
	uint32_t now = half_now(r);

	half_set(r, !now, pin, donor);
	radix_crash_point("ledger_lease_half");
	radix_publish(&r->word, (uint64_t)lease_code(!now) << 32 | (uint32_t)r->word);
	radix_crash_point("ledger_lease_moved");
}

void prefixd_ledger_lease_back(struct prefixd_lease_record *r)
{
	radix_publish(&r->word, (uint64_t)lease_code(!half_now(r)) << 32 | (uint32_t)r->word);
}

void prefixd_ledger_lease_place(const struct prefixd_lease_record *r, struct radix_member *ret_pin,
				struct radix_member *ret_donor)
{
	const struct prefixd_lease_half *h = &r->half[half_now(r)];

	*ret_pin = (struct radix_member){ h->pin, h->pin_generation };
	*ret_donor = (struct radix_member){ h->donor, h->donor_generation };
}

void prefixd_ledger_lease_end(struct prefixd_lease_record *r)
{
	radix_crash_point("ledger_lease_over");
	radix_retract(&r->word, 0);
	radix_crash_point("ledger_lease_ended");
}

bool prefixd_ledger_lease_read(const struct prefixd_lease_record *r, uint32_t idx,
			       struct prefixd_lease_name *ret_name,
			       struct prefixd_lease_half ret_half[2], bool *ret_damaged)
{
	uint64_t check = lease_check(r, idx);

	*ret_damaged = false;
	if (r->word == 0)
		return false;
	for (uint32_t now = 0; now < 2; now++) {
		if (r->word != lease_word(check, now))
			continue;
		*ret_name = (struct prefixd_lease_name){
			r->id,   idx,        r->session, r->session_check, r->group,
			r->root, r->n_ranks, r->rank,    r->shared,        r->decision
		};
		for (uint32_t i = 0; i < 2; i++) {
			ret_half[i] = r->half[i ? !now : now];
			ret_half[i].check = ret_half[i].check == half_check(&ret_half[i], r->id);
		}
		return true;
	}
	*ret_damaged = true;
	return false;
}

/* ---- epochs ---------------------------------------------------------------------------------- */

static uint64_t epoch_check(const struct prefixd_epoch_half *h)
{
	return mix(mix(h->n, MAGIC), h->nonce);
}

static const struct prefixd_epoch_half *epoch_now(const struct prefixd_ns_record *r)
{
	const struct prefixd_epoch_half *best = NULL;

	for (uint32_t i = 0; i < 2; i++) {
		const struct prefixd_epoch_half *h = &r->epoch[i];

		if (h->check == epoch_check(h) &&
		    (!best || h->n > best->n || (h->n == best->n && h->nonce > best->nonce)))
			best = h;
	}
	return best;
}

void prefixd_ledger_epoch_set(struct prefixd_ns_record *r, uint64_t n, uint64_t nonce)
{
	const struct prefixd_epoch_half *now = epoch_now(r);
	struct prefixd_epoch_half *h = &r->epoch[now == &r->epoch[0]];

	h->check = 0; /* which no epoch has, but by a chance of 1 in 2^64 */
	radix_publish(&h->n, n);
	radix_publish(&h->nonce, nonce);
	radix_crash_point("ledger_epoch");
	radix_publish(&h->check, epoch_check(h));
}

void prefixd_ledger_epoch_get(const struct prefixd_ns_record *r, uint64_t *ret_n,
			      uint64_t *ret_nonce)
{
	const struct prefixd_epoch_half *now = epoch_now(r);

	*ret_n = now ? now->n : 0;
	*ret_nonce = now ? now->nonce : 0;
}
