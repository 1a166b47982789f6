/*
 * epochs.c - see epochs.h.
 *
 *     prefixd-epochs 1
 *     <namespace digest, 64 hex digits> <n, 16> <nonce, 16>      one line each
 *     end <number of lines>
 */
#include "daemon/epochs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD     "prefixd-epochs 1\n"
#define LINE_LEN (64u + 1 + 16 + 1 + 16 + 1)
#define FILE_MAX (16u << 20)

bool prefixd_epoch_after(const struct prefixd_epoch *a, const struct prefixd_epoch *b)
{
	return a->n > b->n || (a->n == b->n && a->nonce > b->nonce);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Exactly `digits` lower-case hex digits at p.  Return: false when they are not. */
static bool hex_take(const char *p, size_t digits, uint8_t *out)
{
	for (size_t i = 0; i < digits; i++) {
		unsigned v;

		if (p[i] >= '0' && p[i] <= '9')
			v = (unsigned)(p[i] - '0');
		else if (p[i] >= 'a' && p[i] <= 'f')
			v = (unsigned)(p[i] - 'a') + 10;
		else
			return false;
		out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | v : v << 4);
	}
	return true;
}

static uint64_t big_endian(const uint8_t p[8])
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v = v << 8 | p[i];
	return v;
}

/* Return: 0, -EINVAL, -ENOMEM. */
static int line_take(struct prefixd_epochs *e, const char *line)
{
	uint8_t digest[32], n[8], nonce[8];
	struct prefixd_epoch epoch;

	if (!hex_take(line, 64, digest) || line[64] != ' ' || !hex_take(line + 65, 16, n) ||
	    line[81] != ' ' || !hex_take(line + 82, 16, nonce) || line[98] != '\n')
		return -EINVAL;
	epoch.n = big_endian(n);
	epoch.nonce = big_endian(nonce);
	return prefixd_epochs_set(e, digest, &epoch);
}

static int text_take(struct prefixd_epochs *e, const char *text, size_t len)
{
	const char *p = text, *end = text + len;
	char tail[32];
	uint32_t n = 0;
	int r;

	if (len < strlen(HEAD) || memcmp(p, HEAD, strlen(HEAD)) != 0)
		return -EINVAL;
	for (p += strlen(HEAD); (size_t)(end - p) >= LINE_LEN; p += LINE_LEN, n++) {
		r = line_take(e, p);
		if (r < 0)
			return r;
	}
	snprintf(tail, sizeof(tail), "end %u\n", n);
	return (size_t)(end - p) == strlen(tail) && memcmp(p, tail, strlen(tail)) == 0 ? 0
										       : -EINVAL;
}

/* The whole file.  Return: its length with *ret_text for free(); negative errno. */
static ssize_t file_take(const char *path, char **ret_text)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	ssize_t n = -1;
	char *text;
	int r = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		r = -errno;
	else if (!S_ISREG(st.st_mode) || (st.st_mode & 022) ||
		 (st.st_uid != geteuid() && st.st_uid != 0))
		r = -EPERM;
	else if (st.st_size > FILE_MAX)
		r = -EFBIG;
	text = r == 0 ? malloc((size_t)st.st_size + 1) : NULL;
	if (r == 0 && !text)
		r = -ENOMEM;
	if (r == 0) {
		n = read(fd, text, (size_t)st.st_size + 1);
		r = n < 0 ? -errno : 0;
	}
	if (fd >= 0)
		(void)close(fd); /* it was only read */
	if (r < 0) {
		free(text);
		return r;
	}
	*ret_text = text;
	return n;
}

