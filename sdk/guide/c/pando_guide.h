/* SPDX-License-Identifier: Apache-2.0
 *
 * The ABI between a program on far memory and its guide. A guide is code in the same process that
 * predicts the program's next accesses. Look the functions up with dlsym(RTLD_DEFAULT, ...): in a
 * process without far memory they do not exist.
 *
 * A hint may be useless, never wrong: no call changes the bytes that the program reads, and wrong
 * addresses are ignored. All functions may be called from any thread, but not from a signal
 * handler. A callback for faults may call pando_guide_read, pando_guide_is_resident and
 * pando_guide_extent. docs/guides/write-a-guide.md shows how.
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

/* Returns the pager's ABI version. A guide built for another version must make no other call. */
uint32_t pando_guide_abi(void);

/* Fetches the ranges with as few round trips as possible (one per 512 pages), and waits for them.
 * Returns the number of pages fetched. At most 1024 ranges; at most half of the free room. */
size_t pando_guide_prefetch(const struct pando_range *ranges, size_t count);

/* Returns 1 if the byte can be read without a fault right now, or is not far memory. */
int pando_guide_is_resident(const void *at);

/* Returns the bytes from `at` to the end of its allocation's pages, without touching them. Returns
 * 0 for an unknown allocation. The pager does not see an allocator built into the program. The
 * first pagers of ABI 1 lack this function: dlsym then returns NULL. */
size_t pando_guide_extent(const void *at);

/* Copies memory of the program without a fault, up to the first page that is absent. Returns how
 * many bytes it copied. The evictor takes no page away meanwhile. A callback for faults reads the
 * program's structures by it, into a variable of its own. The first pagers of ABI 1 lack this
 * function. */
size_t pando_guide_read(void *to, const void *from, size_t bytes);

/* Counts a request, so that `pando mem top` can show rounds per request. */
void pando_guide_request(void);

/* Called at a fault on far memory, in the faulting thread, before the fetch. It adds up to `max`
 * ranges to the same round trip and returns their number. It runs like a signal handler: it must
 * not allocate, lock, or touch far memory. pando_guide_read copies memory for it. `context` is the
 * pointer given at registration. */
typedef size_t (*pando_guide_on_fault)(void *context, const void *at, struct pando_range *out,
				       size_t max);

/* Sets the callback; NULL removes it. Returns the ABI version. */
uint32_t pando_guide_register(pando_guide_on_fault on_fault, void *context);

#ifdef __cplusplus
}
#endif
#endif
