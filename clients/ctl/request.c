/*
 * request.c - arguments -> the JSON request.
 *
 * Numbers are checked here, so that a mistyped one is a usage error and not sent; names are the
 * daemon's to judge.
 */
#include "clients/ctl/ctl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEYS 10000000u

bool ctl_parse_u64(const char *text, uint64_t max, uint64_t *ret_n)
{
	unsigned long long n;
	char *end;

	if (text[0] < '0' || text[0] > '9') /* strtoull takes signs and blanks */
		return false;
	errno = 0;
	n = strtoull(text, &end, 0);
	if (errno || *end || n > max)
		return false;
	*ret_n = n;
	return true;
}

bool ctl_parse_seconds(const char *text, double *ret_s)
{
	char *end;
	double s;

	if (text[0] < '0' || text[0] > '9')
		return false;
	s = strtod(text, &end);
	if (strcmp(end, "ms") == 0)
		s /= 1000;
	else if (strcmp(end, "m") == 0)
		s *= 60;
	else if (strcmp(end, "h") == 0)
		s *= 3600;
	else if (*end && strcmp(end, "s") != 0)
		return false;
	if (!isfinite(s))
		return false;
	*ret_s = s;
	return true;
}

static bool wrong(const char *option, const char *text, const char *wanted)
{
	fprintf(stderr, "prefixctl: %s \"%s\" is not %s\n", option, ctl_clean(text), wanted);
	return false;
}

static bool set_u64(json_t *request, const char *name, const char *option, const char *text)
{
	uint64_t n;

	if (!text)
		return true;
	if (!ctl_parse_u64(text, INT64_MAX, &n))
		return wrong(option, text, "a number");
	return json_object_set_new(request, name, json_integer((json_int_t)n)) == 0;
}

static bool set_seconds(json_t *request, const char *name, const char *option, const char *text)
{
	double s;

	if (!text)
		return true;
	if (!ctl_parse_seconds(text, &s))
		return wrong(option, text, "a time, as 30, 30s, 5m or 1h");
	return json_object_set_new(request, name, json_real(s)) == 0;
}

static bool set_string(json_t *request, const char *name, const char *text)
{
	json_t *s;

	if (!text)
		return true;
	s = json_string(text);
	if (!s)
		return wrong(name, text, "text in UTF-8");
	return json_object_set_new(request, name, s) == 0;
}

/* A number names a namespace, anything else a model. */
static bool set_namespace(json_t *request, const char *text)
{
	uint64_t n;

	if (text && ctl_parse_u64(text, UINT32_MAX, &n))
		return json_object_set_new(request, "ns", json_integer((json_int_t)n)) == 0;
	return set_string(request, "model", text);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The text of a file, terminated; "-" is stdin.  NULL with a message. */
static char *read_file(const char *path)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
	size_t len = 0, cap = 65536, n;
	char *s = f ? malloc(cap) : NULL;

	while (s && (n = fread(s + len, 1, cap - len - 1, f)) > 0) {
		len += n;
		if (cap - len < 2) {
			char *bigger = realloc(s, cap *= 2);

			if (!bigger)
				free(s);
			s = bigger;
		}
	}
	if (s && ferror(f)) {
		free(s);
		s = NULL;
	}
	if (s)
		s[len] = 0;
	else
		fprintf(stderr, "prefixctl: %s: %s\n", ctl_clean(path), strerror(errno));
	if (f && f != stdin)
		fclose(f);
	return s;
}

static bool add_token(json_t *array, const char *word)
{
	uint64_t n;

	if (!ctl_parse_u64(word, UINT32_MAX, &n))
		return wrong("token", word, "a token id");
	return json_array_append_new(array, json_integer((json_int_t)n)) == 0;
}

static bool add_digest(json_t *array, const char *word)
{
	if (strlen(word) % 2 || word[strspn(word, "0123456789abcdefABCDEF")])
		return wrong("digest", word, "an even number of hex digits");
	return json_array_append_new(array, json_string(word)) == 0;
}

/* Words apart by blanks, commas, brackets or quotes: a JSON array of numbers or strings is fine. */
static bool set_list(json_t *request, const char *name, char *text,
		     bool (*add)(json_t *array, const char *word))
{
	json_t *array = json_array();
	char *save = NULL;
	bool ok = array != NULL;

	for (char *w = strtok_r(text, " \t\r\n,[]\"", &save); ok && w;
	     w = strtok_r(NULL, " \t\r\n,[]\"", &save)) {
		if (json_array_size(array) >= MAX_KEYS)
			ok = wrong(name, w, "within the first 10,000,000");
		else
			ok = add(array, w);
	}
	if (ok)
		return json_object_set_new(request, name, array) == 0;
	json_decref(array);
	return false;
}

