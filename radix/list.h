/*
 * list.h - circular intrusive doubly linked list.
 *
 * A head is a list whose links point to itself when empty.  Removing an element re-initialises its
 * links, so removing twice is harmless and radix_list_linked() tells whether it is on a list.
 */
#pragma once

#include "radix/base.h"

struct radix_list {
	struct radix_list *next;
	struct radix_list *prev;
};

static inline void radix_list_init(struct radix_list *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool radix_list_empty(const struct radix_list *l)
{
	return l->next == l;
}

static inline bool radix_list_linked(const struct radix_list *l)
{
	return l->next && l->next != l;
}

static inline void radix_list_add_tail(struct radix_list *head, struct radix_list *l)
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}

static inline void radix_list_add_head(struct radix_list *head, struct radix_list *l)
{
	radix_list_add_tail(head->next, l);
}

static inline void radix_list_remove(struct radix_list *l)
{
	if (!l->next)
		return;
	l->prev->next = l->next;
	l->next->prev = l->prev;
	radix_list_init(l);
}

#define radix_list_entry(ptr, type, member)  radix_container_of(ptr, type, member)
#define radix_list_first(head, type, member) radix_list_entry((head)->next, type, member)

#define radix_list_foreach(it, head) for ((it) = (head)->next; (it) != (head); (it) = (it)->next)

#define radix_list_foreach_safe(it, tmp, head)                        \
	for ((it) = (head)->next, (tmp) = (it)->next; (it) != (head); \
	     (it) = (tmp), (tmp) = (it)->next)
