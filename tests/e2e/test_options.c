/*
 * test_options.c - every way in which a setting can come in, be wrong, and go out again.
 */
#include "daemon/options_internal.h"
#include "tests/lib/run.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char why[PREFIXD_WHY_LEN];
static char file_path[64];

static void file_write_bytes(const void *bytes, size_t len)
{
	int fd;

	snprintf(file_path, sizeof(file_path), "/tmp/prefixd-options-XXXXXX");
	fd = mkostemp(file_path, O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	close(fd);
}

static void file_write(const char *text)
{
	file_write_bytes(text, strlen(text));
}

static void file_remove(void)
{
	if (file_path[0])
		unlink(file_path);
	file_path[0] = '\0';
}

/* argv and envp are NULL-terminated lists of strings. */
static int load(struct prefixd_options **ret, char **argv, char **envp)
{
	int argc = 0;

	why[0] = '\0';
	while (argv[argc])
		argc++;
	return prefixd_options_load(ret, argc, argv, envp, why, sizeof(why));
}

#define ARGS(...) ((char *[]){ (char[]){ "prefixd" }, __VA_ARGS__, NULL })
#define ENV(...)  ((char *[]){ __VA_ARGS__, NULL })
#define S(text)   ((char[]){ text })

/* ---- one value ------------------------------------------------------------------------------- */

static const struct {
	const char *option, *text;
	uint64_t number;
} good[] = {
	{ "pool-blocks", "1", 1 },
	{ "pool-blocks", "4294967294", 4294967294u },
	{ "pool-blocks", "auto", PREFIXD_AUTO },
	{ "pool-bytes", "4096", 4096 },
	{ "pool-bytes", "4096B", 4096 },
	{ "pool-bytes", "64KiB", 65536 },
	{ "pool-bytes", "3MiB", 3u << 20 },
	{ "pool-bytes", "8GiB", 8ull << 30 },
	{ "pool-bytes", "2TiB", 2ull << 40 },
	{ "op-id-age", "30s", 30000000000u },
	{ "op-id-age", "500ms", 500000000u },
	{ "op-id-age", "7us", 7000 },
	{ "op-id-age", "9ns", 9 },
	{ "op-id-age", "2m", 120000000000u },
	{ "op-id-age", "2min", 120000000000u },
	{ "op-id-age", "1h", 3600000000000u },
	{ "op-id-age", "1d", 86400000000000u },
	{ "op-id-age", "0", 0 },
	{ "socket-mode", "0660", 0660 },
	{ "socket-mode", "600", 0600 },
	{ "device", "auto", 0 },
	{ "device", "sim", 0 },
	{ "device", "cuda", 0 },
	{ "device", "cuda:GPU-5ee00000-0000-4000-8000-000000000001,5ee1", 0 },
	{ "log-level", "debug", 3 },
	{ "redis", "", 0 },
	{ "redis", "unix:/run/redis/redis.sock", 0 },
	{ "redis", "tcp:127.0.0.1:6379", 0 },
	{ "http", "", 0 },
	{ "http", "127.0.0.1:9100", 0 },
	{ "http", "127.0.0.53:0", 0 },
	{ "http", "[::1]:65535", 0 },
	{ "http", "unix:///run/prefixd/http.sock", 0 },
	{ "host-blocks", "0", 0 },
	{ "host-blocks", "7", 7 },
	{ "host-bytes", "1GiB", 1u << 30 },
	{ "write", "second-use", PREFIXD_WRITE_SECOND_USE },
	{ "watermark", "0", 0 },
	{ "watermark", "5", 5 | (uint64_t)5 << 32 },
	{ "watermark", "5:10", 5 | (uint64_t)10 << 32 },
	{ "watermark", "0:50", (uint64_t)50 << 32 },
	{ "watermark", "auto", PREFIXD_AUTO },
	{ "redis-encrypt", "yes", 1 },
	{ "lock-memory", "no", 0 },
	{ "policy", "lru", 0 },
};

START_TEST(good_values)
{
	const struct prefixd_option *opt = prefixd_option_find(good[_i].option);
	struct prefixd_value value = { .number = 77 };

	ck_assert_ptr_nonnull(opt);
	ck_assert_msg(prefixd_option_parse(opt, good[_i].text, &value, why, sizeof(why)) == 0,
		      "%s=%s: %s", good[_i].option, good[_i].text, why);
	ck_assert_uint_eq(value.number, good[_i].number);
}
END_TEST

/* Each refusal must name the option, the text where it helps, and what would be right. */
static const struct {
	const char *option, *text, *says;
} bad[] = {
	{ "redis", "x", "redis: \"x\"" },
	{ "redis", "0", "tcp:host:port" },
	{ "host-blocks", "x", "'x' is not a number; give 0 to 4294967294 or auto" },
	{ "pool-blocks", "", "give 1 to 4294967294 or auto" },
	{ "pool-blocks", "0", "out of range" },
	{ "pool-blocks", "12x", "'12x' is not a number" },
	{ "pool-blocks", "-1", "'-1' is not a number" },
	{ "pool-blocks", " 5", "' 5' is not a number" },
	{ "pool-blocks", "4294967295", "out of range" },
	{ "pool-blocks", "99999999999999999999", "out of range" },
	{ "pool-bytes", "8GB", "such as 8GiB or auto" },
	{ "pool-bytes", "8 GiB", "such as 8GiB" },
	{ "pool-bytes", "8gib", "such as 8GiB" },
	{ "pool-bytes", "1", "give 4KiB to 1024TiB or auto" },
	{ "pool-bytes", "99999999TiB", "out of range" },
	{ "op-id-age", "30", "such as 30s or 500ms" },
	{ "op-id-age", "30sec", "'30sec' is not a time" },
	{ "op-id-age", "2d", "give 0 to 1d" },
	{ "socket-mode", "0888", "'0888' is not an octal mode" },
	{ "socket-mode", "1777", "up to 0777" },
	{ "socket-mode", "rw", "octal" },
	{ "device", "gpu", "'gpu' is not one of auto|host|sim|cuda" },
	{ "device", "", "is not one of" },
	{ "device", "cuda:", "'cuda:' is not one of" },
	{ "device", "cuda:1/2", "is not one of auto|host|sim|cuda|cuda:UUID,..." },
	{ "device", "host:1", "is not one of" },
	{ "log-level", "warning", "error|warn|info|debug" },
	{ "policy", "arc", "is not one of lru" },
	{ "redis", "redis://x", "write unix:/path or tcp:host:port" },
	{ "redis", "unix:x", "the path behind unix: begins with /" },
	{ "redis", "tcp:127.0.0.1:0", "a port is a number" },
	{ "http", "9100", "'9100' is not an address; give unix://PATH, 127.0.0.1:PORT" },
	{ "http", "127.0.0.1", "is not an address" },
	{ "http", "127.0.0.1:", "is not an address" },
	{ "http", "127.0.0.1:65536", "is not an address" },
	{ "http", "127.0.0.1:80x", "is not an address" },
	{ "http", "127.0.0.1:-1", "is not an address" },
	{ "http", "localhost:9100", "is not an address" },
	{ "http", "::1:9100", "is not an address" },
	{ "http", "[::1:9100", "is not an address" },
	{ "http", "tcp://127.0.0.1:9100", "is not an address" },
	{ "http", "0.0.0.0:9100", "can be reached from other machines; give unix://PATH" },
	{ "http", "192.168.1.1:9100", "can be reached from other machines" },
	{ "http", "[::]:9100", "can be reached from other machines" },
	{ "http", "unix://run/x.sock", "give a path that begins with /" },
	{ "http", "unix://", "give a path that begins with /" },
	{ "watermark", "", "'' is not LOW:HIGH" },
	{ "watermark", "10:5", "of which the first is not greater, such as 5:10" },
	{ "watermark", "5:", "is not LOW:HIGH" },
	{ "watermark", ":5", "is not LOW:HIGH" },
	{ "watermark", "5:10:15", "is not LOW:HIGH" },
	{ "watermark", "51", "from 0 to 50" },
	{ "watermark", "5%", "or one number, or auto" },
	{ "write", "behind", "is not one of back|through|second-use" },
	{ "prefill-rate", "0", "give 1 to 1000000000" },
	{ "socket", "a;b", "line break or ;" },
	{ "socket", "a\nb", "line break or ;" },
	{ "tenant", "x", "give NAME=any" },
	{ "tenant", "=any", "give NAME=any" },
	{ "tenant", "a b=any", "letters, digits" },
	{ "tenant", "x=some", "not any and not uid:N" },
	{ "tenant", "x=uid:", "not any and not uid:N" },
	{ "tenant", "x=uid:1,", "not any and not uid:N" },
	{ "tenant", "x=uid:4294967295", "not any and not uid:N" },
	{ "tenant",
	  "x=uid:1,uid:2,uid:3,uid:4,uid:5,uid:6,uid:7,uid:8,uid:9,uid:10,uid:11,uid:12,uid:13,"
	  "uid:14,uid:15,uid:16,uid:17",
	  "more than 16 uids" },
};

START_TEST(bad_values)
{
	const struct prefixd_option *opt = prefixd_option_find(bad[_i].option);
	struct prefixd_value value;

	ck_assert_ptr_nonnull(opt);
	ck_assert_int_eq(prefixd_option_parse(opt, bad[_i].text, &value, why, sizeof(why)),
			 -EINVAL);
	ck_assert_msg(strncmp(why, bad[_i].option, strlen(bad[_i].option)) == 0,
		      "'%s' does not begin with the option", why);
	ck_assert_msg(strstr(why, bad[_i].says), "'%s' does not say '%s'", why, bad[_i].says);
}
END_TEST

/* ---- sources --------------------------------------------------------------------------------- */

START_TEST(defaults_are_valid)
{
	struct prefixd_options *o = NULL;

	ck_assert_msg(load(&o, ARGS(S("--socket"), S("/a/p.sock")), NULL) == 0, "%s", why);
	ck_assert_uint_eq(o->pool_blocks, PREFIXD_AUTO);
	ck_assert_uint_eq(o->max_frame, 1u << 20);
	ck_assert_uint_eq(o->socket_mode, 0660);
	ck_assert_str_eq(o->socket, "/a/p.sock");
	ck_assert_str_eq(o->admin_socket, "/a/p-admin.sock");
	ck_assert_str_eq(o->naming_key_file, "/a/p-admin.key");
	ck_assert_uint_eq(o->n_tenants, 1);
	ck_assert_str_eq(o->tenants[0].name, "default");
	ck_assert(o->tenants[0].any_uid);
	ck_assert_int_eq(o->command, PREFIXD_RUN);
	prefixd_options_free(o);
}
END_TEST

START_TEST(default_socket_follows_the_user)
{
	struct prefixd_options *o = NULL;

	ck_assert_msg(load(&o, ARGS(S("--log-level=warn")), ENV(S("XDG_RUNTIME_DIR=/x/y"))) == 0,
		      "%s", why);
	ck_assert_str_eq(o->socket,
			 geteuid() == 0 ? "/run/prefixd/prefixd.sock" : "/x/y/prefixd.sock");
	prefixd_options_free(o);
}
END_TEST

/* flag > environment > file > default, each alone and all together. */
START_TEST(precedence)
{
	struct prefixd_options *o = NULL;
	char flag[128];

	file_write("[memory]\npool-blocks = 10\n[limits]\nmax-leases=20\nop-ids = 3\n");
	snprintf(flag, sizeof(flag), "--config=%s", file_path);
	ck_assert_msg(load(&o, ARGS(S("--pool-blocks"), S("30"), flag),
			   ENV(S("PREFIXD_POOL_BLOCKS=40"), S("PREFIXD_MAX_LEASES=50"))) == 0,
		      "%s", why);
	ck_assert_uint_eq(o->pool_blocks, 30);
	ck_assert_uint_eq(o->max_leases, 50);
	ck_assert_uint_eq(o->op_ids, 3);
	ck_assert_uint_eq(o->max_sessions, 256);
	ck_assert_str_eq(o->values[PREFIXD_OPTION_pool_blocks].where, "flag --pool-blocks");
	ck_assert_str_eq(o->values[PREFIXD_OPTION_max_leases].where,
			 "environment PREFIXD_MAX_LEASES");
	snprintf(flag, sizeof(flag), "%s:5", file_path);
	ck_assert_str_eq(o->values[PREFIXD_OPTION_op_ids].where, flag);
	ck_assert_str_eq(o->values[PREFIXD_OPTION_max_sessions].where, "default");
	prefixd_options_free(o);
}
END_TEST

START_TEST(config_by_environment)
{
	struct prefixd_options *o = NULL;
	char env[128];

	file_write("pool-blocks = 10\n"); /* sections may be left out */
	snprintf(env, sizeof(env), "PREFIXD_CONFIG=%s", file_path);
	ck_assert_msg(load(&o, ARGS(S("--log-level=warn")), ENV(env)) == 0, "%s", why);
	ck_assert_uint_eq(o->pool_blocks, 10);
	prefixd_options_free(o);
}
END_TEST

START_TEST(overridden_values_are_checked_too)
{
	struct prefixd_options *o = NULL;

	ck_assert_int_eq(load(&o, ARGS(S("--pool-blocks=1")), ENV(S("PREFIXD_POOL_BLOCKS=x"))),
			 -EINVAL);
	ck_assert_str_eq(why, "environment PREFIXD_POOL_BLOCKS: pool-blocks: 'x' is not a number; "
			      "give 1 to 4294967294 or auto");
}
END_TEST

START_TEST(tenants_from_flags_and_file)
{
	struct prefixd_options *o = NULL;
	char flag[128], who[256];

	file_write("[tenants]\nred = any\nblue = uid:5,uid:6\nblue = uid:7\n");
	snprintf(flag, sizeof(flag), "--config=%s", file_path);
	ck_assert_msg(load(&o, ARGS(flag), NULL) == 0, "%s", why);
	ck_assert_uint_eq(o->n_tenants, 2); /* the default is gone */
	ck_assert_str_eq(o->tenants[0].name, "red");
	ck_assert_str_eq(o->tenants[1].name, "blue");
	prefixd_tenant_print(&o->tenants[1], who, sizeof(who));
	ck_assert_str_eq(who, "uid:5,uid:6,uid:7");
	o = prefixd_options_free(o);

	ck_assert_msg(
		load(&o, ARGS(flag, S("--tenant"), S("a=any"), S("--tenant=b=uid:9")), NULL) == 0,
		"%s", why);
	ck_assert_uint_eq(o->n_tenants, 2); /* a stronger source replaces the whole list */
	ck_assert_str_eq(o->tenants[0].name, "a");
	ck_assert_uint_eq(o->tenants[1].uids[0], 9);
	o = prefixd_options_free(o);

	ck_assert_msg(load(&o, ARGS(flag), ENV(S("PREFIXD_TENANT=x=any y=uid:1"))) == 0, "%s", why);
	ck_assert_uint_eq(o->n_tenants, 2);
	ck_assert_str_eq(o->tenants[1].name, "y");
	prefixd_options_free(o);
}
END_TEST

/* Zeros in front of a number are allowed, but never so many that its end is cut off. */
START_TEST(long_tenants_are_not_cut)
{
	struct prefixd_options *o = NULL;
	char text[700];

	for (size_t n = 400; n < 600; n += 50) {
		snprintf(text, sizeof(text), "PREFIXD_TENANT=x=uid:%0*d", (int)n, 1000);
		if (load(&o, ARGS(S("--check-config")), ENV(text)) < 0) {
			ck_assert_uint_gt(n, 450);
			ck_assert_ptr_nonnull(strstr(why, "longer than 511 bytes"));
			continue;
		}
		ck_assert_uint_eq(o->tenants[0].uids[0], 1000);
		o = prefixd_options_free(o);
	}
}
END_TEST

/* What "auto" stands for below the pools. */
START_TEST(auto_below_the_pools)
{
	struct prefixd_options *o = NULL;
	uint32_t low = 9, high = 9;

	ck_assert_msg(load(&o, ARGS(S("--log-level=warn")), NULL) == 0, "%s", why);
	ck_assert(!prefixd_options_tiers(o));
	ck_assert_uint_eq(prefixd_options_host_blocks(o), 0);
	ck_assert_uint_eq(prefixd_options_index_blocks(o), 0);
	prefixd_options_watermark(o, &low, &high);
	ck_assert(low == 0 && high == 0);
	o = prefixd_options_free(o);

	ck_assert_msg(load(&o, ARGS(S("--redis=unix:/r")), NULL) == 0, "%s", why);
	ck_assert(prefixd_options_tiers(o));
	ck_assert_uint_eq(prefixd_options_index_blocks(o), 1u << 20);
	prefixd_options_watermark(o, &low, &high);
	ck_assert(low == 1 && high == 2);
	o = prefixd_options_free(o);

	ck_assert_msg(load(&o, ARGS(S("--host-bytes=1GiB"), S("--watermark=3")), NULL) == 0, "%s",
		      why);
	ck_assert(prefixd_options_tiers(o));
	prefixd_options_watermark(o, &low, &high);
	ck_assert(low == 3 && high == 3);
	o = prefixd_options_free(o);

	/* Said in words and without effect: no reason not to start. */
	ck_assert_msg(load(&o, ARGS(S("--watermark=0"), S("--write=back")), NULL) == 0, "%s", why);
	prefixd_options_free(o);
}
END_TEST

START_TEST(commands)
{
	struct prefixd_options *o = NULL;

	ck_assert_int_eq(load(&o, ARGS(S("--check-config")), NULL), 0);
	ck_assert_int_eq(o->command, PREFIXD_CHECK_CONFIG);
	o = prefixd_options_free(o);
	ck_assert_int_eq(load(&o, ARGS(S("-h")), NULL), 0);
	ck_assert_int_eq(o->command, PREFIXD_HELP);
	o = prefixd_options_free(o);
	/* Help comes even where the rest is wrong. */
	ck_assert_int_eq(load(&o, ARGS(S("--help"), S("--nonsense")), NULL), 0);
	ck_assert_int_eq(o->command, PREFIXD_HELP);
	prefixd_options_free(o);
}
END_TEST

START_TEST(strange_environment_is_named_not_refused)
{
	struct prefixd_options *o = NULL;

	ck_assert_int_eq(load(&o, ARGS(S("--log-level=warn")), ENV(S("PREFIXD_POOLBLOCKS=3"))), 0);
	ck_assert_str_eq(o->unknown_env, "PREFIXD_POOLBLOCKS");
	prefixd_options_free(o);
}
END_TEST

/* ---- refusals of whole command lines and files ----------------------------------------------- */

static const struct {
	const char *arg, *says;
} bad_args[] = {
	{ "--pool-block=5", "--pool-block: no such option; did you mean --pool-blocks?" },
	{ "--pool_blocks=5", "did you mean --pool-blocks?" },
	{ "--polcy=lru", "did you mean --policy?" },
	{ "--hepl", "did you mean --help?" },
	{ "--max-lease=5", "did you mean --max-leases?" },
	{ "--zzzzzzzz", "--zzzzzzzz: no such option, see --help" },
	{ "--socket", "--socket: needs a value: --socket PATH" },
	{ "-x", "-x: not understood" },
	{ "serve", "serve: not understood" },
	{ "--", "no such option" },
	{ "--=3", "no such option" },
	{ "--admin-socket=", "admin-socket: may not be empty" },
	/* together they mean nothing, or not what was thought */
	{ "--redis-ttl=5s", "redis-ttl: means nothing without redis" },
	{ "--redis-password-file=/p", "redis-password-file: means nothing without redis" },
	{ "--redis-encrypt=yes", "redis-encrypt: means nothing without redis" },
	{ "--redis-user=u", "redis-user: means nothing without redis" },
	{ "--redis=unix:/r --redis-user=u", "redis-user: needs a password" },
	{ "--index-blocks=5", "index-blocks: counts blocks in Redis" },
	{ "--host-blocks=0 --host-bytes=1GiB", "host-blocks=0 turns the host tier off" },
	{ "--write=through", "write: no tier lies below the pools" },
	{ "--watermark=5:10", "watermark: no tier lies below the pools" },
};

START_TEST(bad_flags)
{
	struct prefixd_options *o = NULL;
	char arg[64], *second;

	snprintf(arg, sizeof(arg), "%s", bad_args[_i].arg);
	second = strchr(arg, ' ');
	if (second)
		*second++ = '\0';
	ck_assert_int_eq(load(&o, ARGS(arg, second), NULL), -EINVAL);
	ck_assert_msg(strstr(why, bad_args[_i].says), "'%s' does not say '%s'", why,
		      bad_args[_i].says);
	ck_assert_ptr_null(o);
}
END_TEST

static const struct {
	const char *text, *says; /* behind the file's name */
} bad_files[] = {
	{ "[memory]\npool-block = 5\n", ":2: no such key: pool-block; did you mean pool-blocks in "
					"[memory]?" },
	{ "[memory]\n\nxyzzy = 5\n", ":3: no such key: xyzzy" },
	{ "[limits]\npool-blocks = 5\n",
	  ":2: pool-blocks belongs in section [memory], not [limits]" },
	{ "[memory]\npool-blocks = five\n", ":2: pool-blocks: 'five' is not a number" },
	{ "pool-blocks = 5\n\npool-blocks = 6\n", ":3: pool-blocks is set twice, first in line 1" },
	{ "[memory\npool-blocks = 5\n", ":1: not a [section]" },
	{ "just words\n", ":1: not a [section]" },
	{ "[daemon]\nconfig = x\n", ":2: config cannot be set in the file itself" },
	{ "[tenants]\nred = nobody\n", ":2: tenant: red: 'nobody' is not any and not uid:N" },
	{ "naming-key-file = \"x\n", ":1: a quotation mark begins the value and none ends it" },
	{ "naming-key-file = \"\n", ":1: a quotation mark begins the value and none ends it" },
	{ "naming-key-file+ = x\n", ":1: naming-key-file+ goes on with a value that does not" },
	{ "naming-key-file = x\npool-blocks+ = 5\n", ":2: pool-blocks+ goes on with a value that" },
	{ "naming-key-file = x\n[tenants]\na = any\n[daemon]\nnaming-key-file+ = y\n",
	  ":5: naming-key-file+ goes on" },
	{ "pool-blocks = 5\npool-blocks+ = x\nmax-keys = 64\n",
	  ":1: pool-blocks: '5x' is not a number" },
	{ "pool-blocks = five\njust words\n", ":1: pool-blocks: 'five' is not a number" },
	{ "[memory]\n  pool-blocks = 5\n  pool-block = 5\n", ":3: no such key: pool-block" },
	{ "socket = "
	  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n",
	  ":1: longer than" },
};

START_TEST(bad_configuration_files)
{
	struct prefixd_options *o = NULL;
	char flag[128], says[256];

	file_write(bad_files[_i].text);
	snprintf(flag, sizeof(flag), "--config=%s", file_path);
	snprintf(says, sizeof(says), "%s%s", file_path, bad_files[_i].says);
	ck_assert_int_eq(load(&o, ARGS(flag), NULL), -EINVAL);
	ck_assert_msg(strncmp(why, says, strlen(says)) == 0, "'%s' is not '%s'", why, says);
}
END_TEST

/* What a power cut leaves of a file: zeroes must not read as "all defaults, any tenant". */
START_TEST(configuration_file_with_zeroes)
{
	static const struct {
		const char *text;
		size_t len;
		const char *says;
	} files[] = {
		{ "\0\0\0", 3, ":1: has a byte 0" },
		{ "max-leases = 5\n\0\n", 17, ":2: has a byte 0" },
		{ "max-leases = 5\0\n", 16, ":1: has a byte 0" },
		{ "max-leases = 5\n[tenants]\nred = any\0", 36, ":3: has a byte 0" },
	};
	struct prefixd_options *o = NULL;
	char flag[128], says[256];

	file_write_bytes(files[_i].text, files[_i].len);
	snprintf(flag, sizeof(flag), "--config=%s", file_path);
	snprintf(says, sizeof(says), "%s%s", file_path, files[_i].says);
	ck_assert_int_eq(load(&o, ARGS(flag), NULL), -EINVAL);
	ck_assert_msg(strncmp(why, says, strlen(says)) == 0, "'%s' is not '%s'", why, says);
}
END_TEST

START_TEST(missing_configuration_file)
{
	struct prefixd_options *o = NULL;

	ck_assert_int_eq(load(&o, ARGS(S("--config=/nonexistent/x")), NULL), -EINVAL);
	ck_assert_str_eq(why, "config: cannot read /nonexistent/x: No such file or directory");
}
END_TEST

/* ---- what is printed ------------------------------------------------------------------------- */

static char *printed(const struct prefixd_options *o)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	ck_assert_ptr_nonnull(f);
	if (o)
		prefixd_options_print(o, f);
	else
		prefixd_options_help(f);
	fclose(f);
	return text;
}

