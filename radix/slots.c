#include "radix/slots.h"

#include "radix/crash.h"
#include "radix/hash.h"

static uint32_t words_for(uint32_t bits)
{
	return (uint32_t)(((uint64_t)bits + 63) / 64);
}

static void bit_set(struct radix_slots *s, uint32_t slot)
{
	for (int l = 0; l < 3; l++, slot /= 64)
		s->bits[l][slot / 64] |= UINT64_C(1) << (slot % 64);
}

static void bit_clear(struct radix_slots *s, uint32_t slot)
{
	for (int l = 0; l < 3; l++, slot /= 64) {
		s->bits[l][slot / 64] &= ~(UINT64_C(1) << (slot % 64));
		if (s->bits[l][slot / 64])
			return; /* the levels above still say "some" */
	}
}

/* First free slot at or behind `from`: up the levels until one knows of any, then down again. */
static uint32_t free_next(const struct radix_slots *s, uint32_t from)
{
	uint32_t at = from; /* a bit number of level l */
	int l = 0;

	for (;;) {
		uint32_t word = at / 64;
		uint64_t v = word < s->words[l] ? s->bits[l][word] & (UINT64_MAX << (at % 64)) : 0;

		while (!v && l == 2 && ++word < s->words[l])
			v = s->bits[l][word];
		if (v) {
			at = word * 64 + (uint32_t)__builtin_ctzll(v);
			if (l == 0)
				return at;
			l--;
			at *= 64; /* the first bit of the word below that is not 0 */
		} else if (l == 2) {
			return RADIX_NONE;
		} else {
			l++;
			at = word + 1;
		}
	}
}

static int init(struct radix_slots *s, const struct radix_alloc *alloc, uint32_t n,
		uint64_t *generations, const struct radix_ground *ground)
{
	*s = (struct radix_slots){ .alloc = alloc, .n = n, .generation = generations };
	if (ground) {
		s->kept = ground->slots;
		s->latest = &ground->head->reuse;
	}
	s->own_generation = !generations;
	if (s->own_generation)
		s->generation = radix_take(alloc, n * sizeof(uint64_t));
	s->owner = radix_take(alloc, n * sizeof(uint32_t));
	s->entry = radix_take(alloc, n * sizeof(uint32_t));
	s->state = radix_take(alloc, n);
	s->words[0] = words_for(n);
	s->words[1] = words_for(s->words[0]);
	s->words[2] = words_for(s->words[1]);
	for (int l = 0; l < 3; l++) {
		s->bits[l] = radix_take(alloc, s->words[l] * sizeof(uint64_t));
		if (!s->bits[l])
			goto no_memory;
		memset(s->bits[l], 0, s->words[l] * sizeof(uint64_t));
	}
	if (!s->generation || !s->owner || !s->entry || !s->state)
		goto no_memory;
	return 0;
no_memory:
	radix_slots_deinit(s);
	return -ENOMEM;
}

int radix_slots_init(struct radix_slots *s, const struct radix_alloc *alloc, uint32_t n,
		     uint64_t *generations, const struct radix_ground *ground)
{
	if (init(s, alloc, n, generations, ground) < 0)
		return -ENOMEM;
	memset(s->generation, 0, n * sizeof(uint64_t));
	memset(s->owner, 0, n * sizeof(uint32_t));
	memset(s->entry, 0xff, n * sizeof(uint32_t));
	memset(s->state, RADIX_SLOT_FREE, n);
	s->count[RADIX_SLOT_FREE] = n;
	for (uint32_t i = 0; i < n; i++)
		bit_set(s, i);
	return 0;
}

int radix_slots_init_old(struct radix_slots *s, const struct radix_alloc *alloc, uint32_t n,
			 uint64_t *generations, const struct radix_ground *ground)
{
	return init(s, alloc, n, generations, ground);
}

