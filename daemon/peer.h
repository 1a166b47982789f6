/*
 * peer.h - who is at the other end of a unix socket, and a descriptor that tells when he is gone.
 *
 * What it guarantees.  Credentials are the kernel's, taken when the peer connected.  The process
 * descriptor stands for that very process: from the socket itself where the kernel has
 * SO_PEERPIDFD (Linux 6.5), else opened by number and checked against the start time, so that a
 * reused process number is told from the peer.  It becomes readable when the process has ended,
 * whoever else holds the socket.
 */
#pragma once

#include "daemon/engine.h"

/*
 * Return: 0 with *ret_peer and *ret_pidfd, which is -1 when the peer's process cannot be watched
 * (it is already gone, or belongs to another pid namespace); negative errno when not even the
 * credentials can be had, or descriptors or memory have run out.
 */
radix_nodiscard int prefixd_peer_get(int fd, struct prefixd_peer *ret_peer, int *ret_pidfd);
/* Start time of a process in clock ticks since boot, 0 when it is gone. */
uint64_t prefixd_process_start(uint32_t pid);
#define PREFIXD_PROCESS_NAME_MAX 32
/* What the kernel calls the process; empty when it is gone. */
void prefixd_process_name(uint32_t pid, char ret_name[PREFIXD_PROCESS_NAME_MAX]);
/* A descriptor of process `pid`, if it is the one that began then; -1 otherwise.  For kernels whose
 * sockets do not give one. */
int prefixd_process_open(uint32_t pid, uint64_t start_time);
