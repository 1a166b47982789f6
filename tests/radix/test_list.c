/*
 * test_list.c - the list of radix/list.h, as it is used: taken from one, put on another.
 *
 * gcc 12.2 at -O2 assumed that an element's links are no list's head, read the first element once
 * before the loop, and took it for ever: with such a compiler this program does not end.  The
 * project is built with -fno-strict-aliasing for that reason.
 */
#include "radix/list.h"

#include "tests/lib/run.h"

#include <check.h>
#include <unistd.h>

struct item {
	struct radix_list link;
	size_t done, len;
};

struct lists {
	long pad;
	struct radix_list writing, awaiting;
};

static __attribute__((noinline)) size_t written(struct lists *l)
{
	return l->pad ? 6 : 0;
}

/* Six bytes were written, of items of two. */
static __attribute__((noinline)) void account(struct lists *l)
{
	while (!radix_list_empty(&l->writing)) {
		size_t n = written(l);

		while (n) {
			struct item *i = radix_list_first(&l->writing, struct item, link);
			size_t some = n < i->len - i->done ? n : i->len - i->done;

			i->done += some;
			n -= some;
			if (i->done == i->len) {
				radix_list_remove(&i->link);
				radix_list_add_tail(&l->awaiting, &i->link);
			}
		}
	}
}

START_TEST(first_is_read_again)
{
	struct item v[3] = { 0 };
	struct lists l = { .pad = 1 };
	struct radix_list *it;
	int n = 0;

	radix_list_init(&l.writing);
	radix_list_init(&l.awaiting);
	for (int i = 0; i < 3; i++) {
		v[i].len = 2;
		radix_list_add_tail(&l.writing, &v[i].link);
	}
	(void)alarm(10); /* a loop without end ends the test */
	account(&l);
	(void)alarm(0);
	ck_assert(radix_list_empty(&l.writing));
	radix_list_foreach(it, &l.awaiting)
		ck_assert_ptr_eq(radix_list_entry(it, struct item, link), &v[n++]);
	ck_assert_int_eq(n, 3);
}
END_TEST

START_TEST(removing_twice_is_harmless)
{
	struct radix_list head, a = { 0 };

	radix_list_init(&head);
	radix_list_remove(&a); /* never on a list */
	ck_assert(!radix_list_linked(&a));
	radix_list_add_head(&head, &a);
	ck_assert(radix_list_linked(&a));
	radix_list_remove(&a);
	radix_list_remove(&a);
	ck_assert(!radix_list_linked(&a));
	ck_assert(radix_list_empty(&head));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("list");
	TCase *t = tcase_create("list");

	tcase_add_test(t, first_is_read_again);
	tcase_add_test(t, removing_twice_is_harmless);
	suite_add_tcase(s, t);
	return test_run(s);
}
