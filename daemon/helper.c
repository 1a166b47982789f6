/*
 * helper.c - see helper.h.
 *
 * Two equal channels, one each way.  A channel is a ring with one producer and one consumer, an
 * eventfd for the consumer to sleep on, and a list in which the producer keeps what did not fit.
 *
 * Who wakes whom.  The consumer says `asleep` after it found the ring empty, then looks once more;
 * the producer publishes, then asks for `asleep`.  One of them sees the other (both are in the one
 * order of sequential consistency), so no message is slept over, and a busy consumer costs its
 * producer no system call.  With a list that is not empty it is the same the other way round: the
 * producer says `behind`, then tries once more; the consumer takes, then asks for `behind`, and
 * wakes the producer by the other channel's eventfd.
 */
#include "daemon/helper.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEFAULT_RING 1024u
#define MAX_RING     (1u << 20)
#define LINE         64 /* what two threads write must not share one */

struct channel {
	struct prefixd_message **v;
	uint32_t mask;
	int fd;
	/* the producer's */
	_Alignas(LINE) _Atomic uint32_t tail;
	uint32_t head_seen;
	struct radix_list rest; /* what follows once there is room */
	/* the consumer's */
	_Alignas(LINE) _Atomic uint32_t head;
	uint32_t tail_seen;
	/* both */
	_Alignas(LINE) _Atomic bool asleep; /* the consumer waits for its descriptor */
	_Atomic bool behind;                /* the producer's list is not empty */
};

struct prefixd_helper {
	struct channel requests, answers;
	struct prefixd_helper_config config;
	char name[16];
	pthread_t thread;
	bool started;
	uint64_t sent;  /* by the loop */
	uint32_t turns; /* how often the thread was started */
	_Alignas(LINE) _Atomic uint64_t taken;
	_Atomic uint64_t beat;
	_Alignas(LINE) _Atomic bool stopping;
	_Atomic bool ended;
};

/* ---- a channel ------------------------------------------------------------------------------- */

static int channel_init(struct channel *c, uint32_t ring)
{
	c->mask = ring - 1;
	radix_list_init(&c->rest);
	atomic_init(&c->asleep, true);
	c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->fd < 0)
		return -errno;
	c->v = calloc(ring, sizeof(struct prefixd_message *));
	return c->v ? 0 : -ENOMEM;
}

static void channel_deinit(struct channel *c)
{
	free(c->v);
	if (c->fd >= 0)
		close(c->fd);
	c->v = NULL;
	c->fd = -1;
}

/* Cannot fail: the counter is far from its end, since whoever wakes up sets it to 0. */
static void wake(int fd)
{
	(void)eventfd_write(fd, 1);
}

static bool ring_push(struct channel *c, struct prefixd_message *m)
{
	uint32_t tail = atomic_load_explicit(&c->tail, memory_order_relaxed);

	if (tail - c->head_seen > c->mask) {
		c->head_seen = atomic_load(&c->head);
		if (tail - c->head_seen > c->mask)
			return false;
	}
	c->v[tail & c->mask] = m;
	atomic_store(&c->tail, tail + 1);
	return true;
}

static struct prefixd_message *ring_pop(struct channel *c)
{
	uint32_t head = atomic_load_explicit(&c->head, memory_order_relaxed);
	struct prefixd_message *m;

	if (head == c->tail_seen) {
		c->tail_seen = atomic_load(&c->tail);
		if (head == c->tail_seen)
			return NULL;
	}
	m = c->v[head & c->mask];
	atomic_store(&c->head, head + 1);
	return m;
}

/* Into the ring with what waits in the list, as far as there is room. */
static void channel_flush(struct channel *c)
{
	bool moved = false;

	while (!radix_list_empty(&c->rest)) {
		struct prefixd_message *m = radix_list_first(&c->rest, struct prefixd_message,
							     link);

		/* Out of the list first: once it is in the ring it is the consumer's. */
		radix_list_remove(&m->link);
		if (!ring_push(c, m)) {
			/* Said before the last try, so that the consumer cannot miss it. */
			atomic_store(&c->behind, true);
			if (!ring_push(c, m)) {
				radix_list_add_head(&c->rest, &m->link);
				break;
			}
			atomic_store(&c->behind, false);
		}
		moved = true;
	}
	if (moved && atomic_exchange(&c->asleep, false))
		wake(c->fd);
}

static void channel_send(struct channel *c, struct prefixd_message *m)
{
	if (radix_list_empty(&c->rest) && ring_push(c, m)) {
		if (atomic_exchange(&c->asleep, false))
			wake(c->fd);
		return;
	}
	radix_list_add_tail(&c->rest, &m->link);
	channel_flush(c);
}

/* `back` is where the producer of this channel sleeps. */
static struct prefixd_message *channel_receive(struct channel *c, int back)
{
	struct prefixd_message *m = ring_pop(c);
	eventfd_t value;

	if (!m) {
		(void)eventfd_read(c->fd, &value); /* EAGAIN: nobody had to wake us */
		atomic_store(&c->asleep, true);
		m = ring_pop(c);
		if (!m)
			return NULL;
		/* Not asleep after all; readable, as whoever stops here and waits expects it. */
		if (atomic_exchange(&c->asleep, false))
			wake(c->fd);
	}
	if (atomic_load(&c->behind)) {
		uint32_t head = atomic_load_explicit(&c->head, memory_order_relaxed);

		/* Half a ring at a time, not a system call for each place. */
		if (atomic_load(&c->tail) - head <= c->mask / 2 &&
		    atomic_exchange(&c->behind, false))
			wake(back);
	}
	return m;
}

