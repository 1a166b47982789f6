/*
 * options.h - what the command line says.
 *
 * One table has every option with its bounds, default and help.  What cannot be right is refused
 * with the reason, never corrected silently.
 */
#ifndef LLAMA_OPTIONS_H
#define LLAMA_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
	const char *model, *model_name, *lora, *libraries;
	const char *listen;
	const char *type_k, *type_v;
	const char *socket, *tenant, *salt;
	double lora_scale;
	uint64_t slots, queue, ctx, threads, chunk, block_tokens;
	uint64_t cache_deadline, cache_load, cache_wait; /* ms */
	uint64_t connections, max_body;                  /* bytes */
	bool help, version;
};

/*
 * Fills *ret from the arguments and checks it; strings point into argv.  0; -EINVAL: it said on
 * standard error what is wrong.
 */
int options_parse(struct options *ret, int argc, char **argv);
void options_print_help(void);

#endif
