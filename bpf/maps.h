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

/* The connection table by address family; short keys save 12 ns a packet. LRU evicts if full. */
struct {
	TABLE_OF(LRU_HASH, 1 << 20, struct flow_key, struct flow);
} flows SEC(".maps");

struct {
	TABLE_OF(LRU_HASH, 1 << 18, struct flow_key6, struct flow);
} flows6 SEC(".maps");

struct {
	TABLE_OF(LRU_HASH, 8192, struct fragment_key, struct fragment);
} fragments SEC(".maps");

struct {
	TABLE_OF(HASH, 8192, struct service_key, __u32);
} ports SEC(".maps"); /* VIP:published -> service */

struct {
	TABLE_OF(HASH, 32768, struct port_key, __u16);
} translations SEC(".maps");

struct {
	TABLE_OF(HASH, 2 * SERVICES_MAX, __u32[4], __u32);
} vips SEC(".maps"); /* -> service, with ELSEWHERE if another host serves it */

#define ELSEWHERE (1u << 31)

struct {
	TABLE_OF(ARRAY, SERVICES_MAX, __u32, struct service);
} services SEC(".maps");

struct {
	TABLE_OF(ARRAY, 2 * SERVICES_MAX, __u32, struct table);
} tables SEC(".maps");

struct {
	TABLE_OF(ARRAY, ENDPOINTS_MAX, __u32, struct endpoint);
} endpoints SEC(".maps");

struct {
	TABLE_OF(PERCPU_ARRAY, ENDPOINTS_MAX, __u32, struct counters);
} traffic SEC(".maps");

struct {
	TABLE_OF(HASH, ENDPOINTS_MAX, __u32, struct instance_link);
} links SEC(".maps"); /* by ifindex of the host's end */

struct {
	TABLE_OF(PERCPU_ARRAY, COUNTS, __u32, __u64);
} counts SEC(".maps");

struct {
	TABLE_OF(PERCPU_ARRAY, 1, __u32, struct pace);
} paces SEC(".maps");

/* Names for the service and endpoint numbers, for user space; no program reads them. */
struct {
	TABLE_OF(ARRAY, SERVICES_MAX, __u32, struct name);
} service_names SEC(".maps");

struct {
	TABLE_OF(ARRAY, ENDPOINTS_MAX, __u32, struct name);
} endpoint_names SEC(".maps");

#endif
