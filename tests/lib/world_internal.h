/*
 * world_internal.h - shared by world.c and world_client.c.
 */
#pragma once

#include "tests/lib/world.h"

/* A line of the transcript, when one is kept. */
__attribute__((format(printf, 2, 3))) void world_note(struct world *w, const char *fmt, ...);
/* A reply lies in c->h and c->body: print it, and decode an error. */
void world_client_got(struct world_client *c);
/* An EVENT came: checked, noted, kept for world_event(). */
void world_client_event(struct world_client *c, const struct proto_header *h, const void *body);
