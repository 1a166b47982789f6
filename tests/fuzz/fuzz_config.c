/*
 * fuzz_config.c - any bytes as flags, environment and configuration file.
 *
 *     flags, one a line  \0  environment, one a line  \0  the file
 *
 * What must hold: a refusal says why, in one line; every value that is accepted lies within its
 * limits, and each tenant has a name of its own; what --print-config prints is read again, and then
 * every value means the same.  The file lies in memory; no other one is opened, since flags and
 * variables that name a file are left out.
 */
#include "daemon/options_internal.h"

#include <stdlib.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	WORDS = 64
};

#define must(x)                  \
	do {                     \
		if (!(x))        \
			abort(); \
	} while (0)

struct words {
	char *v[WORDS + 3]; /* with the name of the program, our own --config and the end */
	int n;
	char *text;
};

/* Lines of [p, p + n) as words; those that would open another file are left out. */
static void words_make(struct words *w, const uint8_t *p, size_t n, const char *without)
{
	char *at;

	w->text = malloc(n + 1);
	must(w->text);
	if (n)
		memcpy(w->text, p, n);
	w->text[n] = '\0';
	for (at = w->text; at && w->n < WORDS;) {
		char *word = strsep(&at, "\n");

		if (strncasecmp(word, without, strlen(without)) != 0)
			w->v[w->n++] = word;
	}
	w->v[w->n] = NULL;
}

/* A file in memory; the path is good until close(). */
static int file_make(const void *p, size_t n, char path[32])
{
	int fd = memfd_create("config", MFD_CLOEXEC);

	must(fd >= 0 && write(fd, p, n) == (ssize_t)n);
	snprintf(path, 32, "/proc/self/fd/%d", fd);
	return fd;
}

static uint64_t number_of(const struct prefixd_options *o, size_t i)
{
	uint64_t v;

	memcpy(&v, (const char *)o + prefixd_options_table[i].offset, sizeof(v));
	return v;
}

static bool is_number(const struct prefixd_option *opt)
{
	return opt->type != PREFIXD_TEXT && opt->type != PREFIXD_TENANT;
}

static void check_values(const struct prefixd_options *o)
{
	struct prefixd_limits limits;

	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];
		uint64_t v = number_of(o, i);

		must(o->values[i].text && o->values[i].where && o->values[i].where[0]);
		if (!is_number(opt))
			continue;
		if (opt->type == PREFIXD_CHOICE)
			must(v < strlen(opt->hint));
		else if (!(v == PREFIXD_AUTO && (opt->flags & PREFIXD_OPT_AUTO)))
			must(v >= opt->min && v <= opt->max);
	}
	must(o->socket[0] && o->admin_socket[0] && strcmp(o->socket, o->admin_socket) != 0);
	must(o->n_tenants >= 1 && o->n_tenants <= PREFIXD_TENANTS_MAX);
	for (uint32_t i = 0; i < o->n_tenants; i++) {
		const struct prefixd_tenant *t = &o->tenants[i];

		must(t->name[0] && memchr(t->name, 0, sizeof(t->name)));
		must(t->any_uid || t->n_uids);
		must(t->n_uids <= radix_array_size(t->uids));
		for (uint32_t k = 0; k < i; k++)
			must(strcmp(o->tenants[k].name, t->name) != 0);
	}
	prefixd_options_limits(o, &limits);
	must(limits.max_frame == o->max_frame && limits.max_keys == o->max_keys);
	must(limits.max_leases == o->max_leases && limits.op_ids == o->op_ids);
}

static void check_printed(const struct prefixd_options *o)
{
	char *argv[] = { (char[]){ "prefixd" }, (char[]){ "--config" }, NULL, NULL };
	char path[32], why[PREFIXD_WHY_LEN], *text = NULL;
	struct prefixd_options *again;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	int fd, r;

	must(f);
	prefixd_options_print(o, f);
	must(fclose(f) == 0);
	fd = file_make(text, len, path);
	argv[2] = path;
	r = prefixd_options_load(&again, 3, argv, NULL, why, sizeof(why));
	must(r == 0);
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		if (is_number(&prefixd_options_table[i]))
			must(number_of(o, i) == number_of(again, i));
		else if (i != PREFIXD_OPTION_config && i != PREFIXD_OPTION_tenant)
			must(strcmp(o->values[i].text, again->values[i].text) == 0);
	}
	must(o->n_tenants == again->n_tenants);
	for (uint32_t i = 0; i < o->n_tenants; i++) {
		const struct prefixd_tenant *a = &o->tenants[i], *b = &again->tenants[i];

		must(strcmp(a->name, b->name) == 0 && a->any_uid == b->any_uid);
		must(a->any_uid || (a->n_uids == b->n_uids &&
				    memcmp(a->uids, b->uids, a->n_uids * sizeof(*a->uids)) == 0));
	}
	prefixd_options_free(again);
	close(fd);
	free(text);
}

static const uint8_t *part_end(const uint8_t *p, const uint8_t *end)
{
	const uint8_t *zero = p < end ? memchr(p, 0, (size_t)(end - p)) : NULL;

	return zero ? zero : end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = data + size, *flags_end = part_end(data, end);
	const uint8_t *env = flags_end < end ? flags_end + 1 : end, *env_end = part_end(env, end);
	const uint8_t *file = env_end < end ? env_end + 1 : end;
	struct words argv = { .v = { (char[]){ "prefixd" }, (char[]){ "--config" } }, .n = 3 };
	struct words envp = { .n = 0 };
	char path[32], why[PREFIXD_WHY_LEN];
	struct prefixd_options *o = NULL;
	int fd, r;

	if (!size)
		return 0;
	fd = file_make(file, (size_t)(end - file), path);
	argv.v[2] = path;
	if (flags_end > data)
		words_make(&argv, data, (size_t)(flags_end - data), "--config");
	words_make(&envp, env, (size_t)(env_end - env), "PREFIXD_CONFIG=");
	memset(why, 'x', sizeof(why));
	r = prefixd_options_load(&o, argv.n, argv.v, envp.v, why, sizeof(why));
	if (r < 0) {
		must(r == -EINVAL && !o);
		must(why[0] && memchr(why, 0, sizeof(why)));
	} else if (o->command != PREFIXD_HELP && o->command != PREFIXD_VERSION) {
		check_values(o);
		check_printed(o);
	}
	prefixd_options_free(o);
	free(argv.text);
	free(envp.text);
	close(fd);
	return 0;
}
