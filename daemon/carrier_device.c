/*
 * carrier_device.c - devices that are lost, and opened again.
 *
 * What it guarantees.  All devices are lost together: a fault of one ends whatever the driver did
 * for this process.  Whoever asked is told once.  They are closed and opened again only for a
 * sender who says that he knows, so that nobody names what is closed; what was sent before that,
 * and names slots of the old devices, is refused.
 *
 * What it relies on.  A pool is of the devices' life in which its slots were made.
 */
#include "daemon/carrier_internal.h"

#include <stdio.h>

#define LOOK_NS  UINT64_C(100000000) /* between two questions whether they are well */
#define AGAIN_NS UINT64_C(900000000) /* between two tries to open them */

bool prefixd_carrier_stale(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	/* Of closed devices nothing is there, whatever life it is of. */
	if (!m->pool || (c->devices.n > 0 && m->pool->life == c->life &&
			 (m->message.kind != PREFIXD_CARRIER_TAKE || m->desk->life == c->life)))
		return false;
	if (m->message.kind == PREFIXD_CARRIER_COPY || m->message.kind == PREFIXD_CARRIER_TAKE)
		prefixd_carrier_refuse(c, m, -ENODEV);
	else if (m->message.kind == PREFIXD_CARRIER_VERIFY)
		prefixd_carrier_answer(c, m, -ENODEV);
	else
		return false;
	return true;
}

/* ---- lost ------------------------------------------------------------------------------------ */

static const char *trouble(const struct prefixd_carrier *c)
{
	for (uint32_t i = 0; i < c->devices.n; i++)
		if (gpu_trouble(c->devices.v[i])[0])
			return gpu_trouble(c->devices.v[i]);
	return "a device does not answer";
}

static bool is_lost(struct prefixd_carrier *c)
{
	for (uint32_t i = 0; i < c->devices.n; i++)
		if (c->devices.v[i]->ops->health(c->devices.v[i]) < 0)
			return true;
	return c->devices.n == 0;
}

void prefixd_carrier_look(struct prefixd_carrier *c, uint64_t now)
{
	struct prefixd_carrier_message *m = c->watch;

	/* At once where a copy has failed by it. */
	if (!m ||
	    (!atomic_load_explicit(&c->lost, memory_order_relaxed) && now - c->looked_ns < LOOK_NS))
		return;
	c->looked_ns = now;
	if (!is_lost(c)) { /* what failed named slots of devices before these */
		atomic_store_explicit(&c->lost, false, memory_order_relaxed);
		return;
	}
	c->watch = NULL;
	atomic_store_explicit(&c->lost, true, memory_order_relaxed);
	snprintf(m->why, sizeof(m->why), "%s", trouble(c));
	prefixd_carrier_add(&c->losses, 1);
	prefixd_carrier_answer(c, m, 0);
}

/* ---- again ----------------------------------------------------------------------------------- */

static void refuse_coded(struct prefixd_carrier *c)
{
	struct radix_list *const lists[] = { &c->coder.urgent, &c->coder.others };

	for (int i = 0; i < 2; i++)
		while (!radix_list_empty(lists[i])) {
			struct radix_list *it = lists[i]->next;

			radix_list_remove(it);
			c->coder.answer(c->coder.ctx, prefixd_carrier_message_of(it), -ENODEV);
		}
}

static void refuse_all(struct prefixd_carrier *c)
{
	struct radix_list *const lists[] = { &c->urgent, &c->others };

	for (int i = 0; i < 2; i++)
		while (!radix_list_empty(lists[i])) {
			struct radix_list *it = lists[i]->next;

			radix_list_remove(it);
			prefixd_carrier_add(&c->waiting, (uint64_t)0 - 1);
			prefixd_carrier_refuse(c, prefixd_carrier_message_of(it), -ENODEV);
		}
	refuse_coded(c);
	while (!radix_list_empty(&c->verifies))
		prefixd_carrier_verify_end(c, prefixd_carrier_message_of(c->verifies.next),
					   -ENODEV);
}

/* What is at the devices completes, with an error. */
static void close_all(struct prefixd_carrier *c)
{
	prefixd_carrier_give_up(c);
	prefixd_coder_give_up(&c->coder);
	refuse_all(c);
	gpu_devices_close(&c->devices);
	/* What a device had no room for, or could not code, it has left to the processor. */
	refuse_coded(c);
	while (!radix_list_empty(&c->arrived)) { /* those that had ended well before, too */
		struct radix_list *it = c->arrived.next;

		radix_list_remove(it);
		prefixd_carrier_refuse(c, prefixd_carrier_message_of(it), -ENODEV);
	}
	radix_assert(c->n_runs == 0 && c->coder.n_flying == 0);
	c->full = c->coder.full = false;
}

int prefixd_carrier_reopen(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	uint64_t now = prefixd_carrier_clock();
	int r;

	if (!is_lost(c))
		return 0;
	m->tried = c->why[0] != '\0';
	snprintf(m->why, sizeof(m->why), "%s", m->tried ? c->why : "the device is lost");
	if (!c->config.device || m->life != c->life || now - c->opened_ns < AGAIN_NS)
		return -ENODEV;
	close_all(c);
	r = gpu_devices_open(c->config.device, NULL, &c->devices, c->why, sizeof(c->why));
	c->opened_ns = c->looked_ns = c->clock_ns = prefixd_carrier_clock();
	c->sim_ns = 0;
	snprintf(m->why, sizeof(m->why), "%s", c->why);
	m->tried = true;
	if (r < 0)
		return -ENODEV;
	c->life++;
	c->why[0] = '\0';
	prefixd_carrier_add(&c->opened, 1);
	atomic_store_explicit(&c->lost, false, memory_order_relaxed);
	return 0;
}
