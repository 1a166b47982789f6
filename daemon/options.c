/*
 * options.c - the table, and the four sources of values.
 *
 * Each source goes through prefixd_option_set(), which checks the text and keeps it if no stronger
 * source has spoken.  Fields are filled from the texts that won at the very end, so that there is
 * one place where text becomes a number in force.
 */
#include "daemon/options_internal.h"

#include "daemon/http.h"

#include <stdlib.h>
#include <unistd.h>

const struct prefixd_option prefixd_options_table[PREFIXD_N_OPTIONS] = {
#define X(field_, ctype_, name_, section_, type_, def_, min_, max_, flags_, hint_, help_) \
	{ .name = name_,                                                                  \
	  .section = section_,                                                            \
	  .type = type_,                                                                  \
	  .def = def_,                                                                    \
	  .min = min_,                                                                    \
	  .max = max_,                                                                    \
	  .flags = flags_,                                                                \
	  .hint = hint_,                                                                  \
	  .help = help_,                                                                  \
	  .offset = offsetof(struct prefixd_options, field_) },
	PREFIXD_OPTIONS(X)
#undef X
};

static const char *const option_names[] = {
#define X(field_, ctype_, name_, ...) name_,
	PREFIXD_OPTIONS(X)
#undef X
};

const struct prefixd_option *prefixd_option_find(const char *name)
{
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++)
		if (strcmp(prefixd_options_table[i].name, name) == 0)
			return &prefixd_options_table[i];
	return NULL;
}

const char *prefixd_suggest_option(const char *word)
{
	return prefixd_suggest(word, option_names, PREFIXD_N_OPTIONS);
}

static size_t option_id(const struct prefixd_option *opt)
{
	return (size_t)(opt - prefixd_options_table);
}

struct prefixd_options *prefixd_options_free(struct prefixd_options *o)
{
	if (!o)
		return NULL;
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		free(o->values[i].text);
		free(o->values[i].where);
	}
	free(o);
	return NULL;
}

/* Replaces what is known of an option.  Return: 0, -ENOMEM. */
static int value_store(struct prefixd_options *o, size_t id, const char *text,
		       enum prefixd_source source, const char *where)
{
	char *new_text = strdup(text);
	char *new_where = strdup(where);

	if (!new_text || !new_where) {
		free(new_text);
		free(new_where);
		return -ENOMEM;
	}
	free(o->values[id].text);
	free(o->values[id].where);
	o->values[id].text = new_text;
	o->values[id].where = new_where;
	o->values[id].source = source;
	return 0;
}

/* A source's first tenant clears what weaker sources said; the same name adds uids. */
static int tenant_add(struct prefixd_options *o, const struct prefixd_tenant *t, bool first,
		      const char *where, char *why, size_t why_len)
{
	struct prefixd_tenant *have = NULL;

	if (first)
		o->n_tenants = 0;
	for (uint32_t i = 0; i < o->n_tenants; i++)
		if (strcmp(o->tenants[i].name, t->name) == 0)
			have = &o->tenants[i];
	if (!have) {
		if (o->n_tenants == PREFIXD_TENANTS_MAX) {
			snprintf(why, why_len, "%s: more than %d tenants", where,
				 PREFIXD_TENANTS_MAX);
			return -EINVAL;
		}
		o->tenants[o->n_tenants++] = *t;
		return 0;
	}
	have->any_uid |= t->any_uid;
	if (have->n_uids + t->n_uids > radix_array_size(have->uids)) {
		snprintf(why, why_len, "%s: tenant %s has more than %zu uids", where, t->name,
			 radix_array_size(have->uids));
		return -EINVAL;
	}
	memcpy(have->uids + have->n_uids, t->uids, t->n_uids * sizeof(t->uids[0]));
	have->n_uids += t->n_uids;
	return 0;
}

