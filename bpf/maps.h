/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of steering. All are pinned: they outlive every process. */
#ifndef MAPS_H
#define MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "pando.h"

#define TABLE_OF(kind, entries, key_type, value_type) \
	__uint(type, BPF_MAP_TYPE_##kind);            \
	__uint(max_entries, entries);                 \
	__type(key, key_type);                        \
	__type(value, value_type)

/* A growing table takes memory for its entries only when they come. */
#define GROWING(entries, key_type, value_type)        \
	TABLE_OF(HASH, entries, key_type, value_type); \
	__uint(map_flags, BPF_F_NO_PREALLOC)

/* User space writes a mapped array in its own memory, without a system call. */
#define MAPPED(entries, value_type)                     \
	TABLE_OF(ARRAY, entries, __u32, value_type); \
	__uint(map_flags, BPF_F_MMAPABLE)

/* The connection table by address family; short keys save 12 ns a packet. It has two parts.
 * Held flows are proven: their client answers their instance. No other flow evicts them. */
struct {
	GROWING(1 << 20, struct flow_key, struct flow);
} flows SEC(".maps");

struct {
	GROWING(1 << 18, struct flow_key6, struct flow);
} flows6 SEC(".maps");

/* Opening flows are not proven yet. They are guarded while their tenant has no more than its share
 * (held.h): no other flow evicts them. */
struct {
	GROWING(1 << 16, struct flow_key, struct flow);
} guarded SEC(".maps");

struct {
	GROWING(1 << 14, struct flow_key6, struct flow);
} guarded6 SEC(".maps");

/* The other opening flows. A flood evicts some of these alone, the oldest first. */
struct {
	TABLE_OF(LRU_HASH, 1 << 15, struct flow_key, struct flow);
} opening SEC(".maps");

struct {
	TABLE_OF(LRU_HASH, 1 << 13, struct flow_key6, struct flow);
} opening6 SEC(".maps");

/* The number of held flows, at 2 * service + six. The last pair is the number of all services. */
struct {
	TABLE_OF(ARRAY, 2 * (SERVICES_MAX + 1), __u32, __u64);
} held SEC(".maps");

/* The tenant of each service, by a number from 1 that user space assigns. 0: unknown. */
struct {
	TABLE_OF(ARRAY, SERVICES_MAX, __u32, __u32);
} tenants SEC(".maps");

/* The number of held flows of a tenant's services, at 2 * tenant + six. The sweep corrects it. */
struct {
	TABLE_OF(ARRAY, 2 * (SERVICES_MAX + 1), __u32, __s64);
} tenant_held SEC(".maps");

/* The number of guarded flows of a tenant's services, at 2 * tenant + six, and of all services, at
 * six. The sweep corrects them. */
struct {
	TABLE_OF(ARRAY, 2 * (SERVICES_MAX + 1), __u32, __s32);
} tenant_guarded SEC(".maps");

struct {
	TABLE_OF(ARRAY, 1, __u32, struct hash_key);
} hash_keys SEC(".maps");

struct {
	TABLE_OF(LRU_HASH, 4096, struct fragment_key, struct fragment);
} fragments SEC(".maps");

struct {
	GROWING(1 << 16, struct service_key, __u32);
} ports SEC(".maps"); /* VIP:published -> service */

struct {
	GROWING(1 << 16, struct port_key, __u16);
} translations SEC(".maps");

struct {
	GROWING(2 * SERVICES_MAX, __u32[4], __u32);
} vips SEC(".maps"); /* -> service, with ELSEWHERE if another host serves it */

#define ELSEWHERE (1u << 31)

struct {
	TABLE_OF(ARRAY, SERVICES_MAX, __u32, struct service);
} services SEC(".maps");

/* A slab holds chunks of buckets. User space makes slabs and places the tables in them. */
struct slab {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLAB_CHUNKS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct chunk));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SLABS_MAX);
	__uint(key_size, sizeof(__u32));
	__array(values, struct slab);
} slabs SEC(".maps");

/* First packets for services that sleep. It has no pin: each agent reads a ring of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} knocks SEC(".maps");

/* The policies of services. They change ten times a second, the tables above do not. */
struct {
	MAPPED(SERVICES_MAX, struct policy);
} policies SEC(".maps");

/* A service by turns has two ranks. Each has an entry per 128 endpoints. */
struct {
	GROWING(SERVICES_MAX, struct rank_key, struct chunk);
} ranks SEC(".maps");

struct {
	TABLE_OF(ARRAY, 2 * SERVICES_MAX, __u32, struct turn);
} turns SEC(".maps");

struct {
	MAPPED(SLOTS_MAX, __u32);
} scores SEC(".maps"); /* by endpoint */

/* The live flows that this host steers to each endpoint. The sweep corrects the numbers. */
struct {
	TABLE_OF(ARRAY, SLOTS_MAX, __u32, __s32);
} live SEC(".maps");

struct {
	TABLE_OF(ARRAY, SLOTS_MAX, __u32, struct endpoint);
} endpoints SEC(".maps");

/* The endpoints of this host by tag. A tag names an instance to all hosts. */
struct {
	GROWING(ENDPOINTS_MAX, __u64, __u32);
} arrivals SEC(".maps");

/* The endpoints of other hosts by tag. */
struct {
	GROWING(1 << 13, __u64, __u32);
} aways SEC(".maps");

struct {
	GROWING(DOORS_MAX, struct door_key, struct door);
} doors SEC(".maps");

/* The open questions, by the random number of the packet. */
struct {
	TABLE_OF(LRU_HASH, 512, __u32, struct ask);
} asks SEC(".maps");

/* The flows that no host has, with the time of the first answer. */
struct {
	TABLE_OF(LRU_HASH, 256, struct flow_key6, __u64);
} unfound SEC(".maps");

struct {
	TABLE_OF(PERCPU_ARRAY, 1, __u32, struct pace);
} ask_paces SEC(".maps");

/* The other hosts by address. Only their tunnel packets are taken. */
struct {
	GROWING(PEERS_MAX, __u32[4], struct peer);
} peers SEC(".maps");

struct {
	TABLE_OF(PERCPU_ARRAY, ENDPOINTS_MAX, __u32, struct counters);
} traffic SEC(".maps");

struct {
	GROWING(ENDPOINTS_MAX, __u32, struct instance_link);
} links SEC(".maps"); /* by ifindex of the host's end */

struct {
	TABLE_OF(PERCPU_ARRAY, COUNTS, __u32, __u64);
} counts SEC(".maps");

struct {
	TABLE_OF(PERCPU_ARRAY, 1, __u32, struct pace);
} paces SEC(".maps");

/* Names for the service and endpoint numbers, for user space; no program reads them. */
struct {
	GROWING(SERVICES_MAX, __u32, struct name);
} service_names SEC(".maps");

struct {
	GROWING(SLOTS_MAX, __u32, struct name);
} endpoint_names SEC(".maps");

#endif
