/*
 * options.h - what a replay is told: on the command line, or in a configuration file.
 *
 * One table names every option once; parsing, the configuration file and --help come from it.  The
 * command line wins over the file, whatever the order.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPLAY_MAX_WORKERS    64
#define REPLAY_MAX_CAPACITIES 16

enum replay_order {
	REPLAY_ORDER_TRACE,
	REPLAY_ORDER_CONCURRENT
};
enum replay_key_mode {
	REPLAY_KEYS_AUTO,
	REPLAY_KEYS_DIGEST,
	REPLAY_KEYS_TOKENS
};
enum replay_flight {
	REPLAY_FLIGHT_ON,
	REPLAY_FLIGHT_OFF
};
enum replay_promote {
	REPLAY_PROMOTE_ON,
	REPLAY_PROMOTE_OFF
};
enum replay_verify {
	REPLAY_VERIFY_ALL,
	REPLAY_VERIFY_NONE
};
enum replay_progress {
	REPLAY_PROGRESS_AUTO,
	REPLAY_PROGRESS_OFF
};

/* Strings belong to the options object. */
struct replay_options {
	char *config;
	char *socket;
	char *admin_socket;
	char *trace;
	char *workload;
	uint64_t seed;
	uint64_t requests;
	uint64_t limit;
	uint64_t block_tokens;
	uint64_t block_bytes;
	uint64_t workers;
	uint64_t order;
	uint64_t single_flight;
	uint64_t promote;
	uint64_t load_ms;
	uint64_t key_mode;
	uint64_t verify;
	char *model;
	char *tenant;
	uint64_t deadline_ms;
	uint64_t progress;
	char *json;
	char *hits;
	bool characteristics;
	char *capacity;
	bool help;
	bool version;

	uint64_t capacities[REPLAY_MAX_CAPACITIES]; /* of `capacity` */
	size_t n_capacities;
};

void replay_options_init(struct replay_options *options);
void replay_options_deinit(struct replay_options *options);
/* Return: 0, or -EINVAL after a message on stderr. */
int replay_options_parse(struct replay_options *options, int argc, char *const argv[]);
void replay_options_help(void);

/* Only who runs beside others can wait for them. */
static inline bool replay_single_flight(const struct replay_options *options)
{
	return options->order == REPLAY_ORDER_CONCURRENT &&
	       options->single_flight == REPLAY_FLIGHT_ON;
}