int prefixd_option_set(struct prefixd_options *o, const struct prefixd_option *opt,
		       const char *text, enum prefixd_source source, const char *where, char *why,
		       size_t why_len)
{
	size_t id = option_id(opt);
	struct prefixd_value value;
	char what[PREFIXD_WHY_LEN];
	bool first;
	int r;

	r = prefixd_option_parse(opt, text, &value, what, sizeof(what));
	if (r < 0) {
		snprintf(why, why_len, "%s: %s", where, what);
		return r;
	}
	if (o->values[id].text && o->values[id].source > source)
		return 0;
	first = !o->values[id].text || o->values[id].source < source;
	if (opt->type == PREFIXD_TENANT) {
		r = tenant_add(o, &value.tenant, first, where, why, why_len);
		if (r < 0)
			return r;
	}
	return value_store(o, id, text, source, where);
}

/* ---- flags ----------------------------------------------------------------------------------- */

static const struct {
	const char *flag, *letter;
	enum prefixd_command command;
} commands[] = {
	{ "--help", "-h", PREFIXD_HELP },
	{ "--version", "-V", PREFIXD_VERSION },
	{ "--check-config", NULL, PREFIXD_CHECK_CONFIG },
	{ "--print-config", NULL, PREFIXD_PRINT_CONFIG },
};

static bool command_find(const char *arg, enum prefixd_command *ret)
{
	for (size_t i = 0; i < radix_array_size(commands); i++)
		if (strcmp(arg, commands[i].flag) == 0 ||
		    (commands[i].letter && strcmp(arg, commands[i].letter) == 0)) {
			*ret = commands[i].command;
			return true;
		}
	return false;
}

static int flag_unknown(const char *arg, size_t len, char *why, size_t why_len)
{
	char word[64];
	const char *near;

	if (strncmp(arg, "--", 2) != 0) {
		snprintf(why, why_len,
			 "%s: not understood; every option has the form --name "
			 "value, see --help",
			 arg);
		return -EINVAL;
	}
	snprintf(word, sizeof(word), "%.*s", (int)(len - 2 < 60 ? len - 2 : 60), arg + 2);
	near = prefixd_suggest_option(word);
	for (size_t i = 0; !near && i < radix_array_size(commands); i++) {
		const char *name = commands[i].flag + 2;

		near = prefixd_suggest(word, &name, 1);
	}
	if (near)
		snprintf(why, why_len, "--%s: no such option; did you mean --%s?", word, near);
	else
		snprintf(why, why_len, "--%s: no such option, see --help", word);
	return -EINVAL;
}

static int flags_read(struct prefixd_options *o, int argc, char *const *argv, char *why,
		      size_t why_len)
{
	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i];
		const struct prefixd_option *opt = NULL;
		size_t len = strcspn(arg, "=");
		const char *text;
		char name[64], where[80];
		int r;

		if (command_find(arg, &o->command))
			continue;
		if (len > 2 && len < sizeof(name) && strncmp(arg, "--", 2) == 0) {
			snprintf(name, sizeof(name), "%.*s", (int)(len - 2), arg + 2);
			opt = prefixd_option_find(name);
		}
		if (!opt)
			return flag_unknown(arg, len, why, why_len);
		text = arg[len] == '=' ? arg + len + 1 : argv[++i];
		if (!text) {
			snprintf(why, why_len, "--%s: needs a value: --%s %s", name, name,
				 opt->hint);
			return -EINVAL;
		}
		snprintf(where, sizeof(where), "flag --%s", name);
		r = prefixd_option_set(o, opt, text, PREFIXD_FROM_FLAG, where, why, why_len);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- environment ----------------------------------------------------------------------------- */

#define ENV_PREFIX "PREFIXD_"

/* "PREFIXD_POOL_BLOCKS=8" -> "pool-blocks"; NULL when too long to be one. */
static const char *env_name(const char *entry, char *out, size_t out_len)
{
	size_t n = 0;

	for (entry += strlen(ENV_PREFIX); *entry && *entry != '='; entry++) {
		if (n + 1 >= out_len)
			return NULL;
		out[n++] = *entry == '_' ? '-' : (char)(*entry | 0x20);
	}
	out[n] = '\0';
	return out;
}

