#include "radix/text.h"

void radix_text(struct radix_text *t, const char *s)
{
	while (*s && t->n + 1 < t->cap)
		t->p[t->n++] = *s++;
	if (t->cap)
		t->p[t->n] = 0;
}

void radix_text_u64(struct radix_text *t, uint64_t v)
{
	char digits[21];
	size_t i = sizeof(digits) - 1;

	digits[i] = 0;
	do {
		digits[--i] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	radix_text(t, digits + i);
}

void radix_text_hex(struct radix_text *t, const void *p, size_t n)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++) {
		char two[3] = { "0123456789abcdef"[b[i] >> 4], "0123456789abcdef"[b[i] & 15], 0 };

		radix_text(t, two);
	}
}
