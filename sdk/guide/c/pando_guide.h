/* SPDX-License-Identifier: Apache-2.0
 *
 * The ABI between a program on far memory and its guide: code in the same process that knows what the program will touch
 * next. Look the functions up with dlsym(RTLD_DEFAULT, ...): in a process without far memory they do not exist.
 *
 * A hint may be useless, never wrong: no call changes what the program reads, and wrong addresses are ignored.
 * All functions may be called from any thread, but not from a signal handler. docs/guides/write-a-guide.md shows how.
 */
#ifndef PANDO_GUIDE_H
#define PANDO_GUIDE_H

#include <stddef.h>
#include <stdint.h>

#define PANDO_GUIDE_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

struct pando_range {
	const void *start;
	size_t bytes;
};

/* The version that the pager speaks. A guide that was built for another one must not call anything else. */
uint32_t pando_guide_abi(void);

/* Brings the ranges in with as few round trips as possible (one per 512 pages) and returns when they are there; how many
 * pages were fetched. At most 1024 ranges; at most half of the room that is free. */
size_t pando_guide_prefetch(const struct pando_range *ranges, size_t count);

/* 1 if the byte can be read without a fault right now, or is not far memory at all. */
int pando_guide_is_resident(const void *at);

/* Bytes from `at` to the end of the pages of its allocation, without a touch of it; 0 where the pager does not know. An
 * allocator that is built into the program is not seen. The first pagers of ABI 1 lack it: dlsym then finds nothing. */
size_t pando_guide_extent(const void *at);

/* Counts a request, so that `pando mem top` can show rounds per request. */
void pando_guide_request(void);

/* Called at a fault on far memory, in the faulting thread, before the fetch: adds up to `max` ranges that should come
 * along in the same round trip and returns how many. It runs as a signal handler does: it must not allocate, lock, or
 * touch far memory that it has not found resident. `context` is the pointer given at registration. */
typedef size_t (*pando_guide_on_fault)(void *context, const void *at, struct pando_range *out, size_t max);

/* Sets the callback; NULL removes it. Returns the ABI version. */
uint32_t pando_guide_register(pando_guide_on_fault on_fault, void *context);

#ifdef __cplusplus
}
#endif
#endif