static int env_read_tenants(struct prefixd_options *o, const struct prefixd_option *opt,
			    const char *text, char *why, size_t why_len)
{
	while (*(text += strspn(text, " "))) {
		size_t n = strcspn(text, " ");
		char one[512];
		int r;

		if (n >= sizeof(one)) { /* cut off, it could name another user */
			snprintf(why, why_len, "environment PREFIXD_TENANT: longer than %zu bytes",
				 sizeof(one) - 1);
			return -EINVAL;
		}
		snprintf(one, sizeof(one), "%.*s", (int)n, text);
		r = prefixd_option_set(o, opt, one, PREFIXD_FROM_ENV, "environment PREFIXD_TENANT",
				       why, why_len);
		if (r < 0)
			return r;
		text += n;
	}
	return 0;
}

static int env_read(struct prefixd_options *o, char *const *envp, char *why, size_t why_len)
{
	for (; envp && *envp; envp++) {
		const struct prefixd_option *opt = NULL;
		char name[64], where[96];
		const char *eq = strchr(*envp, '=');
		int r;

		if (!eq || strncmp(*envp, ENV_PREFIX, strlen(ENV_PREFIX)) != 0)
			continue;
		if (env_name(*envp, name, sizeof(name)))
			opt = prefixd_option_find(name);
		if (!opt) { /* a neighbour's variable is not a reason not to start */
			snprintf(o->unknown_env, sizeof(o->unknown_env), "%.*s", (int)(eq - *envp),
				 *envp);
			continue;
		}
		snprintf(where, sizeof(where), "environment %.*s", (int)(eq - *envp), *envp);
		if (opt->type == PREFIXD_TENANT)
			r = env_read_tenants(o, opt, eq + 1, why, why_len);
		else
			r = prefixd_option_set(o, opt, eq + 1, PREFIXD_FROM_ENV, where, why,
					       why_len);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* Replaces a default of "auto" that is a path by the path. */
static int auto_paths(struct prefixd_options *o, char *const *envp)
{
	static const char *const where = "default";
	char path[4096];
	const char *runtime = NULL, *text;
	size_t n;
	int r;

	for (; envp && *envp; envp++)
		if (strncmp(*envp, "XDG_RUNTIME_DIR=", 16) == 0)
			runtime = *envp + 16;
	if (strcmp(o->values[PREFIXD_OPTION_socket].text, "auto") == 0) {
		if (geteuid() == 0)
			snprintf(path, sizeof(path), "/run/prefixd/prefixd.sock");
		else if (runtime && runtime[0])
			snprintf(path, sizeof(path), "%s/prefixd.sock", runtime);
		else
			snprintf(path, sizeof(path), "/run/user/%u/prefixd.sock",
				 (unsigned)geteuid());
		r = value_store(o, PREFIXD_OPTION_socket, path, PREFIXD_FROM_DEFAULT, where);
		if (r < 0)
			return r;
	}
	if (strcmp(o->values[PREFIXD_OPTION_admin_socket].text, "auto") == 0) {
		text = o->values[PREFIXD_OPTION_socket].text;
		n = strlen(text);
		if (n > 5 && strcmp(text + n - 5, ".sock") == 0)
			n -= 5;
		snprintf(path, sizeof(path), "%.*s-admin.sock", (int)n, text);
		r = value_store(o, PREFIXD_OPTION_admin_socket, path, PREFIXD_FROM_DEFAULT, where);
		if (r < 0)
			return r;
	}
	if (strcmp(o->values[PREFIXD_OPTION_naming_key_file].text, "auto") == 0) {
		text = o->values[PREFIXD_OPTION_admin_socket].text;
		n = strlen(text);
		if (n > 5 && strcmp(text + n - 5, ".sock") == 0)
			n -= 5;
		snprintf(path, sizeof(path), "%.*s.key", (int)n, text);
		return value_store(o, PREFIXD_OPTION_naming_key_file, path, PREFIXD_FROM_DEFAULT,
				   where);
	}
	return 0;
}

/* Texts that won become the fields that the daemon reads. */
static void fields_fill(struct prefixd_options *o)
{
	char why[PREFIXD_WHY_LEN];

	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];
		char *field = (char *)o + opt->offset;
		struct prefixd_value value = { 0 };

		if (opt->type == PREFIXD_TEXT || opt->type == PREFIXD_TENANT) {
			memcpy(field, &o->values[i].text, sizeof(char *));
			continue;
		}
		radix_assert(prefixd_option_parse(opt, o->values[i].text, &value, why,
						  sizeof(why)) == 0);
		memcpy(field, &value.number, sizeof(value.number));
	}
}

