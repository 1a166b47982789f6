/*
 * options_value.c - text of one value to number, and what to say when it is none.
 *
 * Strict on purpose: a size without a known unit or "30" where a time is meant is refused, since a
 * guess would be off by a factor of a thousand.
 */
#include "daemon/options_internal.h"

#include "daemon/http.h"
#include "daemon/redis.h"

#include <stdarg.h>

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit sizes[] = {
	{ "", 1 },
	{ "B", 1 },
	{ "KiB", 1ull << 10 },
	{ "MiB", 1ull << 20 },
	{ "GiB", 1ull << 30 },
	{ "TiB", 1ull << 40 },
};

static const struct unit times[] = {
	{ "ns", 1 },
	{ "us", 1000 },
	{ "ms", 1000000 },
	{ "s", 1000000000 },
	{ "m", 60ull * 1000000000 },
	{ "min", 60ull * 1000000000 },
	{ "h", 3600ull * 1000000000 },
	{ "d", 86400ull * 1000000000 },
};

__attribute__((format(printf, 3, 4))) static int refuse(char *why, size_t why_len,
							const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(why, why_len, format, ap);
	va_end(ap);
	return -EINVAL;
}

/* Digits at *p in a base up to 10; moves *p behind them.  Return: 0, -EINVAL (none), -ERANGE. */
static int digits_parse(const char **p, unsigned base, uint64_t *ret)
{
	const char *s = *p;
	uint64_t v = 0;

	if (*s < '0' || *s >= (char)('0' + base))
		return -EINVAL;
	for (; *s >= '0' && *s < (char)('0' + base); s++)
		if (__builtin_mul_overflow(v, base, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
			return -ERANGE;
	*p = s;
	*ret = v;
	return 0;
}

/* Number and unit.  Return: 0, -EINVAL, -ERANGE. */
static int quantity_parse(const char *text, const struct unit *units, size_t n_units, uint64_t *ret)
{
	uint64_t v;
	int r = digits_parse(&text, 10, &v);

	if (r < 0)
		return r;
	if (*text == '\0' && v == 0) { /* zero of anything */
		*ret = 0;
		return 0;
	}
	for (size_t i = 0; i < n_units; i++)
		if (strcmp(units[i].name, text) == 0)
			return __builtin_mul_overflow(v, units[i].factor, ret) ? -ERANGE : 0;
	return -EINVAL;
}

/* The largest unit that divides v, so that limits read as an operator writes them. */
static void quantity_print(uint64_t v, const struct unit *units, size_t n_units, char *out,
			   size_t out_len)
{
	size_t best = 0;

	for (size_t i = 0; i < n_units && v > 0; i++)
		if (v % units[i].factor == 0 && units[i].factor > units[best].factor)
			best = i;
	snprintf(out, out_len, "%llu%s", (unsigned long long)(v / units[best].factor),
		 v > 0 ? units[best].name : "");
}

static int number_parse(const struct prefixd_option *opt, const char *text, uint64_t *ret,
			char *why, size_t why_len)
{
	const char *or_auto = opt->flags & PREFIXD_OPT_AUTO ? " or auto" : "";
	char min[32], max[32];
	const char *end = text;
	uint64_t v = 0;
	int r;

	if ((opt->flags & PREFIXD_OPT_AUTO) && strcmp(text, "auto") == 0) {
		*ret = PREFIXD_AUTO;
		return 0;
	}
	switch ((int)opt->type) { /* the other types never come here */
	case PREFIXD_SIZE:
		r = quantity_parse(text, sizes, radix_array_size(sizes), &v);
		quantity_print(opt->min, sizes, radix_array_size(sizes), min, sizeof(min));
		quantity_print(opt->max, sizes, radix_array_size(sizes), max, sizeof(max));
		if (r == -EINVAL)
			return refuse(why, why_len,
				      "%s: '%s' is not a size; give a number with B, KiB, MiB, GiB "
				      "or TiB, such as 8GiB%s",
				      opt->name, text, or_auto);
		break;
	case PREFIXD_TIME:
		r = quantity_parse(text, times, radix_array_size(times), &v);
		quantity_print(opt->min, times, radix_array_size(times), min, sizeof(min));
		quantity_print(opt->max, times, radix_array_size(times), max, sizeof(max));
		if (r == -EINVAL)
			return refuse(why, why_len,
				      "%s: '%s' is not a time; give a number with ns, us, ms, s, "
				      "m, h or d, such as 30s or 500ms%s",
				      opt->name, text, or_auto);
		break;
	default:
		r = digits_parse(&end, 10, &v);
		if (r == 0 && *end != '\0')
			r = -EINVAL;
		snprintf(min, sizeof(min), "%llu", (unsigned long long)opt->min);
		snprintf(max, sizeof(max), "%llu", (unsigned long long)opt->max);
		if (r == -EINVAL)
			return refuse(why, why_len, "%s: '%s' is not a number; give %s to %s%s",
				      opt->name, text, min, max, or_auto);
	}
	if (r == -ERANGE || v < opt->min || v > opt->max)
		return refuse(why, why_len, "%s: %s is out of range; give %s to %s%s", opt->name,
			      text, min, max, or_auto);
	*ret = v;
	return 0;
}

/* Percents, "5:10" or "5"; low | high << 32. */
static int range_parse(const struct prefixd_option *opt, const char *text, uint64_t *ret, char *why,
		       size_t why_len)
{
	const char *p = text;
	uint64_t low = 0, high;

	if ((opt->flags & PREFIXD_OPT_AUTO) && strcmp(text, "auto") == 0) {
		*ret = PREFIXD_AUTO;
		return 0;
	}
	if (digits_parse(&p, 10, &low) < 0)
		p = "?";
	high = low;
	if (*p == ':' && (p++, digits_parse(&p, 10, &high)) < 0)
		p = "?";
	if (*p != '\0' || low > high || high > opt->max)
		return refuse(why, why_len,
			      "%s: '%s' is not LOW:HIGH, two percents from 0 to %llu of which the "
			      "first is not greater, such as 5:10, or one number%s",
			      opt->name, text, (unsigned long long)opt->max,
			      opt->flags & PREFIXD_OPT_AUTO ? ", or auto" : "");
	*ret = low | high << 32;
	return 0;
}

/* Only whether it can be one; whether there are such GPUs, their driver says. */
static int device_check(const struct prefixd_option *opt, const char *text, char *why,
			size_t why_len)
{
	static const char *const names[] = { "auto", "host", "sim", "cuda" };
	static const char of_list[] = "0123456789abcdefABCDEFGPUMIgpumi-,";

	for (size_t i = 0; i < radix_array_size(names); i++)
		if (strcmp(text, names[i]) == 0)
			return 0;
	if (strncmp(text, "cuda:", 5) == 0 && text[5] && text[5 + strspn(text + 5, of_list)] == 0)
		return 0;
	return refuse(why, why_len, "%s: '%s' is not one of %s", opt->name, text, opt->hint);
}

static int choice_parse(const struct prefixd_option *opt, const char *text, uint64_t *ret,
			char *why, size_t why_len)
{
	const char *p = opt->hint;
	size_t len = strlen(text);

	for (uint64_t i = 0;; i++) {
		size_t n = strcspn(p, "|");

		if (n == len && memcmp(p, text, n) == 0) {
			*ret = i;
			return 0;
		}
		if (p[n] == '\0')
			break;
		p += n + 1;
	}
	return refuse(why, why_len, "%s: '%s' is not one of %s", opt->name, text, opt->hint);
}

static bool tenant_name_ok(const char *name, size_t len)
{
	if (len == 0 || len >= PREFIXD_TENANT_NAME_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
		      (name[i] >= '0' && name[i] <= '9') || strchr("._-", name[i])))
			return false;
	return true;
}

static int tenant_parse(const struct prefixd_option *opt, const char *text,
			struct prefixd_tenant *ret, char *why, size_t why_len)
{
	const char *eq = strchr(text, '=');
	struct prefixd_tenant t = { 0 };
	const char *p;

	if (!eq || !tenant_name_ok(text, (size_t)(eq - text)))
		return refuse(why, why_len,
			      "%s: '%s' does not begin with a name and =; give NAME=any or "
			      "NAME=uid:1000,uid:1001 (names: letters, digits, . _ -, at most %d)",
			      opt->name, text, PREFIXD_TENANT_NAME_MAX - 1);
	memcpy(t.name, text, (size_t)(eq - text));
	p = eq + 1;
	if (strcmp(p, "any") == 0) {
		t.any_uid = true;
		*ret = t;
		return 0;
	}
	for (;; p++) {
		uint64_t uid;

		if (strncmp(p, "uid:", 4) != 0)
			break;
		p += 4;
		if (digits_parse(&p, 10, &uid) < 0 || uid > UINT32_MAX - 1)
			break;
		if (t.n_uids == radix_array_size(t.uids))
			return refuse(why, why_len, "%s: %s has more than %zu uids", opt->name,
				      t.name, radix_array_size(t.uids));
		t.uids[t.n_uids++] = (uint32_t)uid;
		if (*p == '\0') {
			*ret = t;
			return 0;
		}
		if (*p != ',')
			break;
	}
	return refuse(why, why_len, "%s: %s: '%s' is not any and not uid:N[,uid:N]", opt->name,
		      t.name, eq + 1);
}

int prefixd_option_parse(const struct prefixd_option *opt, const char *text,
			 struct prefixd_value *ret, char *why, size_t why_len)
{
	const char *end = text;

	if (strlen(text) > 4096 || strpbrk(text, "\n\r;"))
		return refuse(why, why_len,
			      "%s: the value is longer than 4096 bytes or has a line break or ; "
			      "in it",
			      opt->name);
	switch (opt->type) {
	case PREFIXD_TEXT:
		if (strlen(text) > opt->max)
			return refuse(why, why_len, "%s: longer than %llu bytes", opt->name,
				      (unsigned long long)opt->max);
		ret->number = 0;
		if (opt->flags & PREFIXD_OPT_HTTP)
			return prefixd_http_address_check(text, why, why_len);
		if (opt->flags & PREFIXD_OPT_DEVICE)
			return device_check(opt, text, why, why_len);
		if ((opt->flags & PREFIXD_OPT_REDIS) && text[0])
			return prefixd_redis_url_check(text, why, why_len);
		return 0;
	case PREFIXD_COUNT:
	case PREFIXD_SIZE:
	case PREFIXD_TIME:
		return number_parse(opt, text, &ret->number, why, why_len);
	case PREFIXD_MODE:
		if (digits_parse(&end, 8, &ret->number) < 0 || *end || ret->number > opt->max)
			return refuse(why, why_len,
				      "%s: '%s' is not an octal mode up to 0777, such "
				      "as 0660",
				      opt->name, text);
		return 0;
	case PREFIXD_RANGE:
		return range_parse(opt, text, &ret->number, why, why_len);
	case PREFIXD_CHOICE:
		return choice_parse(opt, text, &ret->number, why, why_len);
	case PREFIXD_TENANT:
		return tenant_parse(opt, text, &ret->tenant, why, why_len);
	}
	radix_assert(false);
}

/* ---- did you mean ---------------------------------------------------------------------------- */

#define WORD_MAX 40

/* Edits (insert, delete, replace, swap of neighbours) from a to b; large words are far from all. */
static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[3][WORD_MAX + 1];
	size_t n = strlen(a), m = strlen(b);

	if (n > WORD_MAX || m > WORD_MAX)
		return UINT32_MAX;
	for (size_t j = 0; j <= m; j++)
		row[0][j] = (unsigned)j;
	for (size_t i = 1; i <= n; i++) {
		unsigned *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];

		now[0] = (unsigned)i;
		for (size_t j = 1; j <= m; j++) {
			unsigned best = last[j - 1] + (a[i - 1] != b[j - 1]);

			if (last[j] + 1 < best)
				best = last[j] + 1;
			if (now[j - 1] + 1 < best)
				best = now[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    before[j - 2] + 1 < best)
				best = before[j - 2] + 1;
			now[j] = best;
		}
	}
	return row[n % 3][m];
}

const char *prefixd_suggest(const char *word, const char *const *names, size_t n)
{
	unsigned best = UINT32_MAX;
	const char *found = NULL;
	size_t len = strlen(word);

	for (size_t i = 0; i < n; i++) {
		unsigned d = edit_distance(word, names[i]);

		/* A beginning that fits only once is as good as a slip of the finger. */
		if (len >= 4 && strncmp(word, names[i], len) == 0)
			d = 1;
		if (d < best) {
			best = d;
			found = names[i];
		}
	}
	return best <= 2 && best * 3 <= len ? found : NULL;
}
