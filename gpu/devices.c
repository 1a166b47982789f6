/*
 * devices.c - see devices.h.
 *
 * A driver registers memory once, for all devices of the process: the first one asks for it, and
 * the others take its word.
 */
#include "gpu/devices.h"

#include "gpu/cuda_internal.h"
#include "gpu/say.h"

#define TEXT_LEN 640
#define NAME_LEN 64

static bool is_there(const struct gpu_devices *d, const struct gpu *g)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (memcmp(&gpu_cuda_of(d->v[i])->id, &gpu_cuda_of(g)->id,
			   sizeof(struct gpu_cu_uuid)) == 0)
			return true;
	return false;
}

/* One more GPU, which was opened with that result.  Return: 0, or what went wrong. */
static int add(struct gpu_devices *d, struct gpu *g, int r, const char *text, char *why,
	       size_t why_len)
{
	if (r < 0) {
		gpu_say(why, why_len, "GPU %u: %s", d->n, text);
		return r;
	}
	if (d->n == GPU_DEVICES_MAX || is_there(d, g)) {
		gpu_say(why, why_len,
			d->n == GPU_DEVICES_MAX ? "more than %u GPUs are named"
						: "GPU %u is named twice",
			d->n);
		gpu_close(g);
		return -EINVAL;
	}
	if (d->n == 0)
		gpu_say(why, why_len, "%s", text);
	d->v[d->n++] = g;
	return 0;
}

/* "UUID,UUID,..." */
static int open_listed(const char *list, struct gpu_devices *d, char *why, size_t why_len)
{
	int r = 0;

	for (const char *at = list; r == 0 && at; at = strchr(at, ',')) {
		char text[TEXT_LEN] = "", uuid[NAME_LEN];
		struct gpu *g = NULL;
		size_t n;

		at += *at == ',';
		n = strcspn(at, ",");
		if (n == 0 || n >= sizeof(uuid)) {
			gpu_say(why, why_len, "\"%s\" is no list of UUIDs", list);
			return -ENODEV;
		}
		memcpy(uuid, at, n);
		uuid[n] = '\0';
		r = gpu_cuda_open(uuid, &g, text, sizeof(text));
		r = add(d, g, r, text, why, why_len);
	}
	return r;
}

/* The first one is there. */
static int open_rest(struct gpu_devices *d, char *why, size_t why_len)
{
	uint32_t n = radix_min_u32(gpu_cuda_count(d->v[0]), GPU_DEVICES_MAX);
	int r = 0;

	while (r == 0 && d->n < n) {
		char text[TEXT_LEN] = "";
		struct gpu *g = NULL;

		r = gpu_cuda_open_nth(d->n, &g, text, sizeof(text));
		r = add(d, g, r, text, why, why_len);
	}
	return r;
}

/* For auto, as where the first one cannot be used: a rank's slots lie on its own GPU or nowhere. */
static int instead(struct gpu_devices *d, char *why, size_t why_len)
{
	char text[TEXT_LEN];
	int r;

	gpu_say(text, sizeof(text), "%s", why);
	gpu_devices_close(d);
	r = gpu_open("host", NULL, &d->v[0], why, why_len);
	d->n = r == 0;
	if (r == 0)
		gpu_say(why, why_len, "host memory (chosen by auto: %s)", text);
	return r;
}

int gpu_devices_open(const char *name, const struct gpu_sim_config *sim,
		     struct gpu_devices *ret_devices, char *why, size_t why_len)
{
	const bool listed = strncmp(name, "cuda:", 5) == 0;
	struct gpu_devices d = { .n = 0 };
	size_t used;
	int r;

	if (listed) {
		r = open_listed(name + 5, &d, why, why_len);
	} else {
		r = gpu_open(name, sim, &d.v[0], why, why_len);
		d.n = r == 0;
		if (r == 0 && d.v[0]->ops->kind == GPU_KIND_CUDA)
			r = open_rest(&d, why, why_len);
		if (r < 0 && d.n > 0 && strcmp(name, "auto") == 0)
			r = instead(&d, why, why_len);
	}
	if (r < 0) {
		gpu_devices_close(&d);
		return r;
	}
	used = strlen(why);
	if (d.n > 1)
		gpu_say(why + used, why_len - used, "; and %u more", d.n - 1);
	*ret_devices = d;
	return 0;
}

const char *gpu_id_print(const uint8_t id[16], char ret_text[GPU_ID_TEXT])
{
	const uint8_t *b = id;

	(void)snprintf(ret_text, GPU_ID_TEXT,
		       "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		       b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
		       b[12], b[13], b[14], b[15]);
	return ret_text;
}

/* The first one last: what is pinned is registered with it. */
void gpu_devices_close(struct gpu_devices *d)
{
	while (d->n > 0)
		gpu_close(d->v[--d->n]);
}

/* The first one registers it. */
static int pin(struct gpu *g, void *p, uint64_t len, bool first)
{
	if (first || g->ops->kind != GPU_KIND_CUDA)
		return g->ops->host_pin(g, p, len);
	return gpu_cuda_host_know(g, p, len);
}

int gpu_devices_pin(const struct gpu_devices *d, void *p, uint64_t len)
{
	for (uint32_t i = 0; i < d->n; i++) {
		int r = pin(d->v[i], p, len, i == 0);

		if (r == 0)
			continue;
		while (i-- > 0)
			d->v[i]->ops->host_unpin(d->v[i], p);
		return r;
	}
	return 0;
}

void gpu_devices_unpin(const struct gpu_devices *d, void *p)
{
	for (uint32_t i = d->n; i-- > 0;)
		d->v[i]->ops->host_unpin(d->v[i], p);
}
