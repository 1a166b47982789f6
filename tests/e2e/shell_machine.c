/*
 * shell_machine.c - the real binary and its machine: memory that is bounded, limits that are too
 * small, folders that are full, settings that are wrong, pools that take their time.
 *
 * With an argument only the test case of that name runs.
 */
#include "tests/e2e/http_client.h"
#include "tests/e2e/shell_world.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTRUMENTED true
#else
#define INSTRUMENTED false
#endif

/* It must refuse with exit status 1 and say all of these (ends with NULL). */
static void refuses(const char *const args[], const char *const says[])
{
	char *log;

	ck_assert_int_eq(e2e_daemon_start(&d, args), 1);
	log = e2e_daemon_log(&d);
	for (; *says; says++)
		ck_assert_msg(strstr(log, *says), "no '%s' in: %s", *says, log);
	free(log);
}
#define ARGS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* ---- pools that take their time -------------------------------------------------------------- */

/* Sends an OPEN without waiting for its answer. */
static void open_send(struct raw *r, uint64_t block_bytes)
{
	const struct proto_open_req m = { .key_mode = PROTO_KEYS_TOKENS,
					  .flags = PROTO_OPEN_OPAQUE,
					  .model = { .p = "big", .n = 3 },
					  .revision = { .p = "r1", .n = 2 },
					  .dtype = { .p = "float16", .n = 7 },
					  .layers = 1,
					  .kv_heads = 1,
					  .head_dim = 64,
					  .block_tokens = BLOCK,
					  .block_bytes = block_bytes,
					  .layout = { .p = "opaque", .n = 6 },
					  .tp_size = 1,
					  .engine = { .p = "raw", .n = 3 } };
	uint8_t body[1024], frame[1200];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_open_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_write(r, frame, raw_frame(r, frame, PROTO_OP_OPEN, body, w.len)));
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* While the memory of a large pool is made, others are served; the OPEN is answered after it. */
START_TEST(others_are_served_while_a_pool_is_made)
{
	struct proto_open_rep o;
	struct raw a, b;
	unsigned n = 0;

	START("--pool-bytes", "512MiB", "--host-bytes", "512MiB");
	raw_connect(&a, d.socket);
	raw_hello(&a);
	raw_connect(&b, d.socket);
	raw_hello(&b);
	open_send(&a, 4096);
	for (; !readable(a.fd); n++)
		ck_assert(raw_call(&b, PROTO_OP_PING, NULL, 0));
	ck_assert_uint_ge(n, 100);
	ck_assert(raw_read(&a));
	ck_assert_uint_eq(a.h.status, PROTO_STATUS_OK);
	ck_assert_uint_eq(a.n_fds, 2);
	o = raw_open(&b, "big", 4096); /* there it is */
	ck_assert_uint_eq(o.n_slots, 131072);
	store(&b, o.ns, 1, 8);
	expect_clean();
	raw_close(&a);
	raw_close(&b);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* Told to stop while it is made: nobody waits for it. */
START_TEST(stopped_while_a_pool_is_made)
{
	struct raw a;

	START("--pool-bytes", "256MiB");
	raw_connect(&a, d.socket);
	raw_hello(&a);
	open_send(&a, 4096);
	raw_close(&a);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* ---- T45: what the tiers take ---------------------------------------------------------------- */

static json_int_t status_number(const char *object, const char *name)
{
	json_t *j = admin("{\"op\":\"status\"}");
	json_int_t n = number(json_object_get(j, object), name);

	json_decref(j);
	return n;
}

/* VmHWM: the most that was ever resident, in bytes. */
static uint64_t resident_peak(void)
{
	char path[64], line[256];
	uint64_t kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)d.pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, "VmHWM:", 6) == 0)
			kib = strtoull(line + 6, NULL, 10);
	fclose(f);
	ck_assert_uint_gt(kib, 0);
	return kib * 1024;
}

