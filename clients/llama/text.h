/*
 * text.h - what the tokens say so far, as text that can be shown.
 *
 * A token may end in the middle of a character, and a stop word may begin in one token and end
 * three later.  So bytes are held back until they are whole characters and cannot be the beginning
 * of a stop word any more.  What comes out is always UTF-8: bytes that are none become U+FFFD.
 */
#ifndef LLAMA_TEXT_H
#define LLAMA_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialised, but for the stop words, which are borrowed: terminated, none of them empty. */
struct text {
	const char *const *stops;
	size_t n_stops;
	bool stopped; /* a stop word came; it and everything after it is dropped */

	char *held; /* bytes that came and were not given out */
	size_t held_len, held_cap;
	char *out;
	size_t out_cap;
};

void text_deinit(struct text *text);
/*
 * Adds bytes; *ret are those that are certain now, valid until the next call.  `last`: nothing
 * follows, so nothing is held back.  0; -ENOMEM.
 */
int text_add(struct text *text, const char *bytes, size_t len, bool last, const char **ret,
	     size_t *ret_len);

/* Bytes of the character that `bytes` begins with; 0: it does not begin with a whole one. */
size_t text_character(const char *bytes, size_t len);
/* A malloc'd, terminated copy in UTF-8; NULL: out of memory. */
char *text_clean(const char *bytes, size_t len, size_t *ret_len);

#endif