/* What --print-config says, read as a file, gives the same values: the print of it is the same but
 * for where each value came from. */
static void round_trip(char **args)
{
	struct prefixd_options *a = NULL, *b = NULL;
	char flag[128], *first;

	ck_assert_msg(load(&a, args, NULL) == 0, "%s", why);
	first = printed(a);
	file_write(first);
	snprintf(flag, sizeof(flag), "--config=%s", file_path);
	ck_assert_msg(load(&b, ARGS(flag), NULL) == 0, "%s", why);
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++)
		if (i != PREFIXD_OPTION_config && i != PREFIXD_OPTION_tenant)
			ck_assert_str_eq(a->values[i].text, b->values[i].text);
	ck_assert_uint_eq(b->n_tenants, a->n_tenants);
	ck_assert_mem_eq(a->tenants, b->tenants, sizeof(a->tenants));
	free(first);
	prefixd_options_free(a);
	prefixd_options_free(b);
	file_remove();
}

START_TEST(print_config_round_trip)
{
	round_trip(ARGS(S("--socket=/s/x.sock"), S("--pool-blocks=123"), S("--pool-bytes=8GiB"),
			S("--op-id-age=90s"), S("--tenant=a=uid:1,uid:2"), S("--tenant=b=any"),
			S("--socket-mode=0600")));
}
END_TEST

