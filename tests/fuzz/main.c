/*
 * main.c - runs a fuzz target over files, for compilers without libFuzzer and as an ordinary test.
 *
 *     fuzz_X_replay FILE|DIRECTORY...
 *
 * Every file goes in whole, and then cut at every length up to its first KiB: a corpus of whole
 * frames is also one of all their beginnings.  No file at all is a failure.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In memory of exactly that size, so that ASan sees a read behind its end. */
static void run_exact(const uint8_t *p, size_t n)
{
	uint8_t *exact = malloc(n ? n : 1);

	if (!exact)
		abort();
	memcpy(exact, p, n);
	(void)LLVMFuzzerTestOneInput(exact, n); /* always 0; failures abort */
	free(exact);
}

static int run_file(const char *path)
{
	static uint8_t bytes[FILE_MAX];
	FILE *f = fopen(path, "rb");
	size_t n;

	if (!f) {
		perror(path);
		return -1;
	}
	n = fread(bytes, 1, sizeof(bytes), f);
	(void)fclose(f); /* read only */
	run_exact(bytes, n);
	for (size_t cut = 0; cut < n && cut < 1024; cut++)
		run_exact(bytes, cut);
	return 1;
}

/* Return: files that ran, or -1. */
static int run_path(const char *path)
{
	char name[4096];
	struct dirent *entry;
	struct stat st;
	int n = 0;
	DIR *d;

	if (stat(path, &st)) {
		perror(path);
		return -1;
	}
	if (!S_ISDIR(st.st_mode))
		return run_file(path);
	d = opendir(path);
	if (!d) {
		perror(path);
		return -1;
	}
	while ((entry = readdir(d))) {
		int len = snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);

		if (entry->d_name[0] == '.')
			continue;
		if (len < 0 || (size_t)len >= sizeof(name) || run_file(name) < 0) {
			n = -1;
			break;
		}
		n++;
	}
	closedir(d);
	return n;
}

int main(int argc, char **argv)
{
	int total = 0;

	for (int i = 1; i < argc; i++) {
		int n = run_path(argv[i]);

		if (n < 0)
			return 1;
		total += n;
	}
	fprintf(stderr, "%d files\n", total);
	return total ? 0 : 1;
}
