/*
 * digest.c - names the content of a model file, for a namespace's revision.
 *
 * Reading 40 GB takes longer than all else at a worker's start, so a digest is remembered under
 * what changes when the file does: device, inode, size, and the times of the last change of its
 * bytes and of its inode.  The latter cannot be set back by the owner of the file, but two changes
 * within one tick of a file system's clock have the same: a file that changed a moment ago is not
 * remembered.  What is remembered lies in a file of its own, 0600, written beside and renamed, so
 * that a reader sees all or nothing; one that others could have written is not believed.  XXH3
 * finds accidents; it is no proof against a file made to collide.
 */
#define XXH_INLINE_ALL
#include "clients/llama/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define HEX        32
#define PART_BYTES ((size_t)1 << 20)
#define TICK       2 /* seconds; the coarsest clock of a file system that is in use */

static void to_hex(XXH128_hash_t hash, char ret[HEX + 1])
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, hash);
	for (size_t i = 0; i < sizeof(c.digest); i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", c.digest[i]);
}

/* ---- what is remembered ---------------------------------------------------------------------- */

/* Path of the entry for a file, whose directory is there; false: none can be had. */
static bool entry_path(const struct stat *st, char *ret, size_t len)
{
	const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char key[160], hex[HEX + 1];
	int n;

	if (base && *base)
		n = snprintf(ret, len, "%s", base);
	else if (home && *home)
		n = snprintf(ret, len, "%s/.cache", home);
	else
		return false;
	if (n < 0 || (size_t)n + 64 > len)
		return false;
	(void)mkdir(ret, 0700);
	n += snprintf(ret + n, len - (size_t)n, "/prefixd-llama");
	if (mkdir(ret, 0700) && errno != EEXIST)
		return false;
	(void)snprintf(key, sizeof(key), "1 %ju %ju %ju %jd.%09ld %jd.%09ld", (uintmax_t)st->st_dev,
		       (uintmax_t)st->st_ino, (uintmax_t)st->st_size, (intmax_t)st->st_mtim.tv_sec,
		       st->st_mtim.tv_nsec, (intmax_t)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
	to_hex(XXH3_128bits(key, strlen(key)), hex);
	(void)snprintf(ret + n, len - (size_t)n, "/%s", hex);
	return true;
}

static bool recall(const char *entry, char ret[HEX + 1])
{
	FILE *f = fopen(entry, "re");
	bool ok = false;
	struct stat st;

	if (!f)
		return false;
	if (fstat(fileno(f), &st) == 0 && st.st_uid == geteuid() && !(st.st_mode & 022) &&
	    fread(ret, 1, HEX, f) == HEX && fgetc(f) == '\n' && fgetc(f) == EOF) {
		ret[HEX] = 0;
		ok = strspn(ret, "0123456789abcdef") == HEX;
	}
	(void)fclose(f);
	return ok;
}

/* That it fails costs time at the next start, nothing else. */
static void remember(const char *entry, const char *digest)
{
	char temporary[4200];
	bool ok;
	FILE *f;
	int fd;

	(void)snprintf(temporary, sizeof(temporary), "%s.XXXXXX", entry);
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return;
	f = fdopen(fd, "w");
	if (!f) {
		(void)close(fd);
		(void)unlink(temporary);
		return;
	}
	ok = fprintf(f, "%s\n", digest) == HEX + 1;
	ok = fclose(f) == 0 && ok;
	if (!ok || rename(temporary, entry))
		(void)unlink(temporary);
}

/* ---- the files ------------------------------------------------------------------------------- */

static int read_through(int fd, XXH3_state_t *state)
{
	uint8_t *part = malloc(PART_BYTES);
	ssize_t n;

	if (!part)
		return -ENOMEM;
	do {
		n = read(fd, part, PART_BYTES);
		if (n > 0)
			(void)XXH3_128bits_update(state, part, (size_t)n);
	} while (n > 0 || (n < 0 && errno == EINTR));
	free(part);
	return n < 0 ? -errno : 0;
}

static int digest_fd(int fd, char ret[HEX + 1])
{
	XXH3_state_t *state = XXH3_createState();
	int r;

	if (!state)
		return -ENOMEM;
	(void)XXH3_128bits_reset(state);
	r = read_through(fd, state);
	if (r == 0)
		to_hex(XXH3_128bits_digest(state), ret);
	(void)XXH3_freeState(state);
	return r;
}

static bool same_times(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Whether a further change would show in the times of the file. */
static bool settled(const struct stat *st)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
	return st->st_ctim.tv_sec + TICK < now.tv_sec && st->st_mtim.tv_sec + TICK < now.tv_sec;
}

static int digest_one(const char *path, char ret[HEX + 1])
{
	struct stat before, after;
	char entry[4096];
	bool known, old;
	int fd = open(path, O_RDONLY | O_CLOEXEC), r = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &before))
		r = -errno;
	else if (!S_ISREG(before.st_mode))
		r = -EINVAL;
	if (r) {
		(void)close(fd);
		return r;
	}
	old = settled(&before); /* before it is read: what changes after that shows */
	known = entry_path(&before, entry, sizeof(entry));
	if (!known || !recall(entry, ret)) {
		r = digest_fd(fd, ret);
		/* A file that changed meanwhile has no one content. */
		if (r == 0 && (fstat(fd, &after) || !same_times(&before, &after)))
			r = -EAGAIN;
		if (r == 0 && known && old)
			remember(entry, ret);
	}
	(void)close(fd);
	return r;
}

/* "-00001-of-00003.gguf": how many files there are; 1 for any other name. */
static unsigned parts_of(const char *path)
{
	static const char shape[] = "-00001-of-ddddd.gguf";
	size_t n = strlen(path), m = sizeof(shape) - 1;
	const char *end = path + n - m;

	if (n < m || strncmp(end, shape, 10) != 0 || strcmp(end + 15, ".gguf") != 0 ||
	    strspn(end + 10, "0123456789") != 5)
		return 1;
	return (unsigned)strtoul(end + 10, NULL, 10);
}

int cache_digest_file(const char *path, char ret_digest[HEX + 1])
{
	unsigned n = parts_of(path);
	XXH3_state_t *state;
	char *name;
	int r = 0;

	if (n <= 1)
		return digest_one(path, ret_digest);
	name = strdup(path);
	state = XXH3_createState();
	if (!name || !state)
		r = -ENOMEM;
	else
		(void)XXH3_128bits_reset(state);
	for (unsigned i = 1; i <= n && !r; i++) {
		char number[6];

		(void)snprintf(number, sizeof(number), "%05u", i % 100000);
		memcpy(name + strlen(name) - 19, number, 5);
		r = digest_one(name, ret_digest);
		if (r == 0)
			(void)XXH3_128bits_update(state, ret_digest, HEX);
	}
	if (r == 0)
		to_hex(XXH3_128bits_digest(state), ret_digest);
	(void)XXH3_freeState(state);
	free(name);
	return r;
}