static bool set_keys(json_t *request, const struct ctl *ctl)
{
	const char *list = ctl->values[CTL_OPT_TOKENS];
	const char *tokens = ctl->values[CTL_OPT_TOKENS_FILE];
	const char *digests = ctl->values[CTL_OPT_DIGESTS_FILE];
	char *text;
	bool ok;

	if ((list != NULL) + (tokens != NULL) + (digests != NULL) != 1) {
		fputs("prefixctl: explain wants one of --tokens, --tokens-file, --digests-file\n",
		      stderr);
		return false;
	}
	text = list ? strdup(list) : read_file(tokens ? tokens : digests);
	if (!text)
		return false;
	ok = set_list(request, digests ? "digests" : "tokens", text,
		      digests ? add_digest : add_token);
	free(text);
	return ok;
}

/* ---- the request ----------------------------------------------------------------------------- */

static bool fill_explain(json_t *request, const struct ctl *ctl)
{
	const char *const *v = ctl->values;

	if (!v[CTL_OPT_NAMESPACE]) {
		fputs("prefixctl: explain wants --namespace; `prefixctl status` lists them\n",
		      stderr);
		return false;
	}
	if (v[CTL_OPT_SALT] && v[CTL_OPT_SALT_HEX]) {
		fputs("prefixctl: --salt and --salt-hex exclude each other\n", stderr);
		return false;
	}
	return set_namespace(request, v[CTL_OPT_NAMESPACE]) &&
	       set_string(request, "tenant", v[CTL_OPT_TENANT]) &&
	       set_string(request, "salt", v[CTL_OPT_SALT]) &&
	       set_string(request, "salt_hex", v[CTL_OPT_SALT_HEX]) && set_keys(request, ctl);
}

static bool fill_flush(json_t *request, const struct ctl *ctl)
{
	const char *ns = ctl->values[CTL_OPT_NAMESPACE];

	if ((ns != NULL) == (ctl->values[CTL_OPT_ALL] != NULL)) {
		fputs("prefixctl: flush wants either --namespace or --all\n", stderr);
		return false;
	}
	if (ns)
		return set_namespace(request, ns);
	return json_object_set_new(request, "all", json_true()) == 0;
}

static bool fill_invalidate(json_t *request, const struct ctl *ctl)
{
	const char *option = ctl->values[CTL_OPT_NAMESPACE];

	if ((ctl->operand != NULL) == (option != NULL)) {
		fputs("prefixctl: invalidate wants one namespace; `prefixctl status` lists them\n",
		      stderr);
		return false;
	}
	return set_namespace(request, ctl->operand ? ctl->operand : option);
}

static bool fill_evict(json_t *request, const struct ctl *ctl)
{
	const char *n = ctl->operand ? ctl->operand : ctl->values[CTL_OPT_BLOCKS];

	if (!n || (ctl->operand && ctl->values[CTL_OPT_BLOCKS])) {
		fputs("prefixctl: evict wants the number of blocks\n", stderr);
		return false;
	}
	return set_u64(request, "n", "number of blocks", n) &&
	       set_u64(request, "group", "--group", ctl->values[CTL_OPT_GROUP]);
}

static bool fill_tree(json_t *request, const struct ctl *ctl)
{
	const char *ns = ctl->values[CTL_OPT_NAMESPACE];

	return set_u64(request, "group", "--group", ctl->values[CTL_OPT_GROUP]) &&
	       (!ns || set_namespace(request, ns)) &&
	       set_u64(request, "max_lines", "--lines", ctl->values[CTL_OPT_LINES]);
}

static bool fill(json_t *request, const struct ctl *ctl)
{
	const char *op = ctl->command->op;

	if (strcmp(op, "explain") == 0)
		return fill_explain(request, ctl);
	if (strcmp(op, "flush") == 0)
		return fill_flush(request, ctl);
	if (strcmp(op, "invalidate") == 0)
		return fill_invalidate(request, ctl);
	if (strcmp(op, "evict") == 0)
		return fill_evict(request, ctl);
	if (strcmp(op, "tree") == 0)
		return fill_tree(request, ctl);
	if (strcmp(op, "pins") == 0)
		return set_seconds(request, "older_s", "--older", ctl->values[CTL_OPT_OLDER]) &&
		       set_string(request, "sort", ctl->values[CTL_OPT_SORT]);
	if (strcmp(op, "drain") == 0)
		return set_seconds(request, "timeout_s", "drain's time", ctl->operand);
	if (strcmp(op, "log-level") == 0)
		return set_string(request, "level", ctl->operand);
	return true;
}

json_t *ctl_request_new(const struct ctl *ctl)
{
	json_t *request = json_pack("{s:s}", "op", ctl->command->op);

	if (request && fill(request, ctl))
		return request;
	json_decref(request);
	return NULL;
}