/* After the other thread's end: everything that is left, in order. */
static void channel_drop(struct channel *c, void (*drop)(struct prefixd_message *m))
{
	struct radix_list *it, *tmp;
	struct prefixd_message *m;

	while ((m = ring_pop(c)))
		if (drop)
			drop(m);
	radix_list_foreach_safe(it, tmp, &c->rest) {
		m = radix_list_entry(it, struct prefixd_message, link);
		radix_list_remove(it);
		if (drop)
			drop(m);
	}
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *helper_main(void *arg)
{
	struct prefixd_helper *h = arg;

	h->config.run(h, h->config.ctx);
	atomic_store(&h->ended, true);
	wake(h->answers.fd); /* the loop finds no answer, and learns why */
	return NULL;
}

/* Signals are the loop's: none may interrupt a helper, or be handled on its stack. */
static int thread_start(struct prefixd_helper *h)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	r = pthread_sigmask(SIG_SETMASK, &all, &old);
	if (r == 0) {
		atomic_store(&h->ended, false);
		r = pthread_create(&h->thread, NULL, helper_main, h);
		(void)pthread_sigmask(SIG_SETMASK, &old, NULL); /* a mask that was in force */
	}
	if (r != 0)
		return -r;
	(void)pthread_setname_np(h->thread, h->name); /* for people that look at threads */
	h->started = true;
	h->turns++;
	return 0;
}

static void helper_free(struct prefixd_helper *h)
{
	channel_deinit(&h->requests);
	channel_deinit(&h->answers);
	free(h);
}

int prefixd_helper_start(struct prefixd_helper **ret_h, const struct prefixd_helper_config *config)
{
	uint32_t ring = config->ring ? config->ring : DEFAULT_RING;
	struct prefixd_helper *h;
	int r;

	radix_assert(config->run && config->name && strlen(config->name) < sizeof(h->name));
	if (ring > MAX_RING || (ring & (ring - 1)) != 0)
		return -EINVAL;
	h = aligned_alloc(LINE, sizeof(*h));
	if (!h)
		return -ENOMEM;
	memset(h, 0, sizeof(*h));
	h->requests.fd = h->answers.fd = -1;
	h->config = *config;
	memcpy(h->name, config->name, strlen(config->name));
	h->config.name = h->name;
	r = channel_init(&h->requests, ring);
	if (r == 0)
		r = channel_init(&h->answers, ring);
	if (r == 0)
		r = thread_start(h);
	if (r < 0) {
		helper_free(h);
		return r;
	}
	*ret_h = h;
	return 0;
}

static void thread_join(struct prefixd_helper *h)
{
	if (h->started)
		(void)pthread_join(h->thread, NULL); /* ours, and joined once */
	h->started = false;
}

int prefixd_helper_restart(struct prefixd_helper *h)
{
	int r;

	thread_join(h);
	r = thread_start(h);
	if (r < 0)
		atomic_store(&h->ended, true); /* as before: it may be tried again */
	return r;
}

void prefixd_helper_stop(struct prefixd_helper *h, void (*drop)(struct prefixd_message *m))
{
	if (!h)
		return;
	atomic_store(&h->stopping, true);
	wake(h->requests.fd);
	thread_join(h);
	channel_drop(&h->requests, drop);
	channel_drop(&h->answers, drop);
	helper_free(h);
}

/* ---- on the loop's thread -------------------------------------------------------------------- */

void prefixd_helper_send(struct prefixd_helper *h, struct prefixd_message *m)
{
	h->sent++;
	channel_send(&h->requests, m);
}

int prefixd_helper_answer_fd(const struct prefixd_helper *h)
{
	return h->answers.fd;
}

struct prefixd_message *prefixd_helper_receive(struct prefixd_helper *h)
{
	struct prefixd_message *m = channel_receive(&h->answers, h->requests.fd);

	/* Also when woken for nothing else: the helper has made room. */
	if (!radix_list_empty(&h->requests.rest))
		channel_flush(&h->requests);
	return m;
}

uint32_t prefixd_helper_waiting(const struct prefixd_helper *h)
{
	uint64_t taken = atomic_load_explicit(&h->taken, memory_order_relaxed);

	return (uint32_t)radix_min_u64(h->sent - taken, UINT32_MAX);
}

uint64_t prefixd_helper_beat(const struct prefixd_helper *h)
{
	return atomic_load_explicit(&h->beat, memory_order_relaxed);
}

bool prefixd_helper_ended(const struct prefixd_helper *h)
{
	return atomic_load(&h->ended);
}

uint32_t prefixd_helper_restarts(const struct prefixd_helper *h)
{
	return h->turns - 1;
}

const char *prefixd_helper_name(const struct prefixd_helper *h)
{
	return h->name;
}

/* ---- on the helper's thread ------------------------------------------------------------------ */

int prefixd_helper_request_fd(const struct prefixd_helper *h)
{
	return h->requests.fd;
}

struct prefixd_message *prefixd_helper_take(struct prefixd_helper *h)
{
	struct prefixd_message *m = channel_receive(&h->requests, h->answers.fd);

	if (m)
		atomic_fetch_add_explicit(&h->taken, 1, memory_order_relaxed);
	else if (prefixd_helper_stopping(h))
		wake(h->requests.fd); /* its own wake-up may have been the one just read */
	if (!radix_list_empty(&h->answers.rest))
		channel_flush(&h->answers);
	return m;
}

void prefixd_helper_answer(struct prefixd_helper *h, struct prefixd_message *m)
{
	channel_send(&h->answers, m);
}

bool prefixd_helper_stopping(const struct prefixd_helper *h)
{
	return atomic_load(&h->stopping);
}

void prefixd_helper_alive(struct prefixd_helper *h, uint64_t now_ns)
{
	atomic_store_explicit(&h->beat, now_ns, memory_order_relaxed);
}
