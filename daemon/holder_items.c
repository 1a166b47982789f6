/*
 * holder_items.c - see holder.h.
 *
 * A list of at most 256, searched from its beginning: it is asked a few times in a daemon's life.
 */
#include "daemon/holder.h"

#include <unistd.h>

enum proto_holder_status prefixd_holder_put(struct prefixd_holder_items *items, const char *name,
					    int fd, int *ret_old)
{
	struct prefixd_holder_item *item;

	for (uint32_t i = 0; i < items->n; i++) {
		item = &items->v[i];
		if (strcmp(item->name, name) != 0)
			continue;
		*ret_old = item->fd;
		item->fd = fd;
		return PROTO_HOLDER_STATUS_OK;
	}
	if (items->n == PROTO_HOLDER_ITEMS_MAX)
		return PROTO_HOLDER_STATUS_FULL;
	item = &items->v[items->n++];
	memset(item->name, 0, sizeof(item->name));
	memcpy(item->name, name, strnlen(name, sizeof(item->name) - 1));
	item->fd = fd;
	*ret_old = -1;
	return PROTO_HOLDER_STATUS_OK;
}

uint32_t prefixd_holder_drop(struct prefixd_holder_items *items, const char *name,
			     int ret_fds[PROTO_HOLDER_ITEMS_MAX])
{
	size_t len = strlen(name);
	uint32_t kept = 0, gone = 0;

	for (uint32_t i = 0; i < items->n; i++) {
		const struct prefixd_holder_item *item = &items->v[i];

		if (strncmp(item->name, name, len) == 0 &&
		    (item->name[len] == '\0' || item->name[len] == '.'))
			ret_fds[gone++] = item->fd;
		else
			items->v[kept++] = *item;
	}
	items->n = kept;
	return gone;
}

void prefixd_holder_measure(int fd, uint64_t *ret_size, uint64_t *ret_held)
{
	struct stat st;

	*ret_size = *ret_held = 0;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	*ret_size = (uint64_t)st.st_size;
	*ret_held = (uint64_t)st.st_blocks * 512;
}
