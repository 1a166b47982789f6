/*
 * test_reply.c - replies out of a stream, however it is cut, and streams that are none.
 */
#include "daemon/redis_reply.h"
#include "tests/lib/run.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdlib.h>

#define MAX_STRING 1000u

static char log_text[8192];
static size_t log_len;
static bool accept_all;
static struct prefixd_replies *replies;

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	log_len += (size_t)vsnprintf(log_text + log_len, sizeof(log_text) - log_len, format, ap);
	va_end(ap);
}

static void note_text(size_t len, const char *text)
{
	note("%zu(%.*s)", len, (int)(len > 20 ? 20 : len), text);
}

static bool on_reply(void *ctx, const struct prefixd_reply *r)
{
	static const char kinds[] = "+-:_$*!";

	ck_assert_ptr_eq(ctx, &replies);
	note("%c", kinds[r->kind]);
	switch (r->kind) {
	case PREFIXD_REPLY_STATUS:
	case PREFIXD_REPLY_ERROR:
	case PREFIXD_REPLY_STRING:
		note_text(r->len, r->text);
		break;
	case PREFIXD_REPLY_INTEGER:
	case PREFIXD_REPLY_OVERSIZED:
		note("%lld", (long long)r->integer);
		break;
	case PREFIXD_REPLY_NIL:
		break;
	case PREFIXD_REPLY_ARRAY:
		note("%u[", r->n_parts);
		for (uint32_t i = 0; i < r->n_parts; i++) {
			if (r->parts[i].string)
				note_text(r->parts[i].len, r->parts[i].text);
			else
				note("?");
		}
		note("]");
	}
	note(" ");
	return accept_all;
}

static void setup(void)
{
	log_len = 0;
	log_text[0] = 0;
	accept_all = true;
	ck_assert_int_eq(prefixd_replies_new(&replies, MAX_STRING, on_reply, &replies), 0);
}

static void teardown(void)
{
	replies = prefixd_replies_free(replies);
}

/* Feeds all of it in pieces, each in memory of exactly its size.  Return: of the last call. */
static int feed(const char *p, size_t n, size_t piece)
{
	int r = 0;

	while (n && r == 0) {
		size_t some = n < piece ? n : piece;
		char *copy = malloc(some);

		ck_assert_ptr_nonnull(copy);
		memcpy(copy, p, some);
		r = prefixd_replies_feed(replies, copy, some);
		free(copy);
		p += some;
		n -= some;
	}
	return r;
}

#define TEXT(s) s, sizeof(s) - 1

static const char stream[] = "+OK\r\n$5\r\nhello\r\n:42\r\n$-1\r\n-ERR no such thing\r\n"
			     "*3\r\n$2\r\nab\r\n$-1\r\n:7\r\n*0\r\n$0\r\n\r\n*-1\r\n:-5\r\n";
static const char said[] =
	"+2(OK) $5(hello) :42 _ -17(ERR no such thing) *3[2(ab)??] *0[] $0() _ :-5 ";

START_TEST(any_cut)
{
	for (size_t piece = 1; piece <= sizeof(stream); piece++) {
		log_len = 0;
		ck_assert_int_eq(feed(TEXT(stream), piece), 0);
		ck_assert_str_eq(log_text, said);
	}
}
END_TEST

START_TEST(in_two)
{
	for (size_t cut = 1; cut < sizeof(stream) - 1; cut++) {
		log_len = 0;
		ck_assert_int_eq(feed(stream, cut, cut), 0);
		ck_assert_int_eq(feed(stream + cut, sizeof(stream) - 1 - cut, sizeof(stream)), 0);
		ck_assert_str_eq(log_text, said);
	}
}
END_TEST