/* Blanks at the ends of a value, quotation marks, and lengths around what a line holds. */
START_TEST(print_config_keeps_every_byte)
{
	static const char *const texts[] = { " x",      "x ",  "  ",    "\tx\v", "\"x\"",
					     "\"x",     "x\"", "\" \"", "\"\"",  "\"",
					     "a = \"b", "#x",  "[x]",   "x+",    ":x" };
	char flag[4200];

	for (size_t i = 0; i < radix_array_size(texts); i++) {
		snprintf(flag, sizeof(flag), "--naming-key-file=%s", texts[i]);
		round_trip(ARGS(flag));
	}
	for (size_t n = 100; n <= 4095; n = n < 260 ? n + 1 : n * 4 / 3) {
		int at = snprintf(flag, sizeof(flag), "--naming-key-file=");

		for (size_t k = 0; k < n; k++)
			flag[at++] = " \"x"[k % 7 < 2 ? k % 7 : 2];
		flag[at] = '\0';
		round_trip(ARGS(flag));
	}
	round_trip(ARGS(S("--tenant=a-name-of-sixty-three-bytes-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			  "=uid:4294967294,uid:4294967293,uid:4294967292,uid:4294967291,"
			  "uid:4294967290,uid:4294967289,uid:4294967288,uid:4294967287,"
			  "uid:4294967286,uid:4294967285,uid:4294967284,uid:4294967283,"
			  "uid:4294967282,uid:4294967281,uid:4294967280,uid:4294967279"),
			S("--tenant=b=any")));
}
END_TEST

