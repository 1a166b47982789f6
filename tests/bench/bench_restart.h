/*
 * bench_restart.h - what the files of the restart benchmark share.
 *
 *     bench_restart.c          options, rounds, the report
 *     bench_restart_book.c     prompts, what their blocks must hold, and who was told what
 *     bench_restart_worker.c   a process of the load
 *     bench_restart_daemon.c   the daemon: started, killed, its log
 *
 * Everything about a prompt follows from its number: its tokens, and the bytes of each block of its
 * path.  Prompts of one family have their first blocks in common.  So a checker needs no copy of
 * what was stored, only how far: for each prompt and each family's stem the number of leading
 * blocks that a COMMIT was sent for, and the number that a COMMIT was answered for.  They lie in
 * memory that all processes share.  After a kill a path must be there at least as far as it was
 * answered for, and no further than it was sent for.
 */
#pragma once

#include "clients/c/prefixd.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	RESTART_TOKENS = 16, /* per block: keys of 64 bytes */
	RESTART_FAMILY = 32, /* prompts with a stem in common */
	RESTART_MAX_PATH = 8192,
	RESTART_MAX_BLOCK = 4096, /* bytes */
	RESTART_MAX_WORKERS = 32
};

struct restart_config {
	uint64_t n_blocks; /* stored before the first kill, at least */
	uint32_t n_runs, n_workers;
	uint32_t path, long_path; /* blocks of a prompt, and of prompt 0 */
	uint32_t block_bytes;
	uint64_t budget; /* new blocks of each round */
	double max_s;    /* from the kill to the first match */
	uint64_t seed;
	bool keep; /* false: the memory ends with the daemon, to see that this is noticed */
	const char *daemon; /* the program */
};

struct restart_progress {
	_Atomic uint32_t sent, answered; /* leading blocks */
};

/* What a worker counts; written by it alone. */
struct restart_tally {
	_Atomic uint64_t requests, compared, committed, busy, lives, held_over;
	_Atomic uint64_t wrong, unexpected;
};

/* Shared by all processes. */
struct restart_book {
	struct restart_config config;
	uint32_t stem;
	uint32_t n_base, n_max; /* prompts: of the first set, and at most */
	_Atomic uint32_t n_known;
	_Atomic int64_t budget; /* blocks that may still be new in this round */
	_Atomic bool pause, stop;
	_Atomic uint32_t n_paused;
	struct restart_tally tallies[RESTART_MAX_WORKERS];
	struct restart_progress progress[]; /* n_max prompts, then their families' stems */
};

/* ---- bench_restart_book.c -------------------------------------------------------------------- */

/* Memory shared with children; NULL: there is none. */
struct restart_book *restart_book_new(const struct restart_config *config);
uint32_t restart_path_len(const struct restart_book *b, uint32_t prompt);
/* Blocks that n prompts of the first set come to. */
uint64_t restart_n_blocks(const struct restart_book *b, uint32_t n);
void restart_tokens(const struct restart_book *b, uint32_t prompt, uint32_t *ret_tokens);
void restart_fill(const struct restart_book *b, uint32_t prompt, uint32_t i, void *ret_bytes);
bool restart_right(const struct restart_book *b, uint32_t prompt, uint32_t i, const void *bytes);
/* A COMMIT that ends at block n goes out; it was answered. */
void restart_sent(struct restart_book *b, uint32_t prompt, uint32_t n);
void restart_answered(struct restart_book *b, uint32_t prompt, uint32_t n);
/* Blocks that must be there, and that may. */
uint32_t restart_at_least(struct restart_book *b, uint32_t prompt);
uint32_t restart_at_most(struct restart_book *b, uint32_t prompt);

/* ---- bench_restart_worker.c ------------------------------------------------------------------ */

/* A connection with the namespace of this benchmark; NULL with a line on stderr. */
pfx_client *restart_connect(const struct restart_book *b, const char *socket,
			    pfx_namespace **ret_ns);
/* What a kill may answer with: the caller goes on with the next daemon. */
bool restart_lost(int status);
/* Computes what is missing of a prompt and stores it.  Return: a status. */
int restart_store(struct restart_book *b, pfx_namespace *ns, uint32_t prompt);
/* The life of worker `me`: until book->stop, over any number of daemons. */
void restart_worker(struct restart_book *b, const char *socket, uint32_t me);

/* ---- bench_restart_daemon.c ------------------------------------------------------------------ */

struct restart_daemon {
	pid_t pid; /* 0: not running */
	char dir[64];
	char socket[96], admin[96], log[96];
	off_t log_from; /* where the last start's lines begin */
};

/* A fresh directory.  Return: 0, -errno. */
int restart_daemon_init(struct restart_daemon *d);
/* Starts it and does not wait.  Return: 0, -errno. */
int restart_daemon_start(struct restart_daemon *d, const struct restart_config *config,
			 uint64_t pool_blocks, char *const more[]);
/* Return: true when it runs; else its status was printed. */
bool restart_daemon_runs(struct restart_daemon *d);
/* CPU time that it took since its start; 0 when it does not run. */
uint64_t restart_daemon_cpu_ns(const struct restart_daemon *d);
/* A signal, and waits for the end: ten seconds, then SIGKILL.  Return: as waitpid's status. */
int restart_daemon_end(struct restart_daemon *d, int signal);
/* The line of the last start's log that has `text` in it; NULL: none.  For free(). */
char *restart_daemon_said(const struct restart_daemon *d, const char *text);
/* Ends it, makes its holder give the memory up, and removes the directory, unless `keep_dir`. */
void restart_daemon_free(struct restart_daemon *d, bool keep_dir);

uint64_t restart_now_ns(void);
void restart_nap_us(unsigned us);