/* A string too long is reported at once, read past, and what follows is understood. */
START_TEST(oversized)
{
	static const size_t pieces[] = { 1, 7, 100, 1001, 5000 };

	for (size_t i = 0; i < radix_array_size(pieces); i++) {
		char text[2200];
		size_t n = (size_t)snprintf(text, sizeof(text), "+a\r\n$2000\r\n");

		memset(text + n, '$', 2000);
		n += 2000;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "\r\n:1\r\n$1001\r\n");
		log_len = 0;
		ck_assert_int_eq(feed(text, n, pieces[i]), 0);
		ck_assert_str_eq(log_text, "+1(a) !2000 :1 !1001 ");
		memset(text, 'x', 1001);
		memcpy(text + 1001, "\r\n:2\r\n", 6);
		ck_assert_int_eq(feed(text, 1007, pieces[i]), 0);
		ck_assert_str_eq(log_text, "+1(a) !2000 :1 !1001 :2 ");
	}
	/* As long as is allowed is not too long. */
	log_len = 0;
	ck_assert_int_eq(feed(TEXT("$1000\r\n"), 100), 0);
	for (int i = 0; i < 10; i++) {
		char text[100];

		memset(text, 'y', sizeof(text));
		ck_assert_int_eq(feed(text, sizeof(text), 100), 0);
	}
	ck_assert_int_eq(feed(TEXT("\r\n"), 100), 0);
	ck_assert_str_eq(log_text, "$1000(yyyyyyyyyyyyyyyyyyyy) ");
}
END_TEST

/* Large strings go another way, and come out the same; whatever is around them, however cut. */
START_TEST(large)
{
	static const size_t lens[] = { 499, 500, 501, 999, 1000 };
	char text[8192];
	size_t n = 0;

	for (size_t i = 0; i < radix_array_size(lens); i++) {
		n += (size_t)snprintf(text + n, sizeof(text) - n, "$%zu\r\n", lens[i]);
		memset(text + n, 'a' + (int)i, lens[i]);
		n += lens[i];
		n += (size_t)snprintf(text + n, sizeof(text) - n, "\r\n:%zu\r\n$1\r\nx\r\n", i);
	}
	for (size_t piece = 1; piece <= n; piece += piece < 40 ? 1 : 37) {
		log_len = 0;
		ck_assert_int_eq(feed(text, n, piece), 0);
		ck_assert_str_eq(
			log_text,
			"$499(aaaaaaaaaaaaaaaaaaaa) :0 $1(x) $500(bbbbbbbbbbbbbbbbbbbb) :1 "
			"$1(x) $501(cccccccccccccccccccc) :2 $1(x) "
			"$999(dddddddddddddddddddd) :3 $1(x) "
			"$1000(eeeeeeeeeeeeeeeeeeee) :4 $1(x) ");
	}
	/* Its line must end as lines do. */
	memcpy(text + 6 + 499, "\n\r", 2);
	ck_assert_int_eq(feed(TEXT("$900\r\n"), 100), 0);
	ck_assert_int_eq(feed(text + 6, 499, 100), 0);
	ck_assert_int_eq(feed(text + 6, 401, 401), 0);
	ck_assert_int_eq(feed(TEXT("\n\r"), 2), -EPROTO);
}
END_TEST

START_TEST(half_a_gigabyte_takes_no_memory)
{
	static char zero[1 << 16];
	size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;

	ck_assert_int_eq(feed(TEXT("$536870912\r\n"), 100), 0);
	ck_assert_str_eq(log_text, "!536870912 ");
	for (int i = 0; i < 536870912 / (1 << 16); i++)
		ck_assert_int_eq(prefixd_replies_feed(replies, zero, sizeof(zero)), 0);
	ck_assert_uint_lt(mallinfo2().uordblks + mallinfo2().hblkhd, before + (1 << 20));
	ck_assert_int_eq(feed(TEXT("\r\n:9\r\n"), 100), 0);
	ck_assert_str_eq(log_text, "!536870912 :9 ");
}
END_TEST

