/*
 * words.c - see words.h.
 *
 * Looking.  Nothing tells this process that a device has written a word, so the loop looks again
 * after an eighth of the time that it has looked in vain, at least 100 us and at most 1 ms: what
 * comes soon is seen soon, and what never comes costs next to nothing.
 */
#include "daemon/words.h"

#include "daemon/engine.h"

#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LEN       ((size_t)PREFIXD_WORDS * 8)
#define EVERY_MIN 100000ull  /* ns */
#define EVERY_MAX 1000000ull /* ns */

struct prefixd_parked {
	struct radix_list link;             /* in heads; not linked: behind another one */
	struct prefixd_parked *next, *last; /* of the same lease; `last` is a head's */
	struct proto_header header;
	uint32_t word; /* 0: it waits for those before it only */
	uint64_t value;
	uint64_t lease; /* QUIESCED: 0, and so is a lease that nobody has */
	uint64_t since_ns;
	bool told;
	uint8_t body[];
};

/* What a frame waits for. */
struct want {
	uint64_t lease;
	uint32_t word;
	uint64_t value;
};

/* ---- which frames ---------------------------------------------------------------------------- */

/* False: it is not about a lease, or does not decode; then it goes on, to be answered. */
static bool want_of(const struct proto_header *h, const void *body, struct want *ret)
{
	struct proto_commit_req commit;
	struct proto_release_req release;
	struct proto_quiesced_req quiesced;
	struct proto_extend_req extend;
	struct proto_reserve_req reserve;
	struct proto_wait_req wait;
	const char *bad;

	*ret = (struct want){ 0 };
	switch (h->op) {
	case PROTO_OP_COMMIT:
		if (proto_commit_req_decode_as(h->version, body, h->len, &commit, &bad))
			return false;
		*ret = (struct want){ commit.lease, commit.word, commit.value };
		return true;
	case PROTO_OP_RELEASE:
		if (proto_release_req_decode_as(h->version, body, h->len, &release, &bad))
			return false;
		*ret = (struct want){ release.lease, release.word, release.value };
		return true;
	case PROTO_OP_QUIESCED:
		if (proto_quiesced_req_decode_as(h->version, body, h->len, &quiesced, &bad))
			return false;
		*ret = (struct want){ 0, quiesced.word, quiesced.value };
		return true;
	case PROTO_OP_EXTEND:
		if (proto_extend_req_decode_as(h->version, body, h->len, &extend, &bad))
			return false;
		ret->lease = extend.lease;
		return true;
	case PROTO_OP_RESERVE:
		if (proto_reserve_req_decode_as(h->version, body, h->len, &reserve, &bad))
			return false;
		ret->lease = reserve.lease;
		return true;
	case PROTO_OP_WAIT:
		if (proto_wait_req_decode_as(h->version, body, h->len, &wait, &bad))
			return false;
		ret->lease = wait.lease;
		return true;
	default:
		return false;
	}
}

/* Acquire: whoever sees the word sees what was written before it. */
static uint64_t word_of(const struct prefixd_words *w, uint32_t word)
{
	return __atomic_load_n(&w->v[word - 1], __ATOMIC_ACQUIRE);
}

/* Values go round: up to 2^63 - 1 beyond is there, the other half is still to come. */
static bool there(const struct prefixd_words *w, uint32_t word, uint64_t value)
{
	return word == 0 || (int64_t)(word_of(w, word) - value) >= 0;
}

/* ---- the timer ------------------------------------------------------------------------------- */

static uint64_t mono_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void arm(struct prefixd_parking *p, uint64_t at_ns)
{
	struct itimerspec ts = { .it_value = { (time_t)(at_ns / 1000000000u),
					       (long)(at_ns % 1000000000u) } };

	if (at_ns >= p->armed_ns)
		return;
	p->armed_ns = at_ns;
	(void)timerfd_settime(p->timer, TFD_TIMER_ABSTIME, &ts, NULL); /* a valid time of ours */
}

static void arm_again(struct prefixd_parking *p, uint64_t now_ns, bool at_once)
{
	uint64_t every = (now_ns - p->quiet_ns) / 8;

	if (radix_list_empty(&p->sessions))
		return;
	if (every < EVERY_MIN)
		every = EVERY_MIN;
	if (every > EVERY_MAX)
		every = EVERY_MAX;
	arm(p, at_once ? now_ns + 1 : now_ns + every);
}

