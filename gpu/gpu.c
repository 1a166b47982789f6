/*
 * gpu.c - finding a back end by its name.
 */
#include "gpu/gpu.h"

#include "gpu/gpu_internal.h"

#include <stdarg.h>
#include <stdio.h>

static void __attribute__((format(printf, 3, 4)))
say(char *why, size_t why_len, const char *fmt, ...)
{
	va_list ap;

	if (!why || why_len == 0)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(why, why_len, fmt, ap);
	va_end(ap);
}

/* "cuda" and "cuda:UUID" */
static bool names_cuda(const char *name)
{
	return strncmp(name, "cuda", 4) == 0 && (name[4] == '\0' || name[4] == ':');
}

static int opened(int r, const char *text, char *why, size_t why_len)
{
	if (r < 0)
		say(why, why_len, "%s cannot be opened: %s", text, strerrordesc_np(-r));
	else
		say(why, why_len, "%s", text);
	return r;
}

int gpu_open(const char *name, const struct gpu_sim_config *sim, struct gpu **ret_gpu, char *why,
	     size_t why_len)
{
	const struct gpu_sim_config healthy = { 0 };

	if (strcmp(name, "host") == 0)
		return opened(gpu_host_open(ret_gpu), "host memory", why, why_len);
	if (strcmp(name, "auto") == 0)
		return opened(gpu_host_open(ret_gpu),
			      "host memory (chosen by auto: this build has no driver of a GPU)",
			      why, why_len);
	if (strcmp(name, "sim") == 0)
		return opened(gpu_sim_open(sim ? sim : &healthy, GPU_SIM_WINDOW, ret_gpu),
			      "a simulated device", why, why_len);
	if (names_cuda(name)) {
		say(why, why_len, "this build has no CUDA back end; host and sim are there");
		return -ENOTSUP;
	}
	say(why, why_len, "no back end is called \"%s\"; there are auto, host and sim", name);
	return -ENOENT;
}

void gpu_close(struct gpu *g)
{
	if (g)
		g->ops->close(g);
}