static int together_check(const struct prefixd_options *o, char *why, size_t why_len)
{
	const char *a = o->socket, *b = o->admin_socket;
	const char *http = prefixd_http_unix_path(o->http);

	if (a[0] == '\0' || b[0] == '\0') {
		snprintf(why, why_len, "%s: may not be empty", a[0] ? "admin-socket" : "socket");
		return -EINVAL;
	}
	if (strlen(b) > prefixd_options_table[PREFIXD_OPTION_admin_socket].max ||
	    strlen(a) > prefixd_options_table[PREFIXD_OPTION_socket].max) {
		snprintf(why, why_len, "socket: a socket's path may have 107 bytes: %s", b);
		return -EINVAL;
	}
	if (strcmp(a, b) == 0) {
		snprintf(why, why_len, "admin-socket: must differ from socket (%s)", a);
		return -EINVAL;
	}
	if (http && (strcmp(a, http) == 0 || strcmp(b, http) == 0)) {
		snprintf(why, why_len, "http: must differ from socket and admin-socket (%s)", http);
		return -EINVAL;
	}
	return 0;
}

/* Options that mean nothing without another one: saying so beats doing nothing in silence. */
static int tiers_check(const struct prefixd_options *o, char *why, size_t why_len)
{
	static const enum prefixd_option_id of_redis[] = {
		PREFIXD_OPTION_redis_user,    PREFIXD_OPTION_redis_password_file,
		PREFIXD_OPTION_redis_ttl,     PREFIXD_OPTION_redis_timeout,
		PREFIXD_OPTION_redis_encrypt, PREFIXD_OPTION_redis_in_flight,
	};
	uint32_t low, high;

	for (size_t i = 0; !o->redis[0] && i < radix_array_size(of_redis); i++) {
		const char *text = o->values[of_redis[i]].text;

		if (strcmp(text, prefixd_options_table[of_redis[i]].def) == 0)
			continue;
		snprintf(why, why_len,
			 "%s: means nothing without redis; set redis, or leave it out",
			 prefixd_options_table[of_redis[i]].name);
		return -EINVAL;
	}
	if (o->redis_user[0] && !o->redis_password_file[0]) {
		snprintf(why, why_len, "redis-user: needs a password; set redis-password-file");
		return -EINVAL;
	}
	if (!o->redis[0] && o->index_blocks != PREFIXD_AUTO && o->index_blocks > 0) {
		snprintf(why, why_len,
			 "index-blocks: counts blocks in Redis; set redis, or leave it out");
		return -EINVAL;
	}
	if (o->host_blocks == 0 && o->host_bytes != PREFIXD_AUTO) {
		snprintf(
			why, why_len,
			"host-bytes: host-blocks=0 turns the host tier off; leave one of them out");
		return -EINVAL;
	}
	prefixd_options_watermark(o, &low, &high);
	if (prefixd_options_tiers(o) || (o->write == PREFIXD_WRITE_BACK && high == 0))
		return 0;
	snprintf(why, why_len,
		 "%s: no tier lies below the pools; set host-blocks, host-bytes or redis, or leave "
		 "it out",
		 o->write != PREFIXD_WRITE_BACK ? "write" : "watermark");
	return -EINVAL;
}

