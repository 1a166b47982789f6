/*
 * main.c - prefixd-llama: serve a model of llama.cpp, with prefixd for the K/V of its prompts.
 *
 * The event loop runs here, the model on the engine's thread.  It listens before the model is
 * loaded, so that /health can tell that it is coming.
 */
#include "clients/llama/api.h"
#include "clients/llama/engine.h"
#include "clients/llama/http.h"
#include "clients/llama/options.h"
#include "clients/llama/say.h"

#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRACE_SECONDS 4   /* for running requests to end after a signal */
#define FLUSH_MS      500 /* and for their last bytes to be taken */

struct program {
	struct event_base *base;
	struct event *term_ev, *int_ev, *grace_ev, *flush_ev;
	struct api *api;
	struct http *http;
	struct engine *engine;
	int flushes;
	bool stopping, failed;
};

/* ---- stopping -------------------------------------------------------------------------------- */

static void on_flush(evutil_socket_t fd, short what, void *data)
{
	static const struct timeval tick = { .tv_usec = 10000 };
	struct program *p = data;

	if (!http_is_writing(p->http) || p->flushes++ >= FLUSH_MS / 10 ||
	    event_add(p->flush_ev, &tick) < 0)
		(void)event_base_loopbreak(p->base);
}

static void on_idle(void *data)
{
	struct program *p = data;

	if (!evtimer_pending(p->flush_ev, NULL))
		on_flush(-1, 0, p);
}

static void on_grace_over(evutil_socket_t fd, short what, void *data)
{
	struct program *p = data;

	api_abort_all(p->api);
}

static void on_signal(evutil_socket_t fd, short what, void *data)
{
	static const struct timeval grace = { .tv_sec = GRACE_SECONDS };
	struct program *p = data;

	if (p->stopping) {
		api_abort_all(p->api);
		return;
	}
	p->stopping = true;
	http_stop_listening(p->http);
	if (event_add(p->grace_ev, &grace) < 0)
		api_abort_all(p->api);
	api_stop(p->api);
}

static void on_ready(void *data, const char *error)
{
	struct program *p = data;

	if (error && !p->stopping) {
		say("%s", error);
		p->failed = true;
		(void)event_base_loopbreak(p->base);
	} else if (!error) {
		printf("ready\n");
		(void)fflush(stdout);
	}
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Return: 0; -ENOMEM. */
static int events_init(struct program *p)
{
	struct event_config *config = event_config_new();

	/* One thread: no locks.  Made by hand, since events of several threads come by eventfd. */
	if (!config)
		return -ENOMEM;
	(void)event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
	p->base = event_base_new_with_config(config);
	event_config_free(config);
	if (!p->base)
		return -ENOMEM;
	p->term_ev = evsignal_new(p->base, SIGTERM, on_signal, p);
	p->int_ev = evsignal_new(p->base, SIGINT, on_signal, p);
	p->grace_ev = evtimer_new(p->base, on_grace_over, p);
	p->flush_ev = evtimer_new(p->base, on_flush, p);
	if (!p->term_ev || !p->int_ev || !p->grace_ev || !p->flush_ev ||
	    event_add(p->term_ev, NULL) < 0 || event_add(p->int_ev, NULL) < 0)
		return -ENOMEM;
	return 0;
}

/* The file's name without folder and .gguf; malloc'd. */
static char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *name = strdup(slash ? slash + 1 : path);
	size_t len = name ? strlen(name) : 0;

	if (len > 5 && strcmp(name + len - 5, ".gguf") == 0)
		name[len - 5] = '\0';
	return name;
}

