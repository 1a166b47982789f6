/*
 * naming_key.c - the key of the names that blocks have across machines.
 *
 * Daemons that share a store must share this key, and whoever has it can test guesses of prompts
 * against names; so the file is refused when others may read it.  Without a configured file one is
 * made beside the admin socket; it is written to the end and synced before it gets its name, so
 * that a crash leaves none rather than half of one.
 */
#include "daemon/server_internal.h"

#include "daemon/log.h"
#include "daemon/tiers.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_LEN 32

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static int key_parse(const char *text, size_t len, uint8_t ret_key[KEY_LEN])
{
	uint8_t key[KEY_LEN];

	while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r' || text[len - 1] == ' '))
		len--;
	if (len != 2 * KEY_LEN)
		return -EINVAL;
	for (size_t i = 0; i < KEY_LEN; i++) {
		int hi = hex_value(text[2 * i]), lo = hex_value(text[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return -EINVAL;
		key[i] = (uint8_t)(hi << 4 | lo);
	}
	memcpy(ret_key, key, KEY_LEN);
	explicit_bzero(key, sizeof(key));
	return 0;
}

/* Return: 0; -ENOENT without such a file; another negative errno with a sentence. */
static int key_read(const char *path, uint8_t ret_key[KEY_LEN], char *why, size_t why_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char text[2 * KEY_LEN + 8];
	struct stat st;
	ssize_t n = 0;
	int r = 0;

	if (fd < 0 || fstat(fd, &st) < 0) {
		r = -errno;
		snprintf(why, why_len, "naming-key-file: cannot read %s: %s", path, strerror(-r));
	} else if (!S_ISREG(st.st_mode) || (st.st_mode & 077) ||
		   (st.st_uid != geteuid() && st.st_uid != 0)) {
		r = -EPERM;
		snprintf(why, why_len,
			 "naming-key-file: %s must be a file of this user that nobody else may "
			 "read: chmod 600 %s",
			 path, path);
	} else {
		n = read(fd, text, sizeof(text));
		r = n < 0 ? -errno : key_parse(text, (size_t)n, ret_key);
		if (r < 0)
			snprintf(why, why_len, "naming-key-file: %s must hold 64 hex digits", path);
	}
	if (fd >= 0)
		close(fd);
	explicit_bzero(text, sizeof(text));
	return r;
}

static int key_make(const char *path, uint8_t ret_key[KEY_LEN], char *why, size_t why_len)
{
	char text[2 * KEY_LEN + 2], tmp[4200];
	int fd, r = prefixd_random(ret_key, KEY_LEN);

	if (r < 0) {
		snprintf(why, why_len, "no random bytes: %s", strerror(-r));
		return r;
	}
	for (size_t i = 0; i < KEY_LEN; i++)
		snprintf(text + 2 * i, 3, "%02x", ret_key[i]);
	text[2 * KEY_LEN] = '\n';
	snprintf(tmp, sizeof(tmp), "%s.new", path);
	if (unlink(tmp) < 0 && errno != ENOENT)
		r = -errno;
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		r = -errno;
	else if (write(fd, text, 2 * KEY_LEN + 1) != 2 * KEY_LEN + 1 || fsync(fd) < 0)
		r = errno ? -errno : -EIO;
	else if (rename(tmp, path) < 0)
		r = -errno;
	else
		r = 0;
	if (fd >= 0)
		close(fd);
	explicit_bzero(text, sizeof(text));
	if (r < 0) {
		(void)unlink(tmp); /* may not exist */
		snprintf(why, why_len, "naming-key-file: cannot make %s: %s", path, strerror(-r));
		return r;
	}
	prefixd_info("naming key made in %s; daemons that share a store need the same one", path);
	return 0;
}

int prefixd_naming_key(const struct prefixd_options *o, uint8_t ret_key[32], char *why,
		       size_t why_len)
{
	int r = key_read(o->naming_key_file, ret_key, why, why_len);

	if (r == -ENOENT &&
	    o->values[PREFIXD_OPTION_naming_key_file].source == PREFIXD_FROM_DEFAULT)
		return key_make(o->naming_key_file, ret_key, why, why_len);
	return r;
}

char *prefixd_epochs_path(const struct prefixd_options *o)
{
	size_t n = strlen(o->naming_key_file);
	char *path = NULL;

	if (n > 4 && strcmp(o->naming_key_file + n - 4, ".key") == 0)
		n -= 4;
	return asprintf(&path, "%.*s.epochs", (int)n, o->naming_key_file) < 0 ? NULL : path;
}
