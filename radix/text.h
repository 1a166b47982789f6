/*
 * text.h - sentences without stdio: what verify and dump say.  Cut at the buffer's end, always
 * terminated.
 */
#pragma once

#include "radix/base.h"

struct radix_text {
	char *p;
	size_t cap;
	size_t n;
};

void radix_text(struct radix_text *t, const char *s);
void radix_text_u64(struct radix_text *t, uint64_t v);
void radix_text_hex(struct radix_text *t, const void *p, size_t n);