static void on_timer(evutil_socket_t fd, short what, void *ctx);

static int timer_make(struct prefixd_parking *p)
{
	int r;

	if (p->timer >= 0)
		return 0;
	p->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (p->timer < 0)
		return -errno;
	p->timer_ev = event_new(p->base, p->timer, EV_READ | EV_PERSIST, on_timer, p);
	r = p->timer_ev && event_add(p->timer_ev, NULL) == 0 ? 0 : -ENOMEM;
	if (r < 0)
		prefixd_parking_deinit(p);
	return r;
}

void prefixd_parking_init(struct prefixd_parking *p, struct event_base *base,
			  const struct prefixd_words_ops *ops, void *server)
{
	*p = (struct prefixd_parking){
		.base = base, .ops = ops, .server = server, .timer = -1, .armed_ns = UINT64_MAX
	};
	radix_list_init(&p->sessions);
}

void prefixd_parking_deinit(struct prefixd_parking *p)
{
	if (p->timer_ev)
		event_free(p->timer_ev);
	p->timer_ev = NULL;
	if (p->timer >= 0)
		close(p->timer);
	p->timer = -1;
}

/* ---- parking --------------------------------------------------------------------------------- */

static void hold_if(struct prefixd_words *w)
{
	bool hold = w->n_frames >= PREFIXD_WORDS_FRAMES || w->bytes > w->max_bytes;

	/* Half of it has to go before the session is heard again: not a step for each frame. */
	if (w->held && (w->n_frames > PREFIXD_WORDS_FRAMES / 2 || w->bytes > w->max_bytes / 2))
		hold = true;
	if (hold == w->held)
		return;
	w->held = hold;
	w->set->ops->hold(w, hold);
}

static void count(struct prefixd_words *w, const struct prefixd_parked *f, bool more)
{
	size_t bytes = sizeof(*f) + f->header.len;

	w->n_frames += more ? 1 : UINT32_MAX;
	w->bytes += more ? bytes : -bytes;
	w->set->n_frames += more ? 1 : UINT64_MAX;
}

/* A head leaves; the one behind it takes its place. */
static void unlink_head(struct prefixd_words *w, struct prefixd_parked *f)
{
	struct prefixd_parked *next = f->next;

	if (next) {
		next->last = f->last;
		radix_list_add_tail(&f->link, &next->link); /* before f */
	}
	radix_list_remove(&f->link);
	count(w, f, false);
	if (radix_list_empty(&w->heads))
		radix_list_remove(&w->link);
}

static struct prefixd_parked *head_of(const struct prefixd_words *w, uint16_t op, uint64_t lease)
{
	struct radix_list *it;

	radix_list_foreach(it, &w->heads) {
		struct prefixd_parked *f = radix_list_entry(it, struct prefixd_parked, link);

		if ((f->header.op == PROTO_OP_QUIESCED) == (op == PROTO_OP_QUIESCED) &&
		    f->lease == lease)
			return f;
	}
	return NULL;
}

