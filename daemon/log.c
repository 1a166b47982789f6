/*
 * log.c - see log.h.
 *
 * On a terminal a line is "prefixd: warning: text"; elsewhere it begins with the syslog priority
 * that journald reads ("<4>text").  No time stamps: journald and every container runtime add their
 * own, and a terminal's reader is watching.
 */
#include "daemon/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_LEN 1024
#define N_TEXT_SITES 64

static const struct {
	const char *name;
	const char *tty; /* how a terminal sees it */
	int syslog;
} levels[] = {
	[PREFIXD_LOG_ERROR] = { "error", "error: ", 3 },
	[PREFIXD_LOG_WARN] = { "warn", "warning: ", 4 },
	[PREFIXD_LOG_INFO] = { "info", "", 6 },
	[PREFIXD_LOG_DEBUG] = { "debug", "debug: ", 7 },
};

static struct {
	enum prefixd_log_level level;
	struct prefixd_log_sink sink;
	uint64_t count[radix_array_size(levels)];
	uint64_t lost; /* lines that could not be written */
	uint64_t lost_told;
	struct {
		uint64_t hash;
		struct prefixd_log_site site;
	} texts[N_TEXT_SITES];
} log_state = { .level = PREFIXD_LOG_INFO };

void prefixd_log_set_sink(const struct prefixd_log_sink *sink)
{
	log_state.sink = sink ? *sink : (struct prefixd_log_sink){ 0 };
}

void prefixd_log_set_level(enum prefixd_log_level level)
{
	log_state.level = level;
}

enum prefixd_log_level prefixd_log_get_level(void)
{
	return log_state.level;
}

const char *prefixd_log_level_to_string(enum prefixd_log_level level)
{
	return (size_t)level < radix_array_size(levels) ? levels[level].name : "unknown";
}

int prefixd_log_level_parse(const char *text, enum prefixd_log_level *ret_level)
{
	for (size_t i = 0; i < radix_array_size(levels); i++)
		if (strcmp(levels[i].name, text) == 0) {
			*ret_level = (enum prefixd_log_level)i;
			return 0;
		}
	return -EINVAL;
}

uint64_t prefixd_log_count(enum prefixd_log_level level)
{
	return log_state.count[level];
}

uint64_t prefixd_log_lost(void)
{
	return log_state.lost;
}

static uint64_t log_now_ns(void)
{
	struct timespec ts;

	if (log_state.sink.now_ns)
		return log_state.sink.now_ns(log_state.sink.ctx);
	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/*
 * Whoever reads the log may have gone (EPIPE), may have no room (ENOSPC), or may just not read: a
 * pipe that is full would hold up the thread that serves all workers.  So nothing is written where
 * it cannot be written at once; what is lost is counted, and told when there is room again.
 */
static bool log_write(const char *line, size_t len)
{
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

	return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) &&
	       write(STDERR_FILENO, line, len) == (ssize_t)len;
}

static void log_write_counted(const char *line, size_t len)
{
	char told[80];
	int n;

	if (log_state.lost > log_state.lost_told) {
		n = snprintf(told, sizeof(told), "<%d>%llu lines of the log could not be written\n",
			     levels[PREFIXD_LOG_WARN].syslog,
			     (unsigned long long)(log_state.lost - log_state.lost_told));
		if (log_write(told, (size_t)n))
			log_state.lost_told = log_state.lost;
	}
	if (!log_write(line, len))
		log_state.lost++;
}

/* Puts prefix, text and newline together and hands them out in one write. */
static void log_emit(enum prefixd_log_level level, const char *text)
{
	static int is_tty = -1;
	char line[LINE_MAX_LEN + 2];
	int n;

	if (is_tty < 0)
		is_tty = isatty(STDERR_FILENO);
	if (log_state.sink.write || !is_tty)
		n = snprintf(line, LINE_MAX_LEN, "<%d>%s", levels[level].syslog, text);
	else
		n = snprintf(line, LINE_MAX_LEN, "prefixd: %s%s", levels[level].tty, text);
	if (n < 0)
		return;
	if (n >= LINE_MAX_LEN)
		n = LINE_MAX_LEN - 1;
	for (int i = 0; i < n; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[n++] = '\n';
	log_state.count[level]++;
	if (log_state.sink.write) {
		log_state.sink.write(log_state.sink.ctx, line, (size_t)n);
		return;
	}
	log_write_counted(line, (size_t)n);
}

/* Whether the site may write now; tells how many lines it lost in the window before. */
static bool log_admit(struct prefixd_log_site *site, enum prefixd_log_level level)
{
	uint64_t now = log_now_ns();

	if (!site->begun || now - site->window_ns >= PREFIXD_LOG_WINDOW_NS) {
		uint32_t lost = site->suppressed;

		*site = (struct prefixd_log_site){ .window_ns = now, .begun = true };
		if (lost > 0) {
			char text[64];

			snprintf(text, sizeof(text), "%u lines like the next were left out", lost);
			log_emit(level, text);
		}
	}
	if (site->n >= PREFIXD_LOG_BURST) {
		site->suppressed++;
		return false;
	}
	site->n++;
	return true;
}

void prefixd_log_at(struct prefixd_log_site *site, enum prefixd_log_level level, const char *format,
		    ...)
{
	char text[LINE_MAX_LEN];
	int saved_errno = errno;
	va_list ap;

	if (level > log_state.level || !log_admit(site, level)) {
		errno = saved_errno;
		return;
	}
	errno = saved_errno; /* for %m */
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	log_emit(level, text);
	errno = saved_errno;
}

/* FNV-1a over everything but digits: "session 3 ended" and "session 4 ended" are one site. */
static uint64_t log_words_hash(const char *text)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (; *text; text++) {
		if (*text >= '0' && *text <= '9')
			continue;
		h = (h ^ (unsigned char)*text) * 0x100000001b3u;
	}
	return h;
}

void prefixd_log_text(enum prefixd_log_level level, const char *text)
{
	uint64_t hash = log_words_hash(text);
	size_t i = hash % N_TEXT_SITES;

	if (log_state.texts[i].hash != hash) {
		log_state.texts[i].hash = hash;
		log_state.texts[i].site = (struct prefixd_log_site){ 0 };
	}
	prefixd_log_at(&log_state.texts[i].site, level, "%s", text);
}
