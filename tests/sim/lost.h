/*
 * lost.h - devices that are lost, and come back: lost.c; part of sim_internal.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct proto_open_rep;
struct sim;
struct sim_lease;
struct sim_session;

void sim_device_lose(struct sim *s, uint32_t group);
/* One of them, if there is one to lose. */
void sim_device_lose_some(struct sim *s);
/* After each operation: some work again. */
void sim_devices_turn(struct sim *s);
/* All work again, and the daemon has heard of it. */
void sim_devices_mend(struct sim *s);
bool sim_devices_lost(const struct sim *s);
/* OPEN was answered with this. */
void sim_device_mapped(struct sim *s, struct sim_session *se, uint32_t ns,
		       const struct proto_open_rep *rep);
/*
 * True: the reply to a request in namespace `ns` is that its device is lost, or that it is not open
 * since it was.
 */
bool sim_device_refused(struct sim *s, const struct sim_session *se, uint32_t ns, int status);
/* The worker asks something of a lease whose device was lost, and is told. */
void sim_device_told(struct sim *s, struct sim_session *se, struct sim_lease *l);
/* The same of a reply to a request that waited; true: that was it. */
bool sim_device_over(struct sim *s, const struct sim_session *se, const struct sim_lease *l,
		     int status);