static int engine_start(struct program *p, const struct options *o, const char *name)
{
	const struct engine_options options = {
		.model_path = o->model,
		.model_name = name,
		.libraries = o->libraries,
		.lora_path = o->lora,
		.lora_scale = o->lora_scale,
		.n_ctx = (uint32_t)o->ctx,
		.n_slots = (uint32_t)o->slots,
		.n_queue = (uint32_t)o->queue,
		.n_threads = (uint32_t)o->threads,
		.chunk = (uint32_t)o->chunk,
		.block_tokens = (uint32_t)o->block_tokens,
		.type_k = o->type_k,
		.type_v = o->type_v,
		.socket = o->socket,
		.tenant = o->tenant,
		.salt = o->salt,
		.cache_deadline_ms = (uint32_t)o->cache_deadline,
		.cache_load_ms = (uint32_t)o->cache_load,
		.cache_wait_ms = (uint32_t)o->cache_wait,
	};
	const struct engine_hooks hooks = { .on_ready = api_on_engine_ready, .data = p->api };
	sigset_t all, before;
	int r;

	/* Signals are the loop's: the engine's threads, and those they make, take none. */
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = engine_new(&options, &hooks, &p->engine);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r < 0)
		return r;
	api_set_engine(p->api, p->engine);
	return 0;
}

static int start(struct program *p, const struct options *o, const char *name)
{
	const struct api_options api = { .model_name = name,
					 .n_ctx = (uint32_t)o->ctx,
					 .max_body = (size_t)o->max_body,
					 .on_ready = on_ready,
					 .on_idle = on_idle,
					 .data = p };
	struct http_options http = { .listen = o->listen,
				     .connections = (uint32_t)o->connections,
				     .max_body = (size_t)o->max_body,
				     .on_request = api_on_request };
	char why[256] = "out of memory";
	int r = events_init(p);

	if (r == 0)
		r = api_new(p->base, &api, &p->api);
	http.data = p->api;
	if (r == 0)
		r = http_new(p->base, &http, &p->http, why, sizeof(why));
	if (r < 0) {
		say("%s", why);
		return r;
	}
	printf("listening on %s\n", http_where(p->http));
	(void)fflush(stdout);
	r = engine_start(p, o, name);
	if (r < 0)
		say("the engine cannot be started: %s", strerror(-r));
	return r;
}

static void stop(struct program *p)
{
	struct event *const events[] = { p->term_ev, p->int_ev, p->grace_ev, p->flush_ev };

	p->http = http_free(p->http); /* calls learn that their peers are gone */
	p->engine = engine_free(p->engine);
	p->api = api_free(p->api);
	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		if (events[i])
			event_free(events[i]);
	if (p->base)
		event_base_free(p->base);
}

/*
 * libgomp, whose threads compute, reads its settings before main() begins; so they are set for
 * another life of this process.  By itself it lets a thread spin for the others at every barrier.
 * That pays by microseconds where each has a processor of its own, and costs without bound where
 * one does not: 20 tokens took 0.21 s with waiting and 8 to 32 s with spinning, 2 threads on 2
 * processors that had other work.  Whoever sets one of the variables has the last word.
 */
static void wait_without_spinning(char **argv)
{
	if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") ||
	    setenv("OMP_WAIT_POLICY", "passive", 1) < 0)
		return;
	(void)execv("/proc/self/exe", argv); /* where it cannot be, they spin */
}

int main(int argc, char **argv)
{
	struct program program = { 0 };
	struct options options;
	char *name;
	int r;

	if (options_parse(&options, argc, argv) < 0)
		return 2;
	if (options.help) {
		options_print_help();
		return 0;
	}
	if (options.version) {
		printf("prefixd-llama %s\n", PREFIXD_LLAMA_VERSION);
		return 0;
	}
	wait_without_spinning(argv);
	(void)signal(SIGPIPE, SIG_IGN);
	/* A failed assertion of libggml starts a debugger, and hangs with it; it shall just end. */
	(void)setenv("GGML_NO_BACKTRACE", "1", 0);
	name = options.model_name ? strdup(options.model_name) : name_of(options.model);
	if (!name) {
		say("out of memory");
		return 1;
	}
	r = start(&program, &options, name);
	if (r == 0)
		(void)event_base_dispatch(program.base);
	stop(&program);
	free(name);
	libevent_global_shutdown();
	return r < 0 || program.failed ? 1 : 0;
}