int prefixd_epochs_load(struct prefixd_epochs *e, const char *path, char *why, size_t why_len)
{
	char *text = NULL;
	ssize_t n;
	int r = 0;

	*e = (struct prefixd_epochs){ .path = strdup(path) };
	n = e->path ? file_take(path, &text) : -ENOMEM;
	if (n < 0 && n != -ENOENT)
		r = (int)n;
	else if (n >= 0)
		r = text_take(e, text, (size_t)n);
	free(text);
	e->dirty = false;
	if (r == 0)
		return 0;
	if (r == -EINVAL)
		snprintf(why, why_len,
			 "%s: is damaged, and without it blocks that were invalidated might be "
			 "served; restore it, or invalidate anew after removing it",
			 path);
	else
		snprintf(why, why_len, "cannot read the epochs in %s: %s", path, strerror(-r));
	prefixd_epochs_deinit(e);
	return r;
}

void prefixd_epochs_deinit(struct prefixd_epochs *e)
{
	free(e->path);
	free(e->v);
	*e = (struct prefixd_epochs){ 0 };
}

/* ---- changing and writing -------------------------------------------------------------------- */

const struct prefixd_epoch_entry *prefixd_epochs_find(const struct prefixd_epochs *e,
						      const uint8_t digest[32])
{
	for (uint32_t i = 0; i < e->n; i++)
		if (memcmp(e->v[i].digest, digest, sizeof(e->v[i].digest)) == 0)
			return &e->v[i];
	return NULL;
}

int prefixd_epochs_set(struct prefixd_epochs *e, const uint8_t digest[32],
		       const struct prefixd_epoch *epoch)
{
	struct prefixd_epoch_entry *entry = NULL;

	for (uint32_t i = 0; i < e->n && !entry; i++)
		if (memcmp(e->v[i].digest, digest, sizeof(e->v[i].digest)) == 0)
			entry = &e->v[i];
	if (entry && !prefixd_epoch_after(epoch, &entry->epoch))
		return 0;
	if (!entry && epoch->n == 0)
		return 0; /* never raised: nothing to keep */
	if (!entry && e->n == e->cap) {
		uint32_t cap = e->cap ? 2 * e->cap : 16;
		struct prefixd_epoch_entry *v = reallocarray(e->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		e->v = v;
		e->cap = cap;
	}
	if (!entry) {
		entry = &e->v[e->n++];
		memcpy(entry->digest, digest, sizeof(entry->digest));
	}
	entry->epoch = *epoch;
	e->dirty = true;
	return 0;
}

static int file_put(FILE *f, const struct prefixd_epochs *e)
{
	fputs(HEAD, f);
	for (uint32_t i = 0; i < e->n; i++) {
		for (size_t k = 0; k < sizeof(e->v[i].digest); k++)
			fprintf(f, "%02x", e->v[i].digest[k]);
		fprintf(f, " %016llx %016llx\n", (unsigned long long)e->v[i].epoch.n,
			(unsigned long long)e->v[i].epoch.nonce);
	}
	fprintf(f, "end %u\n", e->n);
	if (fflush(f) != 0 || ferror(f) || fsync(fileno(f)) < 0)
		return errno ? -errno : -EIO;
	return 0;
}

/* The name is only sure once the folder is on the disk as well. */
static int folder_sync(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	int fd, r = 0;

	if (!dir)
		return -ENOMEM;
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		r = -errno;
	if (fd >= 0)
		(void)close(fd); /* nothing was written through it */
	free(dir);
	return r;
}

int prefixd_epochs_save(struct prefixd_epochs *e)
{
	char *tmp = NULL;
	FILE *f = NULL;
	int fd, r = 0;

	if (!e->dirty)
		return 0;
	if (asprintf(&tmp, "%s.new", e->path) < 0)
		return -ENOMEM;
	(void)unlink(tmp); /* of a life that ended in between; mostly there is none */
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd >= 0)
		f = fdopen(fd, "we");
	if (fd < 0 || !f)
		r = -errno;
	if (f) {
		r = file_put(f, e);
		if (fclose(f) != 0 && r == 0)
			r = -errno;
	} else if (fd >= 0) {
		(void)close(fd);
	}
	if (r == 0 && rename(tmp, e->path) < 0)
		r = -errno;
	if (r < 0)
		(void)unlink(tmp); /* may not exist */
	else
		r = folder_sync(e->path);
	free(tmp);
	if (r == 0)
		e->dirty = false;
	return r;
}
