/*
 * redis_epoch.c - epochs of namespaces, shared by way of Redis.
 *
 * An epoch in Redis is 52 characters: "1", the number, the nonce and a check, in hex, with blanks
 * between.  The check is keyed BLAKE2b over the namespace and both, so that no damage and nobody
 * without the naming key can raise an epoch.  It has no TTL: it has to outlive every value.
 *
 * Of two epochs the greater one counts, by number, then by nonce.  Whoever knows a greater one than
 * Redis writes it there; all look once a second.  Two daemons that raise at the same moment agree
 * within two looks: the lesser one may be written last, and is written over by the next look of
 * whoever raised the greater.
 */
#include "daemon/redis_internal.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

bool prefixd_epoch_greater(struct prefixd_epoch a, struct prefixd_epoch b)
{
	return a.n != b.n ? a.n > b.n : a.nonce > b.nonce;
}

/* ---- as text --------------------------------------------------------------------------------- */

static uint64_t check_of(const uint8_t naming_key[32], const uint8_t digest[32],
			 struct prefixd_epoch epoch)
{
	static const char purpose[] = "prefixd epoch 1";
	uint8_t in[sizeof(purpose) - 1 + 32 + 16], out[16];
	uint64_t check = 0;
	uint8_t *p = in;

	/* Every part has a fixed length: no two epochs give the same bytes. */
	memcpy(p, purpose, sizeof(purpose) - 1);
	p += sizeof(purpose) - 1;
	memcpy(p, digest, 32);
	p += 32;
	for (unsigned i = 0; i < 8; i++) {
		p[i] = (uint8_t)(epoch.n >> (8 * i));
		p[8 + i] = (uint8_t)(epoch.nonce >> (8 * i));
	}
	(void)crypto_generichash(out, sizeof(out), in, sizeof(in), naming_key, 32);
	for (unsigned i = 0; i < 8; i++)
		check |= (uint64_t)out[i] << (8 * i);
	return check;
}

void prefixd_epoch_print(const uint8_t naming_key[32], const uint8_t digest[32],
			 struct prefixd_epoch epoch, char ret_text[PREFIXD_EPOCH_TEXT])
{
	char text[PREFIXD_EPOCH_TEXT + 1];

	snprintf(text, sizeof(text), "1 %016llx %016llx %016llx", (unsigned long long)epoch.n,
		 (unsigned long long)epoch.nonce,
		 (unsigned long long)check_of(naming_key, digest, epoch));
	memcpy(ret_text, text, PREFIXD_EPOCH_TEXT);
}

static bool hex_parse(const char *p, uint64_t *ret)
{
	uint64_t v = 0;

	for (int i = 0; i < 16; i++) {
		unsigned d = (unsigned char)p[i];

		if (d >= '0' && d <= '9')
			d -= '0';
		else if (d >= 'a' && d <= 'f')
			d -= 'a' - 10;
		else
			return false;
		v = v << 4 | d;
	}
	*ret = v;
	return true;
}

