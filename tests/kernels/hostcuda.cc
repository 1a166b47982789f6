/*
 * hostcuda.cc - lanes as fibers; see hostcuda.h.
 *
 * A thread that launches for the first time makes 32 fibers, which wait for work and live as long
 * as the thread.  To run a warp each gets the kernel; a fiber comes back to the launching one when its
 * lane is done, or when it waits in a shuffle, and those are resumed once all 32 wait.
 *
 * Switching is a dozen instructions for x86-64: what the library has for it asks the kernel of the
 * system each time, and there is a switch per lane and shuffle.
 */
#include "tests/kernels/hostcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LANES       32u
#define STACK_BYTES (64u << 10)
#define MOST        256u /* threads of a block: GPU_KERNEL_THREADS */

thread_local hostcuda_index threadIdx, blockIdx, blockDim, gridDim;

/* Saves what a call must keep on this stack, and takes it from the other. */
extern "C" void hostcuda_switch(void **ret_from, void *to);
asm(".text\n"
    ".globl hostcuda_switch\n"
    ".hidden hostcuda_switch\n"
    ".type hostcuda_switch, @function\n"
    "hostcuda_switch:\n"
    "	pushq %rbp\n"
    "	pushq %rbx\n"
    "	pushq %r12\n"
    "	pushq %r13\n"
    "	pushq %r14\n"
    "	pushq %r15\n"
    "	movq %rsp, (%rdi)\n"
    "	movq %rsi, %rsp\n"
    "	popq %r15\n"
    "	popq %r14\n"
    "	popq %r13\n"
    "	popq %r12\n"
    "	popq %rbx\n"
    "	popq %rbp\n"
    "	ret\n"
    ".size hostcuda_switch, .-hostcuda_switch\n");

enum lane_state {
	LANE_DONE,
	LANE_WAITS, /* in a shuffle */
	LANE_RUNS,
};

struct lane {
	void *stack; /* where it goes on */
	lane_state state;
	uint64_t values[2]; /* brought in even rounds, and in odd ones */
	uint32_t other;
};

/* Of a thread. */
struct warps {
	lane lanes[LANES];
	void *stack; /* of who launches */
	char *stacks;
	uint32_t now; /* the lane that runs */
	uint32_t first; /* thread number of lane 0 */
	uint32_t round;
	void (*fn)(void **args);
	void **args;

	~warps()
	{
		if (stacks)
			munmap(stacks, (size_t)LANES * STACK_BYTES);
	}
};

static thread_local warps mine;

[[noreturn]] static void broken(const char *what)
{
	fprintf(stderr, "kernels_host: %s\n", what);
	abort();
}

static void leave(lane_state state)
{
	lane *l = &mine.lanes[mine.now];

	l->state = state;
	hostcuda_switch(&l->stack, mine.stack);
}

/* What a fiber runs, for ever. */
static void fiber(void)
{
	for (;;) {
		mine.fn(mine.args);
		leave(LANE_DONE);
	}
}

static bool fibers_new(void)
{
	void *p = mmap(nullptr, (size_t)LANES * STACK_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return false;
	mine.stacks = static_cast<char *>(p);
	for (uint32_t i = 0; i < LANES; i++) {
		/* Six registers, where to return to, and a return address that nobody uses, so
		 * that the stack is aligned as in a function that was called. */
		void **top = reinterpret_cast<void **>(mine.stacks + (i + 1) * STACK_BYTES) - 8;

		top[6] = reinterpret_cast<void *>(fiber);
		mine.lanes[i].stack = top;
	}
	return true;
}

uint64_t hostcuda_exchange(uint64_t value, uint32_t other)
{
	const uint32_t odd = mine.round % 2;
	lane *l = &mine.lanes[mine.now];
	const lane *from = &mine.lanes[(mine.now ^ other) % LANES];

	l->values[odd] = value;
	l->other = other;
	leave(LANE_WAITS);
	/* All had come.  Lanes that went on before this one may have brought values for the next
	 * shuffle already, but not for the one after it. */
	return from->values[odd];
}

/* Each lane until it is done or waits.  Return: how many wait. */
static uint32_t round_of(void)
{
	uint32_t n = 0;

	mine.round++;
	for (uint32_t i = 0; i < LANES; i++) {
		lane *l = &mine.lanes[i];

		if (l->state == LANE_DONE)
			continue;
		l->state = LANE_RUNS;
		mine.now = i;
		threadIdx = hostcuda_index{ mine.first + i, 0, 0 };
		hostcuda_switch(&mine.stack, l->stack);
		n += l->state == LANE_WAITS;
	}
	return n;
}

static void run_warp(void)
{
	uint32_t waiting;

	for (lane &l : mine.lanes)
		l.state = LANE_RUNS;
	while ((waiting = round_of()) != 0) {
		if (waiting != LANES)
			broken("lanes of a warp that do not all come to a shuffle");
		for (const lane &l : mine.lanes)
			if (l.other != mine.lanes[0].other)
				broken("lanes of a warp that come to different shuffles");
	}
}

int hostcuda_launch(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
		    void (*lane_fn)(void **args), void **args)
{
	if (shared_bytes || !grid[0] || grid[1] != 1 || grid[2] != 1 || !block[0] ||
	    block[0] > MOST || block[0] % LANES || block[1] != 1 || block[2] != 1)
		return -1;
	if (!mine.stacks && !fibers_new())
		return -1;
	mine.fn = lane_fn;
	mine.args = args;
	gridDim = hostcuda_index{ grid[0], 1, 1 };
	blockDim = hostcuda_index{ block[0], 1, 1 };
	for (uint32_t b = 0; b < grid[0]; b++) {
		blockIdx = hostcuda_index{ b, 0, 0 };
		for (mine.first = 0; mine.first < block[0]; mine.first += LANES)
			run_warp();
	}
	return 0;
}
