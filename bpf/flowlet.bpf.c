/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Steering of flowlets to units of network functions: packet → flow → flowlet → unit (assign.h), a metadata header in
 * front, and out of the unit's device. No process is on the path. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define inlined static __always_inline
#include "assign.h"

#define PASS -1 /* TCX_NEXT */
#define DROP 2  /* TCX_DROP */
#define HEADER_VERSION 1
#define HEADER_FLOWLET 1
#define HEADER_ETHERTYPE 0x88b5 /* the first of the two for local experiments (IEEE 802) */
#define BEHIND_ETHERNET (-(int)sizeof(struct ethhdr))

/* Decide only, with no header and no redirect: what measurements of the decision run. */
volatile const __u32 decide_only;
/* The time of a packet is its stamp, not the clock: what tests run. */
volatile const __u32 time_is_stamp;

enum flowlet_count {
	COUNT_PACKETS = 0, /* assigned */
	COUNT_BYTES,
	COUNT_FLOWS,       /* new */
	COUNT_FLOWLETS,
	COUNT_MOVES,       /* flowlets on another unit than the one before */
	COUNT_GROWN,       /* units taken into service by the rule */
	COUNT_OTHERS,      /* neither TCP nor UDP, or a fragment without ports: passed on untouched */
	COUNT_NO_UNIT,     /* dropped: no unit accepts */
	COUNT_FULL,        /* dropped: the flow table is full */
	COUNT_NO_HEADER,   /* dropped: no room for the header */
	COUNT_AGGREGATES,  /* several packets that the device glued together: one for the function */
	COUNTS,
};

struct flowlet_tally {
	__u64 n[COUNTS];
};

/* Both directions of a conversation are one flow: the ends in ascending order, as bytes. */
struct flowlet_key {
	__u8 low[16];
	__u8 high[16];
	__u16 low_port, high_port; /* network order */
	__u8 protocol, version;
	__u8 pad[2];
};

struct flowlet_flow {
	struct assign_flow flow;
	struct bpf_spin_lock lock; /* two processors may have packets of one flow; a clock is given once */
	__u32 pad;
};

/* On the wire behind the Ethernet header, little endian (nf/protocol/src/header.rs). */
struct flowlet_header {
	__u8 version, flags;
	__be16 ethertype; /* of the packet itself */
	__u16 unit, previous;
	__u32 epoch, position;
	__u64 clock, replicas;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH); /* not LRU: a flow that is evicted silently would lose its clock */
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flowlet_key);
	__type(value, struct flowlet_flow);
} flowlet_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct assign_config);
} flowlet_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* user space writes single words while packets come in */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct assign_units);
} flowlet_units SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ASSIGN_UNITS);
	__type(key, __u32);
	__type(value, __u32);
} flowlet_devices SEC(".maps"); /* unit → ifindex of its device at this end */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flowlet_tally);
} flowlet_counts SEC(".maps");

inlined int drop(struct flowlet_tally *counts, enum flowlet_count why)
{
	counts->n[why]++;
	return DROP;
}

/* order writes the ends of a packet into the key in ascending order; addresses of `words` 32-bit words. It has no
 * branches: each would double the paths that the verifier follows through all of the rule. */
inlined void order(struct flowlet_key *key, const __u32 *src, const __u32 *dst, const __u16 *ports, int words)
{
	__u64 differ = 0, other; /* differ: the first difference of the two ends, as a signed number */

	differ = (__u64)bpf_ntohs(ports[1]) - bpf_ntohs(ports[0]);
#pragma unroll
	for (int i = words - 1; i >= 0; i--) {
		__u64 here = (__u64)bpf_ntohl(dst[i]) - bpf_ntohl(src[i]);
		__u64 same = assign_sign(here - 1) & assign_sign(-here - 1); /* only 0 is below 1 both ways */

		differ = here | (differ & same);
	}
	other = assign_sign(differ); /* all ones: dst comes first */
#pragma unroll
	for (int i = 0; i < words; i++) {
		__u32 swap = (src[i] ^ dst[i]) & other;

		((__u32 *)key->low)[i] = src[i] ^ swap;
		((__u32 *)key->high)[i] = dst[i] ^ swap;
	}
	__u16 swap = (ports[0] ^ ports[1]) & other;
	key->low_port = ports[0] ^ swap;
	key->high_port = ports[1] ^ swap;
}