/* None of these is a reply to anything that is asked. */
static const char *const garbage[] = {
	"HTTP/1.1 400 Bad Request\r\n",
	"\r\n",
	"\0\0\0\0",
	"$536870913\r\n",
	"$99999999999999999999\r\n",
	"$-2\r\n",
	"$12x\r\n",
	"$+5\r\nhello\r\n",
	":12x\r\n",
	":\r\n",
	"*257\r\n",
	"*2147483647\r\n",
	"*4294967297\r\n",
	"*1000000000000\r\n",
	"*-2\r\n",
	"*1\r\n*1\r\n$1\r\na\r\n",
	"*1\r\n*0\r\n",
	"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
	"*2\r\n:1\r\nxx\r\n",
	"*1\r\n$100000\r\n",
	">2\r\n$7\r\nmessage\r\n$1\r\na\r\n",
	"%1\r\n+a\r\n:1\r\n",
	"_\r\n",
	"#t\r\n",
};

START_TEST(no_protocol)
{
	const char *text = garbage[_i];
	size_t n = text[0] ? strlen(text) : 4;

	for (size_t piece = 1; piece <= n; piece++) {
		ck_assert_int_eq(prefixd_replies_reset(replies), 0);
		ck_assert_int_eq(feed(TEXT("+OK\r\n"), 100), 0);
		ck_assert_msg(feed(text, n, piece) == -EPROTO, "accepted: %s", text);
		/* It stays so until another connection begins. */
		ck_assert_int_eq(feed(TEXT("+OK\r\n"), 100), -EPROTO);
	}
	log_len = 0;
	ck_assert_int_eq(prefixd_replies_reset(replies), 0);
	ck_assert_int_eq(feed(TEXT("+OK\r\n"), 100), 0);
	ck_assert_str_eq(log_text, "+2(OK) ");
}
END_TEST

/* Lines and strings in arrays that never end. */
START_TEST(without_end)
{
	static const char *const begins[] = {
		"+", "-", ":", "$", "*", "*3\r\n$1\r\na\r\n+", "*2\r\n$60000\r\n"
	};
	static char more[1000];
	size_t fed = 0;
	int r;

	memset(more, '1', sizeof(more));
	r = feed(begins[_i], strlen(begins[_i]), 100);
	for (; r == 0 && fed < 1 << 20; fed += sizeof(more))
		r = prefixd_replies_feed(replies, more, sizeof(more));
	ck_assert_int_eq(r, -EPROTO);
	ck_assert_uint_lt(fed, 80 << 10);
}
END_TEST

START_TEST(refused_by_the_owner)
{
	accept_all = false;
	ck_assert_int_eq(feed(TEXT(":1\r\n:2\r\n"), 100), -EPROTO);
	ck_assert_str_eq(log_text, ":1 ");
	ck_assert_int_eq(prefixd_replies_reset(replies), 0);
	ck_assert_int_eq(feed(TEXT("*1\r\n:2\r\n"), 100), -EPROTO);
	ck_assert_int_eq(prefixd_replies_reset(replies), 0);
	ck_assert_int_eq(feed(TEXT("$5000\r\n"), 100), -EPROTO);
	ck_assert_str_eq(log_text, ":1 *1[?] !5000 ");
}
END_TEST

/* Elements too long to keep are not kept, and not mistaken for anything. */
START_TEST(parts)
{
	char text[400];
	size_t n = (size_t)snprintf(text, sizeof(text),
				    "*3\r\n$101\r\n%0101d\r\n$100\r\n%0100d\r\n+s\r\n", 1, 2);

	ck_assert_int_eq(feed(text, n, 13), 0);
	ck_assert_str_eq(log_text, "*3[?100(00000000000000000000)?] ");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("redis reply");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, any_cut);
	tcase_add_test(tc, in_two);
	tcase_add_test(tc, oversized);
	tcase_add_test(tc, large);
	tcase_add_test(tc, half_a_gigabyte_takes_no_memory);
	tcase_add_loop_test(tc, no_protocol, 0, (int)radix_array_size(garbage));
	tcase_add_loop_test(tc, without_end, 0, 7);
	tcase_add_test(tc, refused_by_the_owner);
	tcase_add_test(tc, parts);
	suite_add_tcase(s, tc);
	return test_run(s);
}
