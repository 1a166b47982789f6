/*
 * test_driver.c - what gpu_driver_load() says about what it finds.
 *
 * A process looks for libraries where LD_LIBRARY_PATH said when it began, and a driver that is
 * loaded stays: so each case is this program once more, as "test_driver load", with an environment
 * of its own.  LOOKALIKE_DIR is the folder of the look-alike driver, FAKE_DIR that of the fakes.
 */
#include "gpu/driver.h"
#include "tests/gpu/util.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

/* "STATE|SENTENCE|open or closed|batch or -", on stdout. */
static int load(void)
{
	struct gpu_driver d = { 0 };
	char why[512] = "";
	enum gpu_driver_state state = gpu_driver_load(&d, why, sizeof(why));
	void *again = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	(void)printf("%s|%s|%s|%s", gpu_driver_state_to_string(state), why,
		     again ? "open" : "closed", d.copy_batch ? "batch" : "-");
	return (state == GPU_DRIVER_OK) == (d.library != NULL) ? 0 : 3;
}

/* In a process of its own with `path` to look for libraries, and `settings` for the look-alike. */
static void load_in(const char *path, const char *settings, char *ret_text, size_t len)
{
	int ends[2], status;
	size_t used = 0;
	ssize_t n;
	pid_t pid;

	ck_assert_int_eq(pipe(ends), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		(void)setenv("LD_LIBRARY_PATH", path, 1);
		(void)setenv("LOOKALIKE", settings, 1);
		(void)dup2(ends[1], STDOUT_FILENO);
		(void)execl("/proc/self/exe", "test_driver", "load", NULL);
		_exit(127);
	}
	(void)close(ends[1]);
	while ((n = read(ends[0], ret_text + used, len - 1 - used)) > 0)
		used += (size_t)n;
	ret_text[used] = '\0';
	(void)close(ends[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(status == 0, "status %d: %s", status, ret_text);
}

static const char *folder(const char *variable)
{
	const char *dir = getenv(variable);

	ck_assert_msg(dir != NULL, "%s is not set", variable);
	return dir;
}

/* ---- the look-alike, in several states ------------------------------------------------------- */

static const struct {
	const char *settings;
	const char *expected;
} states[] = {
	{ "", "ok|GPU driver for CUDA 13.0, 1 device|open|batch" },
	{ "devices=3,version=12080", "ok|GPU driver for CUDA 12.8, 3 devices|open|batch" },
	{ "version=12040", "ok|GPU driver for CUDA 12.4, 1 device|open|-" },
	{ "stub=1",
	  "stub|stub: libcuda.so.1 is the one that programs are linked with, and no driver;"
	  " take its folder out of the library path|closed|-" },
	{ "version=11040", "too old|too old: the GPU driver is for CUDA 11.4 and has no"
			   " cuStreamWriteValue64; install a newer one|closed|-" },
	{ "devices=0", "no device|no device: the GPU driver, for CUDA 13.0, finds no GPU that this"
		       " process may use|closed|-" },
	{ "fail=init:1:100", "no device|no device: the GPU driver, for CUDA 13.0, finds no GPU that"
			     " this process may use|closed|-" },
	{ "fail=init:1:34",
	  "stub|stub: libcuda.so.1 is the one that programs are linked with, and no"
	  " driver; take its folder out of the library path|closed|-" },
	{ "fail=version:1:999",
	  "failed|failed: cuDriverGetVersion of libcuda.so.1 says 999|closed|-" },
};

START_TEST(look_alike)
{
	char text[1024];

	load_in(folder("LOOKALIKE_DIR"), states[_i].settings, text, sizeof(text));
	ck_assert_str_eq(text, states[_i].expected);
}
END_TEST

static const struct {
	const char *settings;
	const char *begins;
	const char *kept;
} failures[] = {
	{ "fail=init:1:999",
	  "failed|failed: the GPU driver, for CUDA 13.0, does not start: cuInit: CUDA_ERROR_UNKNOWN"
	  " (999): ",
	  "|closed|-" },
	{ "fail=device_count:1:999",
	  "failed|failed: the GPU driver, for CUDA 13.0, does not start: cuDeviceGetCount:"
	  " CUDA_ERROR_UNKNOWN (999): ",
	  "|open|-" }, /* cuInit went well */
	{ "fail=init:1:999+error_name:1:1+error_string:1:1",
	  "failed|failed: the GPU driver, for CUDA 13.0, does not start: cuInit: error (999): the"
	  " driver has no text for it",
	  "|closed|-" },
};

START_TEST(failing)
{
	char text[1024];
	size_t n;

	load_in(folder("LOOKALIKE_DIR"), failures[_i].settings, text, sizeof(text));
	ck_assert_msg(strncmp(text, failures[_i].begins, strlen(failures[_i].begins)) == 0, "%s",
		      text);
	n = strlen(failures[_i].kept);
	ck_assert_str_eq(text + strlen(text) - n, failures[_i].kept);
}
END_TEST

/* ---- what only has its name ------------------------------------------------------------------ */

static const struct {
	const char *library; /* NULL: a file that is no library */
	const char *expected;
} fakes[] = {
	{ "fake_other.so",
	  "failed|failed: libcuda.so.1 is no GPU driver: it has no cuDriverGetVersion|closed|-" },
	{ "fake_old.so", "too old|too old: the GPU driver is for CUDA 10.2 and has no"
			 " cuGetProcAddress; install a newer one|closed|-" },
	{ "fake_lookup.so", "no device|no device: the GPU driver, for CUDA 11.8, finds no GPU that"
			    " this process may use|closed|-" },
	{ NULL, "no library|no library: there is no GPU driver here: " },
};

START_TEST(fake)
{
	char dir[] = "/tmp/prefixd-fake-XXXXXX", target[512], name[64], text[1024];

	ck_assert_ptr_nonnull(mkdtemp(dir));
	(void)snprintf(name, sizeof(name), "%s/libcuda.so.1", dir);
	(void)snprintf(target, sizeof(target), "%s/%s", folder("FAKE_DIR"),
		       fakes[_i].library ? fakes[_i].library : "");
	ck_assert_int_eq(symlink(fakes[_i].library ? target : "/proc/self/environ", name), 0);
	load_in(dir, "", text, sizeof(text));
	(void)unlink(name);
	(void)rmdir(dir);
	if (fakes[_i].library)
		ck_assert_str_eq(text, fakes[_i].expected);
	else /* the rest is the dynamic linker's, in the user's language */
		ck_assert_msg(strncmp(text, fakes[_i].expected, strlen(fakes[_i].expected)) == 0 &&
				      strstr(text, "libcuda.so.1"),
			      "%s", text);
}
END_TEST

START_TEST(no_room_for_the_sentence)
{
	struct gpu_driver d = { 0 };
	char text[8] = "";

	/* Whatever is here: nothing is written where nothing may be. */
	(void)!gpu_driver_load(&d, NULL, 0);
	(void)!gpu_driver_load(&d, text, 4);
	ck_assert_uint_eq(strlen(text), 3);
	ck_assert_str_eq(gpu_driver_state_to_string(GPU_DRIVER_N_STATES), "unknown");
}
END_TEST

static Suite *driver(void)
{
	Suite *s = suite_create("driver");
	TCase *t = new_case();

	tcase_add_loop_test(t, look_alike, 0, radix_array_size(states));
	tcase_add_loop_test(t, failing, 0, radix_array_size(failures));
	tcase_add_loop_test(t, fake, 0, radix_array_size(fakes));
	tcase_add_test(t, no_room_for_the_sentence);
	suite_add_tcase(s, t);
	return s;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "load") == 0)
		return load();
	return run_suite(driver());
}
