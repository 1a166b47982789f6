/*
 * words.c - the words of a connection, and who writes them; see prefixd_words.h.
 *
 * What it guarantees.  A mapping that was handed out stays until pfx_close, whatever becomes of the
 * connection: a stream may write it at any time.  A request that waits for a word leaves only on
 * the connection whose word it is, since leases and words end together.
 *
 * What it relies on.  The daemon seals the memory: it does not shrink.
 */
#include "clients/c/device.h"
#include "clients/c/internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_MAX (1u << 20)

struct pfx_words {
	struct pfx_words *next; /* of an earlier connection */
	uint32_t life;
	uint64_t *v;
	uint32_t n;
	dev_t dev;
	ino_t ino;
	uint64_t address;   /* on the device; 0: its driver does not know them */
	bool not_inherited; /* children of a fork do not have `v` */
};

/* Those of this connection; NULL: it has none. */
static struct pfx_words *words_now(const struct pfx_client *c)
{
	return c->words && c->words->life == c->life && c->connected ? c->words : NULL;
}

int pfx_words_take(struct pfx_client *c, uint32_t n, int fd)
{
	struct pfx_words *w = words_now(c);
	struct stat st;
	void *v;

	if (n > WORDS_MAX || fstat(fd, &st) < 0 || (uint64_t)st.st_size < 8 * (uint64_t)n)
		return pfx_fail(c, PFX_PROTOCOL, "OPEN: the words are fewer than the reply says");
	if (w && w->dev == st.st_dev && w->ino == st.st_ino && w->n == n)
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for words");
	v = mmap(NULL, 8 * (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (v == MAP_FAILED) {
		free(w);
		return pfx_fail(c, PFX_NO_MEMORY, "OPEN: mapping %u words: %s", n, strerror(errno));
	}
	*w = (struct pfx_words){ c->words, c->life, v, n, st.st_dev, st.st_ino, 0, false };
	/* A child that went on writing would say that its parent's stream is through. */
	w->not_inherited = madvise(v, 8 * (size_t)n, MADV_DONTFORK) == 0;
	c->words = w;
	return 0;
}

void pfx_words_deinit(struct pfx_client *c)
{
	bool child = getpid() != c->pid;

	while (c->words) {
		struct pfx_words *w = c->words;

		c->words = w->next;
		if (w->address && !child)
			pfx_device_unregister(c->device, w->v);
		if (!child || !w->not_inherited)
			(void)munmap(w->v, 8 * (size_t)w->n); /* a whole mapping of ours */
		free(w);
	}
}

int pfx_word_check(struct pfx_client *c, uint32_t word)
{
	const struct pfx_words *w = words_now(c);

	if (word == 0 || (w && word <= w->n))
		return 0;
	return pfx_fail(c, PFX_ARGUMENT,
			"word %u, and this connection has %u; PFX_NS_WORDS gives them", word,
			w ? w->n : 0);
}

volatile uint64_t *pfx_words(pfx_client *c, uint32_t *ret_n)
{
	const struct pfx_words *w = c && getpid() == c->pid ? words_now(c) : NULL;

	if (ret_n)
		*ret_n = w ? w->n : 0;
	return w ? w->v : NULL;
}

/* Not after a restart with a daemon that keeps its pools in this machine's memory. */
static bool on_gpu(const struct pfx_client *c)
{
	const struct pfx_namespace *ns = c->namespaces;

	while (ns && ns->device != PROTO_DEVICE_CUDA)
		ns = ns->next;
	return c->device && ns;
}

int pfx_stream_word(pfx_client *c, void *stream, uint32_t word, uint64_t value)
{
	char why[256];
	struct pfx_words *w;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	w = words_now(c);
	if (!w || word == 0 || word > w->n)
		return pfx_fail(c, PFX_ARGUMENT, "no word %u; this connection has %u", word,
				w ? w->n : 0);
	if (!on_gpu(c)) {
		__atomic_store_n(&w->v[word - 1], value, __ATOMIC_RELEASE);
		return 0;
	}
	if (!w->address)
		r = pfx_device_register(c->device, w->v, 8 * (size_t)w->n, &w->address, why,
					sizeof(why));
	if (r == 0)
		r = pfx_device_write(c->device, stream, w->address + 8 * (uint64_t)(word - 1),
				     value, why, sizeof(why));
	return r == 0 ? 0 : pfx_fail(c, PFX_UNSUPPORTED, "word %u: %s", word, why);
}