/* The same written by hand; and a comment, which may be as long as it likes. */
START_TEST(values_in_parts)
{
	struct prefixd_options *o = NULL;
	char flag[128], text[1024];
	size_t n;

	n = (size_t)snprintf(text, sizeof(text), "  # %0500d\n", 7);
	snprintf(text + n, sizeof(text) - n,
		 "naming-key-file = \"/a b \"\nnaming-key-file+ = /c\n"
		 "naming-key-file+ = \" d\"\npool-blocks = 5\n");
	file_write(text);
	snprintf(flag, sizeof(flag), "--config=%s", file_path);
	ck_assert_msg(load(&o, ARGS(flag), NULL) == 0, "%s", why);
	ck_assert_str_eq(o->values[PREFIXD_OPTION_naming_key_file].text, "/a b /c d");
	snprintf(text, sizeof(text), "%s:2", file_path);
	ck_assert_str_eq(o->values[PREFIXD_OPTION_naming_key_file].where, text);
	ck_assert_uint_eq(o->pool_blocks, 5);
	prefixd_options_free(o);
}
END_TEST

START_TEST(help_is_complete_and_narrow)
{
	char *text = printed(NULL);

	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		char flag[64];

		snprintf(flag, sizeof(flag), "  --%s %s\n", prefixd_options_table[i].name,
			 prefixd_options_table[i].hint);
		ck_assert_msg(strstr(text, flag), "--help does not have %s", flag);
	}
	for (char *line = text; *line;) {
		size_t n = strcspn(line, "\n");

		ck_assert_msg(n <= 80, "%zu columns: %.*s", n, (int)n, line);
		line += n + (line[n] == '\n');
	}
	free(text);
}
END_TEST

