/*
 * text.c - see text.h.
 */
#include "clients/llama/text.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT     "\xef\xbf\xbd"
#define REPLACEMENT_LEN 3

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/*
 * Looks at the character at the front: *ret_need is its whole length by its first byte, the
 * result how many of its bytes are there and right.  Need 0: no character begins with this byte.
 */
static size_t look(const unsigned char *s, size_t len, size_t *ret_need)
{
	unsigned char low = 0x80, high = 0xbf; /* of the second byte */
	size_t need, n;

	if (s[0] < 0x80) {
		*ret_need = 1;
		return 1;
	}
	if (s[0] < 0xc2 || s[0] > 0xf4) {
		*ret_need = 0;
		return 0;
	}
	need = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	if (s[0] == 0xe0)
		low = 0xa0; /* shorter forms exist */
	else if (s[0] == 0xed)
		high = 0x9f; /* surrogates */
	else if (s[0] == 0xf0)
		low = 0x90;
	else if (s[0] == 0xf4)
		high = 0x8f; /* beyond U+10FFFF */
	for (n = 1; n < need && n < len && s[n] >= low && s[n] <= high; n++) {
		low = 0x80;
		high = 0xbf;
	}
	*ret_need = need;
	return n;
}

size_t text_character(const char *bytes, size_t len)
{
	size_t need, have = len ? look((const unsigned char *)bytes, len, &need) : 0;

	return len && need && have == need ? need : 0;
}

/* Bytes at the end that begin a character and may become a whole one. */
static size_t unfinished(const char *bytes, size_t len)
{
	for (size_t n = 1; n <= 3 && n <= len; n++) {
		size_t need, have = look((const unsigned char *)bytes + len - n, n, &need);

		if (need > 1 && have == n && need > n)
			return n;
	}
	return 0;
}

/* Writes `bytes` with what is no UTF-8 replaced; out has 3 bytes for each. */
static size_t clean(const char *bytes, size_t len, char *out)
{
	size_t n = 0;

	for (size_t i = 0; i < len;) {
		size_t need, have = look((const unsigned char *)bytes + i, len - i, &need);

		if (need && have == need) {
			memcpy(out + n, bytes + i, need);
			n += need;
			i += need;
			continue;
		}
		/* One replacement for what began well and broke off, as decoders commonly do. */
		memcpy(out + n, REPLACEMENT, REPLACEMENT_LEN);
		n += REPLACEMENT_LEN;
		i += have ? have : 1;
	}
	return n;
}

char *text_clean(const char *bytes, size_t len, size_t *ret_len)
{
	char *out = len < SIZE_MAX / REPLACEMENT_LEN ? malloc(len * REPLACEMENT_LEN + 1) : NULL;

	if (!out)
		return NULL;
	*ret_len = clean(bytes, len, out);
	out[*ret_len] = '\0';
	return out;
}

/* ---- stop words ------------------------------------------------------------------------------ */

/* Where the earliest stop word begins; SIZE_MAX: there is none. */
static size_t find_stop(const struct text *text)
{
	size_t best = SIZE_MAX;

	for (size_t i = 0; i < text->n_stops; i++) {
		const char *at = memmem(text->held, text->held_len, text->stops[i],
					strlen(text->stops[i]));

		if (at && (size_t)(at - text->held) < best)
			best = (size_t)(at - text->held);
	}
	return best;
}

/* Bytes at the end that a stop word begins with. */
static size_t stop_begun(const struct text *text)
{
	size_t most = 0;

	for (size_t i = 0; i < text->n_stops; i++) {
		size_t n = strlen(text->stops[i]) - 1;

		for (n = n < text->held_len ? n : text->held_len; n > most; n--)
			if (memcmp(text->held + text->held_len - n, text->stops[i], n) == 0)
				most = n;
	}
	return most;
}

/* ---- the text -------------------------------------------------------------------------------- */

static int grow(char **buf, size_t *cap, size_t want)
{
	size_t n = *cap ? *cap : 64;
	char *p;

	if (want <= *cap)
		return 0;
	while (n < want)
		n *= 2;
	p = realloc(*buf, n);
	if (!p)
		return -ENOMEM;
	*buf = p;
	*cap = n;
	return 0;
}

void text_deinit(struct text *text)
{
	free(text->held);
	free(text->out);
	*text = (struct text){ 0 };
}

int text_add(struct text *text, const char *bytes, size_t len, bool last, const char **ret,
	     size_t *ret_len)
{
	size_t sure, at;

	if (text->stopped)
		len = 0;
	if (grow(&text->held, &text->held_cap, text->held_len + len + 1) < 0 ||
	    grow(&text->out, &text->out_cap, (text->held_len + len) * REPLACEMENT_LEN + 1) < 0)
		return -ENOMEM;
	if (len)
		memcpy(text->held + text->held_len, bytes, len);
	text->held_len += len;

	at = find_stop(text);
	sure = text->held_len;
	if (at != SIZE_MAX) {
		text->stopped = true;
		text->held_len = sure = at;
	} else if (!last) {
		size_t begun = stop_begun(text);

		/* Before the beginning of a stop word, which is a character's, nothing is open. */
		sure -= begun ? begun : unfinished(text->held, text->held_len);
	}
	*ret_len = clean(text->held, sure, text->out);
	*ret = text->out;
	memmove(text->held, text->held + sure, text->held_len - sure);
	text->held_len -= sure;
	return 0;
}