/* parse reads the flow of a packet from its linear part, where a device leaves at least the headers. It returns 0 if the packet has none. Ports lie where TCP and UDP both have them. */
inlined int parse(struct __sk_buff *skb, struct flowlet_key *key, __be16 *ethertype)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	__u16 ports[2];

	if ((void *)(eth + 1) > end)
		return 0;
	*ethertype = eth->h_proto;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end || ip->ihl < 5 || ip->frag_off & bpf_htons(0x1fff))
			return 0;
		key->protocol = ip->protocol;
		key->version = 4;
		const __u16 *at = (void *)ip + ip->ihl * 4;
		if ((void *)(at + 2) > end)
			return 0;
		ports[0] = at[0];
		ports[1] = at[1];
		__u32 src = ip->saddr, dst = ip->daddr;
		order(key, &src, &dst, ports, 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end)
			return 0;
		key->protocol = ip->nexthdr;
		key->version = 6;
		const __u16 *at = (void *)(ip + 1);
		if ((void *)(at + 2) > end)
			return 0;
		ports[0] = at[0];
		ports[1] = at[1];
		order(key, (__u32 *)&ip->saddr, (__u32 *)&ip->daddr, ports, 4);
	} else {
		return 0;
	}
	return key->protocol == IPPROTO_TCP || key->protocol == IPPROTO_UDP;
}

/* find is the flow of a key; a new one has no unit yet. */
inlined struct flowlet_flow *find(struct flowlet_key *key, struct flowlet_tally *counts)
{
	struct flowlet_flow *known = bpf_map_lookup_elem(&flowlet_flows, key);

	if (known)
		return known;
	struct flowlet_flow new = {.flow = {.unit = ASSIGN_NONE, .previous = ASSIGN_NONE, .target = {0xff, 0xff, 0xff}}};
	bpf_map_update_elem(&flowlet_flows, key, &new, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&flowlet_flows, key);
	if (known)
		counts->n[COUNT_FLOWS]++;
	return known;
}

/* send puts the header behind the Ethernet header and the packet on its unit's way. */
inlined int send(struct __sk_buff *skb, const struct flowlet_header *header, struct flowlet_tally *counts)
{
	__u32 unit = header->unit;
	__be16 ethertype = bpf_htons(HEADER_ETHERTYPE);
	__u32 *device = bpf_map_lookup_elem(&flowlet_devices, &unit);

	if (!device || !*device)
		return drop(counts, COUNT_NO_UNIT);
	if (bpf_skb_adjust_room(skb, sizeof(*header), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	    bpf_skb_store_bytes(skb, sizeof(struct ethhdr), header, sizeof(*header), 0) ||
	    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &ethertype, sizeof(ethertype), 0))
		return drop(counts, COUNT_NO_HEADER);
	return bpf_redirect(*device, 0);
}

SEC("tc")
int flowlet(struct __sk_buff *skb)
{
	struct flowlet_key key = {};
	__be16 ethertype = 0;
	__u32 zero = 0, len = skb->len;

	struct flowlet_tally *counts = bpf_map_lookup_elem(&flowlet_counts, &zero);
	if (!counts)
		return DROP;
	if (!parse(skb, &key, &ethertype)) {
		counts->n[COUNT_OTHERS]++;
		return PASS;
	}
	struct assign_config *config = bpf_map_lookup_elem(&flowlet_config, &zero);
	struct assign_units *units = bpf_map_lookup_elem(&flowlet_units, &zero);
	if (!config || !units)
		return drop(counts, COUNT_NO_UNIT);
	struct flowlet_flow *known = find(&key, counts);
	if (!known)
		return drop(counts, COUNT_FULL);

	__u64 now = time_is_stamp ? skb->tstamp : bpf_ktime_get_ns();
	bpf_spin_lock(&known->lock);
	int result = assign_packet(config, units, &known->flow, now, len);
	struct flowlet_header header = {
		.version = HEADER_VERSION,
		.flags = result & ASSIGN_FLOWLET ? HEADER_FLOWLET : 0,
		.ethertype = ethertype,
		.unit = known->flow.unit,
		.previous = known->flow.previous,
		.epoch = known->flow.epoch,
		.position = known->flow.position - 1,
		.clock = known->flow.clock,
		.replicas = assign_targets(&known->flow),
	};
	bpf_spin_unlock(&known->lock);
	if (header.unit >= ASSIGN_UNITS)
		return drop(counts, COUNT_NO_UNIT);

	counts->n[COUNT_PACKETS]++;
	counts->n[COUNT_BYTES] += len;
	counts->n[COUNT_FLOWLETS] += result & 1;
	counts->n[COUNT_MOVES] += result >> 1 & 1;
	counts->n[COUNT_GROWN] += result >> 2 & 1;
	counts->n[COUNT_AGGREGATES] += skb->gso_segs > 1;
	return decide_only ? PASS : send(skb, &header, counts);
}

char _license[] SEC("license") = "Dual BSD/GPL";
