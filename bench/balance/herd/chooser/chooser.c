/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The choice of bpf/choose.h as a program of user space, for some ingress hosts in virtual time. It
 * reads words of 32 bits, in the machine's order, and answers each choice with one. The first words
 * are the number of buckets, then the endpoint of each bucket. Then follow orders of four words. */
#include <linux/bpf.h>
#include <stdio.h>

/* The helpers of the kernel that the choice calls, under the names that it calls them by. */
#define bpf_map_lookup_elem kernel_map_lookup_elem
#define bpf_loop kernel_loop
#define bpf_ktime_get_coarse_ns kernel_ktime_get_coarse_ns
#define bpf_spin_lock kernel_spin_lock
#define bpf_spin_unlock kernel_spin_unlock
#include <bpf/bpf_helpers.h>
#undef bpf_map_lookup_elem
#undef bpf_loop
#undef bpf_ktime_get_coarse_ns
#undef bpf_spin_lock
#undef bpf_spin_unlock

static void *bpf_map_lookup_elem(void *map, const void *key);
static long bpf_loop(__u32 times, void *step, void *ctx, __u64 flags);
static __u64 bpf_ktime_get_coarse_ns(void) { return 0; }
#define bpf_spin_lock(lock) ((void)(lock))
#define bpf_spin_unlock(lock) ((void)(lock))

#include "choose.h"

#define HOSTS_MAX 64
#define INSTANCES_MAX 1024
#define BUCKETS_MAX (CHUNK_BUCKETS * SLAB_CHUNKS)

enum verb { SET_SCORE, SET_POLICY, END_FLOW, CHOOSE };

static struct service service = {.endpoints = {1}};
static struct policy policy = {.until = 1};
static struct chunk chunks[SLAB_CHUNKS];
static __u32 score[HOSTS_MAX][INSTANCES_MAX];
static __s32 flow_count[HOSTS_MAX][INSTANCES_MAX];
static __u32 host; /* that chooses now */
static char the_slab;

static void *bpf_map_lookup_elem(void *map, const void *key)
{
	__u32 n = *(const __u32 *)key;

	if (map == &services)
		return &service;
	if (map == &slabs)
		return &the_slab;
	if (map == &the_slab)
		return &chunks[n];
	if (map == &policies)
		return &policy;
	if (map == &scores)
		return &score[host][n];
	if (map == &live)
		return &flow_count[host][n];
	return NULL;
}

static long bpf_loop(__u32 times, void *step, void *ctx, __u64 flags)
{
	long (*once)(__u32, void *) = step;

	(void)flags;
	for (__u32 n = 0; n < times; n++)
		if (once(n, ctx))
			return n + 1;
	return times;
}

static int read_word(__u32 *word) { return fread(word, sizeof(*word), 1, stdin) == 1; }

static int read_table(void)
{
	__u32 buckets, at;

	if (!read_word(&buckets) || buckets < CHUNK_BUCKETS || buckets > BUCKETS_MAX)
		return 0;
	service.places[0].mask = buckets - 1;
	for (__u32 n = 0; n < buckets; n++) {
		if (!read_word(&at) || at >= INSTANCES_MAX)
			return 0;
		chunks[n / CHUNK_BUCKETS].endpoint[n % CHUNK_BUCKETS] = at;
	}
	return 1;
}

/* An order has its kind, the host, the instance and a value. */
int main(void)
{
	__u32 o[4];

	if (!read_table()) {
		fprintf(stderr, "chooser: no table on its input\n");
		return 1;
	}
	while (fread(o, sizeof(o), 1, stdin) == 1) {
		if (o[1] >= HOSTS_MAX || o[2] >= INSTANCES_MAX) {
			fprintf(stderr, "chooser: no host %u or no instance %u\n", o[1], o[2]);
			return 1;
		}
		host = o[1];
		switch (o[0]) {
		case SET_SCORE:
			score[host][o[2]] = o[3];
			break;
		case SET_POLICY:
			policy.by = o[3];
			break;
		case END_FLOW:
			count_live(o[2], -1);
			break;
		default: {
			int at = choose(0, o[3]);

			if (at >= 0)
				count_live(at, 1);
			fwrite(&at, sizeof(at), 1, stdout);
		}
		}
		if (o[0] == CHOOSE && o[2]) /* the last choice of a batch */
			fflush(stdout);
	}
	return 0;
}
