/*
 * words.c - the part about words: a stream of one process writes a block and then a word in memory
 * that both processes have registered; the message that the block is there overtakes both.
 */
#include "tests/gpu/device/kit.h"

#include <stdatomic.h>

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 64u

static _Atomic uint64_t *words_map(struct device *dev, int fd, gpu_cu_ptr *ret_at)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		give_up("words", "mmap: %s", strerror(errno));
	if (ret_at) {
		must(dev, host_register, p, 4096,
		     GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP);
		must(dev, host_pointer, ret_at, p, 0);
	}
	return p;
}

static uint64_t len(void)
{
	return quick ? UINT64_C(2) << 20 : UINT64_C(64) << 20;
}

static int writer(int socket)
{
	static struct device dev;
	gpu_cu_ptr word, data_at;
	uint64_t *data;
	struct slab s;

	device_open(&dev);
	s = slab_import(&dev, hear(socket, 'm'), len(), GPU_CU_MEM_ACCESS_READWRITE);
	(void)words_map(&dev, hear(socket, 'w'), &word);
	data = pinned_new(&dev, ROUNDS * 4096, &data_at);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		for (uint32_t k = 0; k < 512; k++)
			data[i * 512 + k] = (uint64_t)(i + 1) << 32 | k;
		/* Something to wait for, the block, the word; nobody waits here. */
		must(&dev, set_bytes, s.at, 0xee, s.len, dev.stream);
		must(&dev, copy, s.at + s.len - 4096, data_at + i * 4096, 4096, dev.stream);
		must(&dev, stream_write, dev.stream, word, i + 1,
		     GPU_CU_STREAM_WRITE_VALUE_DEFAULT);
		tell(socket, 'c', -1);
		(void)hear(socket, 'n');
	}
	must(&dev, stream_sync, dev.stream);
	return 0;
}

static uint32_t wrong_words(struct device *dev, const struct slab *s, uint32_t round)
{
	const uint64_t *w = (const uint64_t *)(const void *)dev->pinned;
	uint32_t n = 0;

	must(dev, copy, dev->pinned_at, s->at + s->len - 4096, 4096, dev->stream);
	must(dev, stream_sync, dev->stream);
	for (uint32_t k = 0; k < 512; k++)
		n += w[k] != ((uint64_t)(round + 1) << 32 | k);
	return n;
}

void part_words(void)
{
	static struct device dev;
	struct child peer = child_new(writer);
	int fd = memfd_create("words", MFD_CLOEXEC), slab_fd;
	uint32_t overtook = 0, wrong = 0;
	_Atomic uint64_t *words;
	struct slab s;

	if (fd < 0 || ftruncate(fd, 4096) < 0)
		give_up("words", "memfd: %s", strerror(errno));
	device_open(&dev);
	s = slab_new(&dev, len(), &slab_fd);
	words = words_map(&dev, fd, NULL);
	tell(peer.socket, 'm', slab_fd);
	tell(peer.socket, 'w', fd);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		double begun = seconds();

		(void)hear(peer.socket, 'c');
		overtook += atomic_load_explicit(words, memory_order_acquire) != i + 1;
		while (atomic_load_explicit(words, memory_order_acquire) != i + 1) {
			if (seconds() > begun + 20)
				give_up("words", "word %u did not come in 20 s", i + 1);
		}
		wrong += wrong_words(&dev, &s, i) != 0;
		tell(peer.socket, 'n', -1);
	}
	if (child_end(&peer) != 0)
		report(FAILED, "writer", "ended with an error");
	report(wrong ? FAILED : PASSED, "blocks read once their word was there",
	       "%u of %u wrong; the message came first %u times", wrong, ROUNDS, overtook);
}
