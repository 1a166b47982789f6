/*
 * main.c - one part of the device check, in a process of its own: device_check.sh runs them all.
 *
 *     device_check [--quick] PART      lines of its table; 0: none of them failed
 *     device_check --list              the parts, one per line
 */
#include "tests/gpu/device/kit.h"

#include <stdio.h>
#include <unistd.h>

static const struct {
	const char *name, *text;
	void (*run)(void);
} parts[] = {
#define X(name, text) { #name, text, part_##name },
	PARTS(X)
#undef X
};

int main(int argc, char **argv)
{
	int at = 1;

	if (argc > at && strcmp(argv[at], "--quick") == 0) {
		quick = true;
		at++;
	}
	for (size_t i = 0; argc == at + 1 && i < radix_array_size(parts); i++) {
		if (strcmp(argv[at], "--list") == 0)
			printf("%s\n", parts[i].name);
		if (strcmp(argv[at], parts[i].name) != 0)
			continue;
		printf("%s: %s\n", parts[i].name, parts[i].text);
		parts[i].run();
		(void)fflush(stdout);
		_exit(n_failed ? 1 : 0); /* what the driver would do at an exit is not looked at */
	}
	if (argc == at + 1 && strcmp(argv[at], "--list") == 0)
		return 0;
	fprintf(stderr, "usage: device_check [--quick] PART, or device_check --list\n");
	return 2;
}