static int sources_read(struct prefixd_options *o, int argc, char *const *argv, char *const *envp,
			char *why, size_t why_len)
{
	int r;

	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];

		r = prefixd_option_set(o, opt, opt->def, PREFIXD_FROM_DEFAULT, "default", why,
				       why_len);
		if (r < 0)
			return r;
	}
	r = flags_read(o, argc, argv, why, why_len);
	if (r < 0)
		return r;
	r = env_read(o, envp, why, why_len);
	if (r < 0)
		return r;
	if (o->values[PREFIXD_OPTION_config].text[0]) {
		r = prefixd_options_file(o, o->values[PREFIXD_OPTION_config].text, why, why_len);
		if (r < 0)
			return r;
	}
	r = auto_paths(o, envp);
	if (r < 0)
		return r;
	fields_fill(o);
	r = together_check(o, why, why_len);
	return r < 0 ? r : tiers_check(o, why, why_len);
}

int prefixd_options_load(struct prefixd_options **ret_options, int argc, char *const *argv,
			 char *const *envp, char *why, size_t why_len)
{
	struct prefixd_options *o = calloc(1, sizeof(*o));
	int r;

	snprintf(why, why_len, "out of memory");
	if (!o)
		return -ENOMEM;
	r = sources_read(o, argc, argv, envp, why, why_len);
	/* --help and --version answer whatever else is wrong. */
	if (r < 0 &&
	    !(r == -EINVAL && (o->command == PREFIXD_HELP || o->command == PREFIXD_VERSION))) {
		prefixd_options_free(o);
		return r;
	}
	*ret_options = o;
	return 0;
}

bool prefixd_options_staged(const struct prefixd_options *o)
{
	return o->pool_write != 0;
}

bool prefixd_options_tiers(const struct prefixd_options *o)
{
	bool host = o->host_blocks == PREFIXD_AUTO ? o->host_bytes != PREFIXD_AUTO
						   : o->host_blocks > 0;

	return host || o->redis[0];
}

uint32_t prefixd_options_host_blocks(const struct prefixd_options *o)
{
	return o->host_blocks == PREFIXD_AUTO ? 0 : (uint32_t)o->host_blocks;
}

uint32_t prefixd_options_index_blocks(const struct prefixd_options *o)
{
	if (o->index_blocks != PREFIXD_AUTO)
		return (uint32_t)o->index_blocks;
	return o->redis[0] ? 1u << 20 : 0;
}

void prefixd_options_watermark(const struct prefixd_options *o, uint32_t *ret_low,
			       uint32_t *ret_high)
{
	uint64_t both = o->watermark;

	if (both == PREFIXD_AUTO)
		both = prefixd_options_tiers(o) ? 1 | (uint64_t)2 << 32 : 0;
	*ret_low = (uint32_t)both;
	*ret_high = (uint32_t)(both >> 32);
}

void prefixd_options_limits(const struct prefixd_options *o, struct prefixd_limits *ret_limits)
{
	*ret_limits = (struct prefixd_limits){
		.max_frame = (uint32_t)o->max_frame,
		.max_keys = (uint32_t)o->max_keys,
		.max_sessions = (uint32_t)o->max_sessions,
		.max_sessions_per_process = (uint32_t)o->max_sessions_per_process,
		.max_sessions_per_user = (uint32_t)o->max_sessions_per_user,
		.max_namespaces = (uint32_t)o->max_namespaces,
		.max_leases = (uint32_t)o->max_leases,
		.max_groups = (uint32_t)o->max_groups,
		.op_ids = (uint32_t)o->op_ids,
		.op_id_ns = o->op_id_age,
		.max_pins_share = (uint32_t)o->max_pins_share,
		.max_reserved = (uint32_t)o->max_reserved,
		.lease_max_age_ns = o->lease_max_age,
		.pending_ns = o->pending_deadline,
		.reserve_ns = o->reserve_wait,
		.prefill_ns_per_token = 1000000000u / o->prefill_rate,
	};
}
