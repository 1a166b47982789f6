/*
 * engine_wait.c - the index cannot be made of its store yet: nothing is taken up.
 */
#include "radix/recover.h"

#define weak __attribute__((weak))

weak int radix_index_recover(struct radix_index **ret_ix, const struct radix_index_config *config,
			     const struct radix_recover_config *recover,
			     struct radix_recovered *ret)
{
	return -ENOMEM;
}

weak int radix_member_place(const struct radix_index *ix, struct radix_member block,
			    struct radix_place *ret_place)
{
	return RADIX_E_NOTFOUND;
}

weak void radix_recover_end(struct radix_index *ix)
{
}

weak uint32_t radix_owner_discard(struct radix_index *ix, uint32_t owner)
{
	return 0;
}

weak uint32_t radix_sums_next(const struct radix_index *ix, uint8_t kind, uint32_t *it,
			      struct radix_sum *ret, uint32_t cap)
{
	return 0;
}