START_TEST(table_is_sound)
{
	for (size_t i = 0; i < PREFIXD_N_OPTIONS; i++) {
		const struct prefixd_option *opt = &prefixd_options_table[i];

		ck_assert_ptr_eq(prefixd_option_find(opt->name), opt); /* no name twice */
		ck_assert_uint_eq(strspn(opt->name, "abcdefghijklmnopqrstuvwxyz-"),
				  strlen(opt->name));
		/* Sections are contiguous, or --help and --print-config would repeat them. */
		for (size_t k = 0; k + 1 < i; k++)
			if (strcmp(prefixd_options_table[k].section, opt->section) == 0)
				ck_assert_str_eq(prefixd_options_table[i - 1].section,
						 opt->section);
	}
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("options");
	TCase *tc = tcase_create("options");

	tcase_add_checked_fixture(tc, NULL, file_remove);
	tcase_add_loop_test(tc, good_values, 0, (int)radix_array_size(good));
	tcase_add_loop_test(tc, bad_values, 0, (int)radix_array_size(bad));
	tcase_add_test(tc, defaults_are_valid);
	tcase_add_test(tc, default_socket_follows_the_user);
	tcase_add_test(tc, precedence);
	tcase_add_test(tc, config_by_environment);
	tcase_add_test(tc, overridden_values_are_checked_too);
	tcase_add_test(tc, tenants_from_flags_and_file);
	tcase_add_test(tc, long_tenants_are_not_cut);
	tcase_add_test(tc, auto_below_the_pools);
	tcase_add_test(tc, commands);
	tcase_add_test(tc, strange_environment_is_named_not_refused);
	tcase_add_loop_test(tc, bad_flags, 0, (int)radix_array_size(bad_args));
	tcase_add_loop_test(tc, bad_configuration_files, 0, (int)radix_array_size(bad_files));
	tcase_add_loop_test(tc, configuration_file_with_zeroes, 0, 4);
	tcase_add_test(tc, missing_configuration_file);
	tcase_add_test(tc, print_config_round_trip);
	tcase_add_test(tc, print_config_keeps_every_byte);
	tcase_add_test(tc, values_in_parts);
	tcase_add_test(tc, help_is_complete_and_narrow);
	tcase_add_test(tc, table_is_sound);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	return test_run(suite());
}