/* A lease that fills what it is granted of n blocks; how many it was. */
static uint32_t fill(struct raw *r, uint32_t ns, uint32_t first, uint32_t n)
{
	const struct proto_match_rep rep = match(r, ns, first, n);
	struct proto_reserve_req reserve = { .lease = rep.lease, .n = n };
	struct proto_commit_req commit = { .lease = rep.lease };
	struct proto_reserve_rep got;
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	uint64_t lease = rep.lease;
	const char *bad;

	proto_reserve_req_encode(&w, &reserve);
	ck_assert(raw_call(r, PROTO_OP_RESERVE, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	ck_assert_int_eq(proto_reserve_rep_decode(r->body, r->h.len, &got, &bad), 0);
	commit.n = got.n;
	w = (struct proto_writer){ .p = body, .cap = sizeof(body) };
	proto_commit_req_encode(&w, &commit);
	ck_assert(raw_call(r, PROTO_OP_COMMIT, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	release(r, lease);
	return commit.n;
}

/*
 * 1 GiB for pool and host tier, ten times as much stored: all that is resident stays below 1.05
 * GiB, the index with its keys, sessions and the program included.
 */
START_TEST(T45_budget_holds_under_overload)
{
	const uint64_t budget = 1024ull << 20;
	const uint32_t n_slots = 16384, prompt = 64;
	struct proto_open_rep o;
	uint32_t stored = 0, n_host;
	const json_t *down;
	uint64_t peak;
	struct raw r;
	json_t *j;

	START("--pool-bytes", "256MiB", "--host-bytes", "768MiB", "--reserve-wait", "60s");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 65536);
	n_host = (uint32_t)status_number("host", "n_slots");
	ck_assert_uint_eq(o.n_slots, 4096);
	ck_assert_uint_le(n_host, 12288);
	ck_assert_uint_gt(n_host, 12000); /* the index takes little beside 64 KiB */
	for (uint32_t i = 0; stored < 10 * n_slots; i++) {
		stored += fill(&r, o.ns, i * prompt * BLOCK, prompt);
		ck_assert_uint_lt(i, 20 * n_slots / prompt);
	}
	j = admin("{\"op\":\"status\"}");
	down = json_object_get(json_object_get(j, "demoted_blocks"), "device");
	ck_assert_int_gt(number(down, "host"), 8 * n_slots);
	json_decref(j);
	expect_clean();
	peak = resident_peak();
	if (!INSTRUMENTED)
		ck_assert_msg(peak <= budget + budget / 20, "resident: %llu of %llu bytes",
			      (unsigned long long)peak, (unsigned long long)budget);
	raw_close(&r);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* The next size of block finds the limits used up: told so, by names and sizes. */
START_TEST(T45_the_next_pool_is_refused)
{
	const struct proto_open_req m = { .key_mode = PROTO_KEYS_TOKENS,
					  .flags = PROTO_OPEN_OPAQUE,
					  .model = { .p = "n", .n = 1 },
					  .revision = { .p = "r1", .n = 2 },
					  .dtype = { .p = "float16", .n = 7 },
					  .layers = 1,
					  .kv_heads = 1,
					  .head_dim = 64,
					  .block_tokens = BLOCK,
					  .block_bytes = 8192,
					  .layout = { .p = "opaque", .n = 6 },
					  .tp_size = 1,
					  .engine = { .p = "raw", .n = 3 } };
	uint8_t body[1024];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	struct proto_error e;
	const char *bad;
	struct raw r;

	START("--pool-blocks", "64", "--host-blocks", "256", "--host-bytes", "2MiB");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	(void)raw_open(&r, "m", 4096);
	proto_open_req_encode(&w, &m);
	ck_assert(raw_call(&r, PROTO_OP_OPEN, body, w.len));
	ck_assert_uint_eq(r.h.status, PROTO_STATUS_NO_BUDGET);
	ck_assert_int_eq(proto_error_decode(r.body, r.h.len, &e, &bad), 0);
	ck_assert_msg(memmem(e.text.p, e.text.n, "raise host-bytes or lower host-blocks", 37),
		      "%.*s", (int)e.text.n, (const char *)e.text.p);
	raw_close(&r);
}
END_TEST

/* ---- F28, T45: what is missing is said at the start ------------------------------------------ */

static void limit_set(__rlimit_resource_t what, uint64_t bytes)
{
	const struct rlimit rl = { bytes, bytes };

	ck_assert_int_eq(setrlimit(what, &rl), 0);
}

START_TEST(F28_address_space_too_small)
{
	/* A sanitizer's own mappings would not fit. */
	if (INSTRUMENTED)
		return;
	limit_set(RLIMIT_AS, 768ull << 20);
	refuses(ARGS("--pool-bytes", "512MiB", "--host-bytes", "512MiB"),
		ARGS("the limit of address space is 768.0 MiB (ulimit -v, RLIMIT_AS), but 1.0 GiB "
		     "are asked for: pools 512.0 MiB, host tier 512.0 MiB",
		     "lower pool-bytes or host-bytes"));
}
END_TEST

START_TEST(F28_more_than_the_machine_has)
{
	refuses(ARGS("--pool-bytes", "900TiB"),
		ARGS("but 900.0 TiB are asked for: pools 900.0 TiB, host tier 0 B",
		     "lower pool-bytes or host-bytes"));
}
END_TEST

START_TEST(F28_locked_memory_too_small)
{
	(void)prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0); /* root alone has it to lose */
	limit_set(RLIMIT_MEMLOCK, 64 << 10);
	refuses(ARGS("--pool-bytes", "8MiB", "--lock-memory", "yes"),
		ARGS("lock-memory: the limit of locked memory is 64.0 KiB (ulimit -l, "
		     "RLIMIT_MEMLOCK), but pools (8.0 MiB) and host tier (0 B) are 8.0 MiB",
		     "LimitMEMLOCK=infinity", "lock-memory=no"));
}
END_TEST

/* Only a worker's blocks tell how much it is: then the OPEN is refused, and the daemon goes on. */
START_TEST(F28_locked_memory_too_small_for_a_pool)
{
	struct proto_open_rep o;
	struct raw r;

	if (INSTRUMENTED) /* a sanitizer ignores mlock() */
		return;
	(void)prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
	limit_set(RLIMIT_MEMLOCK, 1 << 20);
	START("--pool-blocks", "64", "--host-blocks", "64", "--lock-memory", "yes");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	open_send(&r, 65536);
	ck_assert(raw_read(&r));
	ck_assert_uint_eq(r.h.status, PROTO_STATUS_NO_BUDGET);
	ck_assert(memmem(r.body, r.h.len, "raise the limit (ulimit -l", 26));
	o = raw_open(&r, "small", 4096); /* 512 KiB */
	store(&r, o.ns, 1, 4);
	expect_clean();
	raw_close(&r);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* A mount of its own over d.dir; false: this machine lets nobody do that. */
static bool mount_small(const char *options)
{
	if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		return false;
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("small", d.dir, "tmpfs", 0, options) == 0;
}

START_TEST(F28_folder_too_small)
{
	if (!mount_small("size=32k,mode=0700"))
		return;
	refuses(ARGS("--pool-blocks", "8"),
		ARGS("the file system of ", " free, and key and epochs need 64.0 KiB",
		     "set admin-socket and naming-key-file"));
}
END_TEST

START_TEST(F28_folder_missing)
{
	char path[128];
	char *log;

	snprintf(path, sizeof(path), "%s/none/a.sock", d.dir);
	ck_assert_int_eq(e2e_daemon_start(&d, ARGS("--admin-socket", path)), 1);
	log = e2e_daemon_log(&d);
	ck_assert_msg(strstr(log, "is not there or may not be written by this user") &&
			      strstr(log, "RuntimeDirectory=prefixd"),
		      "%s", log);
	free(log);
}
END_TEST

/* ---- F31: a reload with anything wrong keeps what was ---------------------------------------- */

static char conf[128];

static void conf_write(const void *text, size_t len)
{
	int fd = open(conf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, len), (ssize_t)len);
	close(fd);
}

/* Sends SIGHUP and waits until the metric says how it went. */
static void hangup(int well)
{
	unsigned long end = e2e_now_ms() + 10000;

	ck_assert_int_eq(kill(d.pid, SIGHUP), 0);
	while (http_value("prefixd_config_last_reload_successful") != well) {
		ck_assert_msg(e2e_now_ms() < end, "the reload did not go %s",
			      well ? "well" : "wrong");
		e2e_sleep_ms(5);
	}
}

static void log_says(const char *what)
{
	char *log = e2e_daemon_log(&d);

	ck_assert_msg(strstr(log, what), "no '%s' in: %s", what, log);
	free(log);
}

/* The option's value in force, compared. */
static void in_force(const char *name, const char *value)
{
	json_t *j = admin("{\"op\":\"config\"}"), *list = json_object_get(j, "options"), *one;
	size_t i;

	json_array_foreach(list, i, one)
	{
		if (strcmp(json_string_value(json_object_get(one, "name")), name) == 0) {
			ck_assert_str_eq(json_string_value(json_object_get(one, "value")), value);
			json_decref(j);
			return;
		}
	}
	ck_abort_msg("no option %s", name);
}

#define SAMPLE(text)                   \
	{                              \
		text, sizeof(text) - 1 \
	}

static const struct {
	const char *text;
	size_t len;
} samples[] = {
	SAMPLE("[limits]\nmax-leases = ten\n"),
	SAMPLE("[limits]\nmax-leases = 0\n"),
	SAMPLE("[limits]\nmax-leases = 20\nmax-leases = 30\n"),
	SAMPLE("[limits]\nmax-lease = 20\n"),
	SAMPLE("[memory]\nmax-leases = 20\n"),
	SAMPLE("[limits\nmax-leases = 20\n"),
	SAMPLE("max-leases\n"),
	SAMPLE("max-leases = 20\0\n"),
	SAMPLE("\0\0\0\0\0\0\0\0"),
	SAMPLE("max-leases = 20\n[tenants]\nred = nobody\n"),
	SAMPLE("max-leases = 20\nconfig = other\n"),
	SAMPLE("max-leases = 20\nreserve-wait = 5\n"),
	SAMPLE("max-leases = 20\nredis-ttl = 5s\n"),
	SAMPLE("max-leases = 20\nredis = http://x\n"),
	SAMPLE("max-leases = 20\nwatermark = 10:5\n"),
	SAMPLE("max-leases = 20\nwrite = through\n"),
	SAMPLE("max-leases = 20\nhost-bytes = 1GB\n"),
	SAMPLE("max-leases = 20\n\xff\xfe\n"),
};

START_TEST(F31_bad_reloads_change_nothing)
{
	static const char good[] = "[limits]\nmax-leases = 10\n[tenants]\nred = any\n";
	char address[160];
	struct raw r;

	snprintf(conf, sizeof(conf), "%s/conf", d.dir);
	snprintf(http_path, sizeof(http_path), "%s/http.sock", d.dir);
	snprintf(address, sizeof(address), "unix://%s", http_path);
	conf_write(good, strlen(good));
	START("--config", conf, "--http", address, "--pool-blocks", "8");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	ck_assert(http_value("prefixd_config_last_reload_successful") == 1);
	for (size_t i = 0; i < radix_array_size(samples); i++) {
		conf_write(samples[i].text, samples[i].len);
		hangup(0);
		in_force("max-leases", "10");
		in_force("watermark", "auto");
		ck_assert(raw_call(&r, PROTO_OP_PING, NULL, 0));
		if (i == 0) /* the log does not repeat itself for ever */
			log_says("reload refused, the old settings stay: ");
		conf_write(good, strlen(good));
		hangup(1);
	}
	ck_assert_int_eq(unlink(conf), 0); /* and a file that is not there */
	hangup(0);
	in_force("max-leases", "10");
	ck_assert_int_eq(mkdir(conf, 0700), 0); /* or is none */
	ck_assert_int_eq(kill(d.pid, SIGHUP), 0);
	in_force("max-leases", "10");
	ck_assert_int_eq(rmdir(conf), 0);
	conf_write("max-leases = 30\n", 16);
	hangup(1);
	in_force("max-leases", "30");
	raw_close(&r);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* ---- epochs outlive the daemon --------------------------------------------------------------- */

static struct proto_id root_of(struct raw *r, uint32_t ns, uint32_t *ret_device)
{
	const struct proto_match_rep rep = match(r, ns, 1, 4);
	struct proto_id root = rep.root;

	*ret_device = rep.n_device;
	release(r, rep.lease);
	return root;
}

static uint32_t open_again(struct raw *r)
{
	raw_connect(r, d.socket);
	raw_hello(r);
	return raw_open(r, "m", 4096).ns;
}

START_TEST(an_invalidated_namespace_stays_so)
{
	struct proto_id first, second, third;
	char path[128], request[64];
	uint32_t ns, n;
	struct stat st;
	struct raw r;
	FILE *f;

	START("--pool-blocks", "64");
	ns = open_again(&r);
	store(&r, ns, 1, 4);
	first = root_of(&r, ns, &n);
	ck_assert_uint_eq(n, 4);
	snprintf(request, sizeof(request), "{\"op\":\"invalidate\",\"ns\":%u}", ns);
	ck_assert_int_eq(admin_number(request, "invalidated"), 4);
	/* Killed as soon as it has answered: what it said is on the disk. */
	(void)e2e_daemon_stop(&d, SIGKILL);
	raw_close(&r);
	snprintf(path, sizeof(path), "%s/admin.epochs", d.dir);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);

	/* A Redis that is not there: what matters is what it may have when it comes. */
	START("--pool-blocks", "64", "--redis", "tcp:127.0.0.1:1");
	ns = open_again(&r);
	second = root_of(&r, ns, &n);
	ck_assert_mem_ne(&first, &second, sizeof(first));
	store(&r, ns, 1, 4);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	raw_close(&r);
	/* The epoch is the namespace's, not the process'. */
	START("--pool-blocks", "64", "--redis", "tcp:127.0.0.1:1");
	ns = open_again(&r);
	third = root_of(&r, ns, &n);
	ck_assert_mem_eq(&second, &third, sizeof(second));
	raw_close(&r);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);

	f = fopen(path, "ae"); /* a damaged file is no empty one */
	ck_assert_ptr_nonnull(f);
	fputs("more\n", f);
	ck_assert_int_eq(fclose(f), 0);
	refuses(ARGS("--pool-blocks", "64"), ARGS("admin.epochs: is damaged"));
}
END_TEST

/* ---- main ------------------------------------------------------------------------------------ */

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "pools",
		  TESTS(others_are_served_while_a_pool_is_made, stopped_while_a_pool_is_made) },
		{ "T45", TESTS(T45_budget_holds_under_overload, T45_the_next_pool_is_refused) },
		{ "F28", TESTS(F28_address_space_too_small, F28_more_than_the_machine_has,
			       F28_locked_memory_too_small, F28_locked_memory_too_small_for_a_pool,
			       F28_folder_too_small, F28_folder_missing) },
		{ "F31", TESTS(F31_bad_reloads_change_nothing) },
		{ "epochs", TESTS(an_invalidated_namespace_stays_so) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