void radix_slots_adopt(struct radix_slots *s, uint32_t slot, enum radix_slot_state state,
		       uint32_t owner, uint32_t entry)
{
	s->state[slot] = (uint8_t)state;
	s->owner[slot] = owner;
	s->entry[slot] = entry;
	s->count[state]++;
	if (state == RADIX_SLOT_FREE)
		bit_set(s, slot);
}

void radix_slots_deinit(struct radix_slots *s)
{
	if (!s->alloc)
		return;
	if (s->own_generation)
		radix_give(s->alloc, s->generation, s->n * sizeof(uint64_t));
	radix_give(s->alloc, s->owner, s->n * sizeof(uint32_t));
	radix_give(s->alloc, s->entry, s->n * sizeof(uint32_t));
	radix_give(s->alloc, s->state, s->n);
	radix_give(s->alloc, s->reads, s->n * sizeof(uint32_t));
	for (int l = 0; l < 3; l++)
		radix_give(s->alloc, s->bits[l], s->words[l] * sizeof(uint64_t));
	*s = (struct radix_slots){ 0 };
}

bool radix_slot_word_read(uint32_t slot, uint64_t word, enum radix_slot_state *ret_state,
			  uint32_t *ret_owner)
{
	uint32_t state = word & 7, owner = (uint32_t)(word >> 32);

	if (word && (state >= RADIX_SLOT_N_STATES || word != radix_slot_word(slot, state, owner)))
		return false;
	*ret_state = state;
	*ret_owner = owner;
	return true;
}

uint32_t radix_slots_take(struct radix_slots *s, uint32_t owner)
{
	uint32_t slot = free_next(s, s->next);

	if (slot == RADIX_NONE && s->next)
		slot = free_next(s, 0);
	if (slot == RADIX_NONE)
		return RADIX_NONE;
	bit_clear(s, slot);
	s->next = slot + 1 < s->n ? slot + 1 : 0;
	s->reuse++;
	if (s->latest)
		radix_pair_set(s->latest, s->reuse);
	/* FREE was first, then the generation, then the fields: a reader who sees the old block's
	 * bytes overwritten also sees that its generation is past */
	radix_retract(&s->generation[slot], s->reuse);
	radix_crash_point("slot_generation");
	s->owner[slot] = owner;
	radix_slots_set(s, slot, RADIX_SLOT_RESERVED);
	radix_crash_point("slot_taken");
	return slot;
}

void radix_slots_free(struct radix_slots *s, uint32_t slot)
{
	s->owner[slot] = 0;
	radix_slots_set(s, slot, RADIX_SLOT_FREE);
	radix_crash_point("slot_freed");
	s->entry[slot] = RADIX_NONE;
	bit_set(s, slot);
}

void radix_slots_claim(struct radix_slots *s, uint32_t slot, uint32_t entry)
{
	bit_clear(s, slot);
	s->entry[slot] = entry;
	radix_slots_set(s, slot, RADIX_SLOT_READY);
}

int radix_slots_count_reads(struct radix_slots *s)
{
	s->reads = radix_take(s->alloc, s->n * sizeof(uint32_t));
	if (!s->reads)
		return -ENOMEM;
	memset(s->reads, 0, s->n * sizeof(uint32_t));
	return 0;
}

void radix_slots_release(struct radix_slots *s, uint32_t slot)
{
	if (!s->reads || !s->reads[slot]) {
		radix_slots_free(s, slot);
		return;
	}
	s->owner[slot] = RADIX_OWNER_DAEMON;
	radix_slots_set(s, slot, RADIX_SLOT_QUARANTINED);
	s->entry[slot] = RADIX_NONE;
}

void radix_slots_read(struct radix_slots *s, uint32_t slot)
{
	s->reads[slot]++;
}

void radix_slots_unread(struct radix_slots *s, uint32_t slot)
{
	radix_assert(s->reads[slot]);
	if (--s->reads[slot] == 0 && s->state[slot] == RADIX_SLOT_QUARANTINED)
		radix_slots_free(s, slot);
}
