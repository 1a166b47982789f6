/*
 * gpu.c - finding a back end by its name.
 */
#include "gpu/gpu.h"

#include "gpu/cuda_internal.h"
#include "gpu/gpu_internal.h"
#include "gpu/say.h"

#define TEXT_LEN 640

/* "cuda" and "cuda:UUID" */
static bool names_cuda(const char *name)
{
	return strncmp(name, "cuda", 4) == 0 && (name[4] == '\0' || name[4] == ':');
}

static int opened(int r, const char *text, char *why, size_t why_len)
{
	if (r < 0)
		gpu_say(why, why_len, "%s cannot be opened: %s", text, strerrordesc_np(-r));
	else
		gpu_say(why, why_len, "%s", text);
	return r;
}

static int open_cuda(const char *uuid, struct gpu **ret_gpu, char *why, size_t why_len)
{
	char text[TEXT_LEN] = "";
	int r;

	r = gpu_cuda_open(uuid, ret_gpu, text, sizeof(text));
	gpu_say(why, why_len, "%s", text);
	return r;
}

/* A GPU if there is one that can be used; the sentence says why not. */
static int open_auto(struct gpu **ret_gpu, char *why, size_t why_len)
{
	char text[TEXT_LEN] = "";
	int r;

	if (open_cuda(NULL, ret_gpu, text, sizeof(text)) == 0) {
		gpu_say(why, why_len, "%s (chosen by auto)", text);
		return 0;
	}
	r = opened(gpu_host_open(ret_gpu), "host memory", why, why_len);
	if (r == 0)
		gpu_say(why, why_len, "host memory (chosen by auto: %s)", text);
	return r;
}

int gpu_open(const char *name, const struct gpu_sim_config *sim, struct gpu **ret_gpu, char *why,
	     size_t why_len)
{
	const struct gpu_sim_config healthy = { 0 };

	if (strcmp(name, "host") == 0)
		return opened(gpu_host_open(ret_gpu), "host memory", why, why_len);
	if (strcmp(name, "auto") == 0)
		return open_auto(ret_gpu, why, why_len);
	if (strcmp(name, "sim") == 0)
		return opened(gpu_sim_open(sim ? sim : &healthy, GPU_SIM_WINDOW, ret_gpu),
			      "a simulated device", why, why_len);
	if (names_cuda(name))
		return open_cuda(name[4] ? name + 5 : NULL, ret_gpu, why, why_len);
	gpu_say(why, why_len,
		"no back end is called \"%s\"; there are auto, host, sim, cuda and cuda:UUID",
		name);
	return -ENOENT;
}

void gpu_close(struct gpu *g)
{
	if (g)
		g->ops->close(g);
}

const char *gpu_trouble(const struct gpu *g)
{
	return g->ops->kind == GPU_KIND_CUDA ? gpu_cuda_trouble(g) : "";
}

void gpu_device_id(const struct gpu *g, uint8_t ret_id[16])
{
	memset(ret_id, 0, 16);
	if (g->ops->kind == GPU_KIND_CUDA)
		memcpy(ret_id, gpu_cuda_of(g)->id.b, 16);
}
