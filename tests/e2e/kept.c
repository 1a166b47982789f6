/*
 * kept.c - see kept.h.
 */
#include "tests/e2e/kept.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void *take_memory(void *ctx, size_t n)
{
	(void)ctx;
	return malloc(n);
}

static void give_memory(void *ctx, void *p, size_t n)
{
	(void)ctx;
	(void)n;
	free(p);
}

static const struct radix_alloc heap = { .take = take_memory, .give = give_memory };

/* NULL: a GPU's memory, which nobody maps. */
static void *map(int fd, size_t *ret_len)
{
	struct stat st;
	void *p;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	*ret_len = 0;
	if (!S_ISREG(st.st_mode)) {
		close(fd);
		return NULL;
	}
	p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	close(fd);
	*ret_len = (size_t)st.st_size;
	return p;
}

static int take(struct kept *k, const char *part)
{
	char name[PREFIXD_KEEP_NAME_MAX];

	(void)snprintf(name, sizeof(name), "%s.%s", k->prefix, part);
	return prefixd_keep_take(k->keep, name);
}

void kept_naming_key(const struct e2e_daemon *d, char *ret_path, size_t len)
{
	int fd;

	(void)snprintf(ret_path, len, "%s/naming.key", d->dir);
	fd = open(ret_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	for (int i = 0; i < 32; i++)
		ck_assert_int_eq(write(fd, "17", 2), 2);
	close(fd);
}

void kept_open(struct kept *k, const struct e2e_daemon *d, uint32_t block_bytes)
{
	struct prefixd_keep_config config = { .keeper = PREFIXD_KEEPER_HOLDER,
					      .admin_socket = d->admin,
					      .program = "/nonexistent", /* it is there, or not */
					      .timeout_ns = 20000000000u,
					      .version = "test" };
	struct radix_index_config index = { .alloc = &heap };
	struct radix_store_info info;
	uint8_t key[32];
	char why[512] = "";
	int fd = -1;

	memset(k, 0, sizeof(*k));
	ck_assert_msg(prefixd_keep_start(&k->keep, &config, why, sizeof(why)) == 0, "%s", why);
	ck_assert_uint_gt(prefixd_keep_n_found(k->keep), 0);
	for (int n = 0; fd < 0 && n < 8; n++) {
		(void)snprintf(k->prefix, sizeof(k->prefix), "g%d", n);
		fd = take(k, "table");
	}
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(prefixd_region_init(&k->table_file, "table", fd, 1, 0), 0);
	ck_assert_int_eq(radix_store_look(&k->table_file.store, NULL, &info), RADIX_STORE_INDEX);
	index.n_slots = info.n_slots;
	index.n_host = info.n_host;
	index.n_entries = info.n_entries;
	index.redis = info.redis;
	index.store = &k->table_file.store;
	ck_assert_int_eq(radix_ground_init(&k->table, &index), 0);
	k->pool = map(take(k, "pool"), &k->pool_len);
	k->generations = map(take(k, "generations"), &k->generations_len);
	k->stride = (block_bytes + 63u) / 64 * 64;
	fd = prefixd_keep_take(k->keep, "ledger");
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(prefixd_region_init(&k->ledger_file, "ledger", fd, 1, 0), 0);
	memset(key, 0x17, sizeof(key));
	ck_assert_int_eq(prefixd_ledger_init(&k->ledger, &heap, &k->ledger_file.store, key), 0);
}

void kept_replace(struct kept *k, const char *part, const void *bytes, size_t len)
{
	char name[PREFIXD_KEEP_NAME_MAX];
	int fd = memfd_create("test", MFD_CLOEXEC);

	if (part)
		(void)snprintf(name, sizeof(name), "%s.%s", k->prefix, part);
	else
		(void)snprintf(name, sizeof(name), "ledger");
	ck_assert_int_ge(fd, 0);
	for (size_t at = 0; at < len;) {
		ssize_t n = write(fd, (const uint8_t *)bytes + at, len - at);

		ck_assert_int_gt(n, 0);
		at += (size_t)n;
	}
	ck_assert_int_eq(prefixd_keep_put(k->keep, name, fd), 0);
	close(fd);
}

void kept_close(struct kept *k)
{
	prefixd_ledger_deinit(&k->ledger);
	radix_ground_deinit(&k->table);
	prefixd_region_deinit(&k->ledger_file);
	prefixd_region_deinit(&k->table_file);
	if (k->pool)
		(void)munmap(k->pool, k->pool_len);
	(void)munmap(k->generations, k->generations_len);
	k->keep = prefixd_keep_stop(k->keep, false);
}

void *kept_key(const struct kept *k, const struct radix_entry *e)
{
	return (uint8_t *)k->table_file.store.base + k->table.pages_at + e->key;
}

struct radix_entry *kept_entry(const struct kept *k, const void *key, uint32_t key_len)
{
	struct radix_entry *found = NULL;

	for (uint32_t i = 0; i < k->table.n_entries; i++) {
		struct radix_entry *e = &k->table.entries[i];

		if ((uint64_t)((uint8_t *)(e + 1) - (uint8_t *)k->table_file.store.base) >
		    k->table_file.store.committed)
			break;
		if (e->state != RADIX_ENTRY_READY || e->key_len != key_len ||
		    memcmp(kept_key(k, e), key, key_len) != 0)
			continue;
		ck_assert_ptr_null(found);
		found = e;
	}
	ck_assert_ptr_nonnull(found);
	return found;
}