bool prefixd_epoch_parse(const uint8_t naming_key[32], const uint8_t digest[32], const char *text,
			 size_t len, struct prefixd_epoch *ret_epoch)
{
	struct prefixd_epoch epoch;
	uint64_t check;

	if (len != PREFIXD_EPOCH_TEXT || text[0] != '1' || text[1] != ' ' || text[18] != ' ' ||
	    text[35] != ' ' || !hex_parse(text + 2, &epoch.n) ||
	    !hex_parse(text + 19, &epoch.nonce) || !hex_parse(text + 36, &check) ||
	    check != check_of(naming_key, digest, epoch))
		return false;
	*ret_epoch = epoch;
	return true;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* MGET of some of the table. */
static int ask_some(struct prefixd_redis *r, uint32_t first, uint32_t n)
{
	struct prefixd_redis_word words[PREFIXD_REPLY_PARTS + 1] = { { "MGET", 4 } };
	struct prefixd_redis_command *c = prefixd_command_new(r, PREFIXD_COMMAND_EPOCHS);
	char(*keys)[PREFIXD_REDIS_EPOCH_LEN] = malloc((size_t)n * PREFIXD_REDIS_EPOCH_LEN);
	int ret = -ENOMEM;

	if (c && keys) {
		for (uint32_t i = 0; i < n; i++) {
			prefixd_name_epoch_key(r->epochs[first + i].digest, keys[i]);
			words[1 + i] = (struct prefixd_redis_word){ keys[i], sizeof(keys[i]) };
		}
		c->first = first;
		c->n = n;
		ret = prefixd_command_words(c, words, n + 1);
	}
	free(keys);
	if (ret < 0) {
		if (c)
			prefixd_command_free(c);
		return ret;
	}
	prefixd_line_send(r, c);
	r->epochs_asked++;
	return 0;
}

void prefixd_epochs_ask(struct prefixd_redis *r, uint64_t now_ns)
{
	if (r->epochs_asked)
		return;
	r->epochs_ns = now_ns;
	for (uint32_t i = 0; i < r->n_epochs; i += PREFIXD_REPLY_PARTS) {
		/* Without memory: in a second. */
		if (ask_some(r, i, radix_min_u32(r->n_epochs - i, PREFIXD_REPLY_PARTS)) < 0)
			break;
	}
}

/* ---- knowing --------------------------------------------------------------------------------- */

int prefixd_epochs_learn(struct prefixd_redis *r, const uint8_t digest[32],
			 struct prefixd_epoch epoch, bool raised)
{
	struct prefixd_redis_epoch *e = NULL;

	for (uint32_t i = 0; i < r->n_epochs && !e; i++) {
		if (!memcmp(r->epochs[i].digest, digest, 32))
			e = &r->epochs[i];
	}
	if (!e) {
		if (r->n_epochs == r->cap_epochs) {
			uint32_t cap = r->cap_epochs ? r->cap_epochs * 2 : 16;
			struct prefixd_redis_epoch *v = realloc(r->epochs,
								cap * sizeof(*r->epochs));

			if (!v)
				return -ENOMEM;
			r->epochs = v;
			r->cap_epochs = cap;
		}
		e = &r->epochs[r->n_epochs++];
		*e = (struct prefixd_redis_epoch){ .epoch = epoch };
		memcpy(e->digest, digest, 32);
		if (r->breaker.state == PREFIXD_BREAKER_CLOSED && !r->broken)
			(void)ask_some(r, r->n_epochs - 1, 1); /* else within a second */
	} else if (prefixd_epoch_greater(epoch, e->epoch)) {
		e->epoch = epoch;
		e->tell = false;
	} else if (prefixd_epoch_greater(e->epoch, epoch)) {
		e->tell = true; /* it crossed the message that tells, or that was lost */
	}
	if (raised && !prefixd_epoch_greater(e->epoch, epoch))
		e->set = true;
	return 0;
}

static void tell(struct prefixd_redis *r, struct prefixd_redis_epoch *e)
{
	struct prefixd_redis_message *m = calloc(1, sizeof(*m));

	if (!m)
		return; /* it stays to be told */
	m->message.kind = PREFIXD_REDIS_EPOCH_SEEN;
	memcpy(m->ns_digest, e->digest, 32);
	m->epoch = e->epoch;
	e->tell = false;
	prefixd_redis_post(r, m);
}

static void set(struct prefixd_redis *r, struct prefixd_redis_epoch *e)
{
	struct prefixd_redis_command *c = prefixd_command_new(r, PREFIXD_COMMAND_EPOCH_SET);
	char key[PREFIXD_REDIS_EPOCH_LEN], text[PREFIXD_EPOCH_TEXT];

	if (!c)
		return; /* it stays to be set */
	prefixd_name_epoch_key(e->digest, key);
	prefixd_epoch_print(r->config.naming_key, e->digest, e->epoch, text);
	c->first = (uint32_t)(e - r->epochs);
	if (prefixd_command_words(c,
				  (struct prefixd_redis_word[]){ { "SET", 3 },
								 { key, sizeof(key) },
								 { text, sizeof(text) } },
				  3) < 0) {
		prefixd_command_free(c);
		return;
	}
	e->set = false;
	prefixd_line_send(r, c);
}

void prefixd_epochs_settle(struct prefixd_redis *r)
{
	bool up = r->breaker.state == PREFIXD_BREAKER_CLOSED && !r->broken;

	for (uint32_t i = 0; i < r->n_epochs; i++) {
		if (r->epochs[i].tell)
			tell(r, &r->epochs[i]);
		if (r->epochs[i].set && up)
			set(r, &r->epochs[i]);
	}
}

/* What Redis has for one namespace. */
static void seen(struct prefixd_redis *r, struct prefixd_redis_epoch *e,
		 const struct prefixd_reply_part *part)
{
	struct prefixd_epoch epoch = { 0, 0 };

	if (part->string &&
	    !prefixd_epoch_parse(r->config.naming_key, e->digest, part->text, part->len, &epoch))
		prefixd_count(&r->counts.bad_values[PREFIXD_REDIS_BAD_CHECKSUM], 1);
	if (prefixd_epoch_greater(epoch, e->epoch)) {
		e->epoch = epoch;
		e->tell = true;
	} else if (prefixd_epoch_greater(e->epoch, epoch)) {
		e->set = true;
	}
}

bool prefixd_epochs_reply(struct prefixd_redis *r, struct prefixd_redis_command *c,
			  const struct prefixd_reply *reply)
{
	bool asked = c->kind == PREFIXD_COMMAND_EPOCHS;

	if (asked)
		r->epochs_asked--;
	if (reply->kind == PREFIXD_REPLY_ERROR) {
		enum prefixd_redis_error error = prefixd_redis_error_of(reply->text, reply->len);

		/* A Redis that is full refuses epochs like blocks, and is well otherwise. */
		if (error == PREFIXD_REDIS_ERROR_OOM || error == PREFIXD_REDIS_ERROR_READONLY)
			prefixd_count(&r->counts.errors[error], 1);
		else
			prefixd_redis_failed(r, error);
		return true; /* what was to be set is found out by the next look */
	}
	if (!asked)
		return reply->kind == PREFIXD_REPLY_STATUS;
	if (reply->kind != PREFIXD_REPLY_ARRAY || reply->n_parts != c->n)
		return false;
	for (uint32_t i = 0; i < c->n; i++)
		seen(r, &r->epochs[c->first + i], &reply->parts[i]);
	return true;
}

void prefixd_epochs_lost(struct prefixd_redis *r)
{
	r->epochs_asked = 0; /* all are asked for when it is back, and so set again where needed */
}