int prefixd_words_park(struct prefixd_words *w, const struct proto_header *header, const void *body,
		       uint64_t now_ns)
{
	struct prefixd_parked *f, *head;
	struct want want;

	if (!w->v || !want_of(header, body, &want) || want.word > PREFIXD_WORDS)
		return 0;
	head = head_of(w, header->op, want.lease);
	if (!head && there(w, want.word, want.value))
		return 0;
	f = malloc(sizeof(*f) + header->len);
	if (!f)
		return -ENOMEM;
	*f = (struct prefixd_parked){ .header = *header,
				      .word = want.word,
				      .value = want.value,
				      .lease = want.lease,
				      .since_ns = now_ns };
	f->last = f;
	radix_list_init(&f->link);
	if (header->len)
		memcpy(f->body, body, header->len);
	if (head) {
		head->last->next = f;
		head->last = f;
	} else {
		radix_list_add_tail(&w->heads, &f->link);
	}
	if (!radix_list_linked(&w->link))
		radix_list_add_tail(&w->set->sessions, &w->link);
	count(w, f, true);
	hold_if(w);
	w->set->quiet_ns = now_ns;
	arm_again(w->set, now_ns, false);
	return 1;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* What a turn may still do. */
struct budget {
	uint32_t frames, looks;
};

static void tell_late(struct prefixd_words *w, struct prefixd_parked *f, uint64_t now_ns)
{
	if (f->told || now_ns - f->since_ns < PREFIXD_WORDS_LATE ||
	    (w->told_ns && now_ns - w->told_ns < PREFIXD_WORDS_LATE))
		return;
	f->told = true;
	w->told_ns = now_ns;
	w->set->ops->late(w, &f->header, f->word, word_of(w, f->word), f->value);
}

/*
 * Each head once, and those that come up in its place.  Frames that are handed over may end other
 * sessions, not this one.
 */
static void look(struct prefixd_words *w, struct budget *left, uint64_t now_ns)
{
	struct radix_list *it = w->heads.next;

	while (it != &w->heads && left->frames > 0 && left->looks > 0) {
		struct prefixd_parked *f = radix_list_entry(it, struct prefixd_parked, link);

		left->looks--;
		if (!there(w, f->word, f->value)) {
			tell_late(w, f, now_ns);
			it = it->next;
			continue;
		}
		it = f->next ? &f->next->link : it->next;
		left->frames--;
		unlink_head(w, f);
		w->set->ops->frame(w, &f->header, f->body);
		free(f);
	}
	hold_if(w);
}

static void on_timer(evutil_socket_t fd, short what, void *ctx)
{
	struct budget left = { PREFIXD_WORDS_BUDGET, PREFIXD_WORDS_LOOKS };
	struct prefixd_parking *p = ctx;
	struct radix_list *end = p->sessions.prev;
	uint64_t fired, now = mono_ns();
	bool last = radix_list_empty(&p->sessions);

	while (read(fd, &fired, sizeof(fired)) < 0 && errno == EINTR)
		;
	p->armed_ns = UINT64_MAX;
	/* Round and round, so that a turn that was too short for all begins with the others. */
	while (!last && !radix_list_empty(&p->sessions) && left.frames > 0 && left.looks > 0) {
		struct prefixd_words *w = radix_list_first(&p->sessions, struct prefixd_words,
							   link);

		last = &w->link == end;
		radix_list_remove(&w->link);
		radix_list_add_tail(&p->sessions, &w->link);
		look(w, &left, now);
	}
	if (left.frames < PREFIXD_WORDS_BUDGET)
		p->quiet_ns = now;
	arm_again(p, now, left.frames == 0 || left.looks == 0);
	p->ops->turn(p->server);
}

void prefixd_words_end(struct prefixd_words *w, uint64_t now_ns)
{
	struct budget all = { UINT32_MAX, UINT32_MAX };

	if (!w->v)
		return;
	look(w, &all, now_ns);
	while (!radix_list_empty(&w->heads)) {
		struct prefixd_parked *f = radix_list_first(&w->heads, struct prefixd_parked, link);

		unlink_head(w, f);
		free(f);
	}
	hold_if(w);
}

/* ---- the memory ------------------------------------------------------------------------------ */

void prefixd_words_init(struct prefixd_words *w, struct prefixd_parking *p, size_t max_bytes)
{
	*w = (struct prefixd_words){ .set = p, .fd = -1, .max_bytes = max_bytes };
	radix_list_init(&w->link);
	radix_list_init(&w->heads);
}

void prefixd_words_deinit(struct prefixd_words *w)
{
	while (w->v && !radix_list_empty(&w->heads)) {
		struct prefixd_parked *f = radix_list_first(&w->heads, struct prefixd_parked, link);

		unlink_head(w, f);
		free(f);
	}
	if (w->v)
		(void)munmap((void *)(uintptr_t)w->v, LEN); /* a whole mapping of ours */
	w->v = NULL;
	if (w->fd >= 0)
		close(w->fd);
	w->fd = -1;
}

int prefixd_words_fd(struct prefixd_words *w)
{
	void *v = MAP_FAILED;
	int fd, r;

	if (w->fd >= 0)
		return w->fd;
	r = timer_make(w->set);
	if (r < 0)
		return r;
	fd = memfd_create("prefixd-words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)LEN) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		v = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
	if (v == MAP_FAILED) {
		r = -errno;
		close(fd);
		return r;
	}
	w->v = v;
	w->fd = fd;
	return fd;
}
