/*
 * test_digest.c - what names the content of a model file.
 */
#include "clients/llama/cache.h"

#include "tests/lib/run.h"
#include "tests/llama/worker.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

START_TEST(files_are_named_by_content)
{
	char a[33], b[33], path[200], other[200];

	ck_assert_int_eq(setenv("XDG_CACHE_HOME", worker_daemon.dir, 1), 0);
	(void)snprintf(path, sizeof(path), "%s/m.gguf", worker_daemon.dir);
	(void)snprintf(other, sizeof(other), "%s/n.gguf", worker_daemon.dir);
	write_file(path, "weights");
	write_file(other, "weights");
	ck_assert_int_eq(cache_digest_file(path, a), 0);
	ck_assert_uint_eq(strlen(a), 32);
	ck_assert_int_eq(cache_digest_file(other, b), 0);
	ck_assert_str_eq(a, b);
	/* remembered, and not when it has changed, though size and name are the same */
	ck_assert_int_eq(cache_digest_file(path, b), 0);
	ck_assert_str_eq(a, b);
	write_file(path, "Weights");
	ck_assert_int_eq(cache_digest_file(path, b), 0);
	ck_assert_str_ne(a, b);
	ck_assert_int_eq(cache_digest_file("/nonexistent/m.gguf", b), -ENOENT);
	ck_assert_int_eq(cache_digest_file(worker_daemon.dir, b), -EINVAL);
}
END_TEST

/* The only entry of the folder in which digests are remembered; false: there is none. */
static bool entry_of(const char *cache, char *ret, size_t len)
{
	char folder[200];
	struct dirent *e;
	bool found = false;
	DIR *d;

	(void)snprintf(folder, sizeof(folder), "%s/prefixd-llama", cache);
	d = opendir(folder);
	ck_assert_ptr_nonnull(d);
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		ck_assert(!found);
		found = true;
		(void)snprintf(ret, len, "%s/%s", folder, e->d_name);
	}
	(void)closedir(d);
	return found;
}

START_TEST(what_is_remembered_is_ours_and_settled)
{
	static const char planted[] = "0123456789abcdef0123456789abcdef";
	char a[33], b[33], path[200], entry[500];

	ck_assert_int_eq(setenv("XDG_CACHE_HOME", worker_daemon.dir, 1), 0);
	(void)snprintf(path, sizeof(path), "%s/m.gguf", worker_daemon.dir);
	write_file(path, "weights");
	/* It could change again without a trace in its times. */
	ck_assert_int_eq(cache_digest_file(path, a), 0);
	ck_assert(!entry_of(worker_daemon.dir, entry, sizeof(entry)));
	e2e_sleep_ms(3200);
	ck_assert_int_eq(cache_digest_file(path, b), 0);
	ck_assert_str_eq(a, b);
	ck_assert(entry_of(worker_daemon.dir, entry, sizeof(entry)));
	/* What is written there counts, so it is read; what others can write does not. */
	write_file(entry, "0123456789abcdef0123456789abcdef\n");
	ck_assert_int_eq(cache_digest_file(path, b), 0);
	ck_assert_str_eq(b, planted);
	ck_assert_int_eq(chmod(entry, 0622), 0);
	ck_assert_int_eq(cache_digest_file(path, b), 0);
	ck_assert_str_eq(b, a);
}
END_TEST

START_TEST(a_model_in_parts_is_one_file)
{
	char a[33], b[33], first[200], second[200];

	ck_assert_int_eq(setenv("XDG_CACHE_HOME", worker_daemon.dir, 1), 0);
	(void)snprintf(first, sizeof(first), "%s/m-00001-of-00002.gguf", worker_daemon.dir);
	(void)snprintf(second, sizeof(second), "%s/m-00002-of-00002.gguf", worker_daemon.dir);
	write_file(first, "one");
	ck_assert_int_eq(cache_digest_file(first, a), -ENOENT);
	write_file(second, "two");
	ck_assert_int_eq(cache_digest_file(first, a), 0);
	write_file(second, "too");
	ck_assert_int_eq(cache_digest_file(first, b), 0);
	ck_assert_str_ne(a, b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("digest");
	TCase *t = tcase_create("digest");

	tcase_add_checked_fixture(t, worker_setup, worker_teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, files_are_named_by_content);
	tcase_add_test(t, what_is_remembered_is_ours_and_settled);
	tcase_add_test(t, a_model_in_parts_is_one_file);
	suite_add_tcase(s, t);
	return test_run(s);
}
