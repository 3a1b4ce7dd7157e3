/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Steers flowlets to units of network functions: packet → flow → flowlet → unit
 * (assign.h). It adds a metadata header, sends the packet out of the unit's
 * device and forwards the unit's output. Only the unit is a process on the path. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
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
#define HEADER_VERSION 2
#define HEADER_FLOWLET 1
#define HEADER_BACK 2       /* arrived at the outer device; from a unit: leaves by the inner one */
#define HEADER_TRANSLATED 4 /* matched its flow by an alias; from a unit: the packet is an alias */
#define AT_ETHERTYPE offsetof(struct ethhdr, h_proto)
#define IS_IP(type) ((type) == bpf_htons(ETH_P_IP) || (type) == bpf_htons(ETH_P_IPV6))
#define IS_ICMP(protocol) ((protocol) == IPPROTO_ICMP || (protocol) == IPPROTO_ICMPV6)
#define HEADER_ETHERTYPE 0x88b5 /* the first of the two for local experiments (IEEE 802) */

/* Only decide: no header and no redirect. For benchmarks of the decision. */
volatile const __u32 decide_only;
/* Use the packet's timestamp instead of the clock. For tests. */
volatile const __u32 time_is_stamp;

enum flowlet_count {
	COUNT_PACKETS = 0, /* assigned */
	COUNT_BYTES,
	COUNT_FLOWS,       /* new */
	COUNT_FLOWLETS,
	COUNT_MOVES,       /* flowlets that changed their unit */
	COUNT_GROWN,       /* units taken into service by the rule */
	COUNT_OTHERS,      /* not IP: sent unchanged to the other device, or passed on without one */
	COUNT_NO_UNIT,     /* dropped: no unit accepts */
	COUNT_FULL,        /* dropped: the flow table is full */
	COUNT_NO_HEADER,   /* dropped: no room for the header */
	COUNT_AGGREGATES,  /* packets that the device aggregated: one for the function */
	COUNT_RETURNED,    /* from a unit, sent on */
	COUNT_ALIASES,     /* learnt */
	COUNT_REPLACED,    /* flows that gave their place to a new one */
	COUNTS,
};

struct flowlet_tally {
	__u64 n[COUNTS];
};

/* Both directions of a conversation are one flow: the ends are sorted as bytes. Ports
 * are 0 for other protocols than TCP and UDP, and for fragments of an unknown datagram. */
struct flowlet_key {
	__u8 low[16];
	__u8 high[16];
	__u16 low_port, high_port; /* network order */
	__u8 protocol, version;
	__u8 pad[2];
};

struct flowlet_flow {
	struct assign_flow flow;
	struct bpf_spin_lock lock; /* processors share a flow; each clock value must be unique */
	__u32 marks;               /* full.h */
	struct flowlet_key alias;  /* the last one, or zeroes */
};

/* The header behind the Ethernet header, little endian (function/handover/src/header.rs). */
struct flowlet_header {
	__u8 version, flags;
	__be16 ethertype; /* of the packet itself */
	__u16 unit, previous;
	__u32 epoch, position;
	__u64 clock, replicas;
	struct flowlet_key key; /* of the flow; differs from the packet's in an alias */
};

/* The fields that all fragments of a datagram share. */
struct flowlet_datagram {
	__u8 src[16], dst[16];
	__u32 id;
	__u8 protocol, version;
	__u8 pad[2];
};

struct flowlet_datagram_flow {
	struct flowlet_key key; /* of the first fragment that arrived */
	__u64 since;
};

#define DATAGRAM_NS 60000000000ull /* a unit's wait for fragments (flow/src/fragments.rs) */

/* The ends of the wire that units stand in. An index of zero means that the end is missing. */
enum { WIRE_INNER = 0, WIRE_OUTER, WIRE_ENDS };

struct {
	__uint(type, BPF_MAP_TYPE_HASH); /* not LRU: a flow evicted in silence would lose its clock */
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
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WIRE_ENDS);
	__type(key, __u32);
	__type(value, __u32);
} flowlet_wire SEC(".maps"); /* end → ifindex */

/* Keys of flows after a function that rewrites addresses. Packets back find their flow by them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flowlet_key);
	__type(value, struct flowlet_key);
} flowlet_aliases SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH); /* a flood of fragments harms other fragments at most */
	__uint(max_entries, 1 << 14);
	__type(key, struct flowlet_datagram);
	__type(value, struct flowlet_datagram_flow);
} flowlet_datagrams SEC(".maps");

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

/* order writes the two ends of a packet into the key in ascending order, and returns all ones if
 * the packet comes from the higher one, else 0. It has no branches: each would double the
 * verifier's paths through the whole rule. */
inlined __u64 order(struct flowlet_key *key, const __u32 *src, const __u32 *dst, const __u16 *ports,
		   int words)
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
	return other;
}

#include "inside.h"

/* parse reads a packet's flow from its linear part, which holds the headers. The link header
 * ends at `at`. It returns the IP header's offset, or 0. *fragment is not 0 for a fragment. *way
 * is bit 0, set in packets of the higher end, and TCP's flags from bit 8 on. */
inlined __u32 parse(struct __sk_buff *skb, __u32 at, __be16 ethertype, struct flowlet_key *key,
		    __u32 *fragment, __u32 *way)
{
	__u16 ports[2] = {}, flags = 0;

	if (ethertype != bpf_htons(ETH_P_IP) && ethertype != bpf_htons(ETH_P_IPV6)) {
		__u32 found = unwrap(skb, at, ethertype);
		at = found >> 16;
		ethertype = found;
	}
	at &= 0x7f; /* for the verifier: 14, the header of 72, two tags, and a session are less */
	void *packet = (void *)(long)skb->data + at, *end = (void *)(long)skb->data_end;
	if (ethertype == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = packet;
		if ((void *)(ip + 1) > end || ip->ihl < 5)
			return 0;
		*fragment = ip->frag_off & bpf_htons(0x3fff);
		key->protocol = ip->protocol;
		key->version = 4;
		__u64 with = has_ports(ip->protocol, ip->frag_off & bpf_htons(0x1fff));
		bpf_skb_load_bytes(skb, at + ip->ihl * 4, ports, sizeof(ports));
		ports[0] &= with;
		ports[1] &= with;
		bpf_skb_load_bytes(skb, at + ip->ihl * 4 + TCP_FLAGS, &flags, sizeof(flags));
		*way = flags & with & FLAGS_MASK & is_tcp(ip->protocol);
		__u32 src = ip->saddr, dst = ip->daddr;
		*way |= order(key, &src, &dst, ports, 1) & 1;
	} else if (ethertype == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = packet;
		struct {
			__u8 next, reserved;
			__be16 offset; /* and whether there are more */
		} header = {};
		__u32 behind = at + sizeof(*ip);
		if ((void *)(ip + 1) > end)
			return 0;
		header.next = ip->nexthdr;
		if (header.next == IPPROTO_FRAGMENT) {
			bpf_skb_load_bytes(skb, behind, &header, sizeof(header));
			behind += 8;
		}
		*fragment = header.offset & bpf_htons(0xfff9);
		key->protocol = header.next;
		key->version = 6;
		__u64 with = has_ports(header.next, header.offset & bpf_htons(0xfff8));
		bpf_skb_load_bytes(skb, behind, ports, sizeof(ports));
		ports[0] &= with;
		ports[1] &= with;
		bpf_skb_load_bytes(skb, behind + TCP_FLAGS, &flags, sizeof(flags));
		*way = flags & with & FLAGS_MASK & is_tcp(header.next);
		*way |= order(key, (__u32 *)&ip->saddr, (__u32 *)&ip->daddr, ports, 4) & 1;
	} else {
		return 0;
	}
	return at;
}

/* gather gives a fragment with IP header `at` its datagram's flow: the key of the first
 * fragment to arrive. So all fragments reach one unit. It returns 1 for every later fragment. */
__noinline int gather(struct __sk_buff *skb, __u32 at, struct flowlet_key *key)
{
	struct flowlet_datagram datagram = {};
	struct flowlet_datagram_flow flow = {}, *known;

	if (!key)
		return 0;
	datagram.protocol = key->protocol;
	datagram.version = key->version;
	if (key->version == 4) {
		bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, saddr), datagram.src, 4);
		bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, daddr), datagram.dst, 4);
		bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, id), &datagram.id, 2);
	} else {
		bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, saddr), datagram.src, 16);
		bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, daddr), datagram.dst, 16);
		bpf_skb_load_bytes(skb, at + sizeof(struct ipv6hdr) + 4, &datagram.id, 4);
	}
	flow.since = time_is_stamp ? skb->tstamp : bpf_ktime_get_ns();
	known = bpf_map_lookup_elem(&flowlet_datagrams, &datagram);
	/* Ports on both sides mark a new datagram with the same number. */
	if (known && flow.since - known->since < DATAGRAM_NS &&
	    !((key->low_port | key->high_port) && (known->key.low_port | known->key.high_port))) {
		*key = known->key;
		return 1;
	}
	flow.key = *key;
	bpf_map_update_elem(&flowlet_datagrams, &datagram, &flow, BPF_ANY);
	return 0;
}

inlined int same(const struct flowlet_key *a, const struct flowlet_key *b)
{
	const __u16 *x = (void *)a, *y = (void *)b;
	__u16 differ = 0;

#pragma unroll
	for (int i = 0; i < sizeof(*a) / sizeof(*x); i++)
		differ |= x[i] ^ y[i];
	return !differ;
}

#include "full.h"

/* leave sends a packet out of an end, or else out of `other`; WIRE_ENDS is the kernel's stack. */
inlined int leave(__u32 end, __u32 other)
{
	__u32 *device = bpf_map_lookup_elem(&flowlet_wire, &end);

	if (!device || !*device)
		device = bpf_map_lookup_elem(&flowlet_wire, &other);
	return device && *device ? bpf_redirect(*device, 0) : PASS;
}

/* back returns HEADER_BACK if the packet arrived at the outer end, else 0. */
inlined __u64 back(struct __sk_buff *skb)
{
	__u32 end = WIRE_OUTER, *device = bpf_map_lookup_elem(&flowlet_wire, &end);

	return device ? assign_sign(((__u64)*device ^ skb->ifindex) - 1) & HEADER_BACK : 0;
}

/* make_room moves the bytes after the Ethernet header back. The kernel can do so inside an IP
 * packet only. For tags, sessions and GSO packets, it adds room in front and the addresses
 * move there. A GSO packet's IP header stays in its place, so the kernel lets it pass whole. */
inlined int make_room(struct __sk_buff *skb, __u32 bytes)
{
	__u8 addresses[2 * ETH_ALEN];

	if (!skb->gso_size && IS_IP(skb->protocol))
		return bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
	return bpf_skb_change_head(skb, bytes, 0) ||
	       bpf_skb_load_bytes(skb, bytes, addresses, sizeof(addresses)) ||
	       bpf_skb_store_bytes(skb, 0, addresses, sizeof(addresses), 0);
}

/* send adds the header after the Ethernet header and sends the packet to its unit. */
inlined int send(struct __sk_buff *skb, const struct flowlet_header *header,
		 struct flowlet_tally *counts)
{
	__u32 unit = header->unit;
	__be16 ethertype = bpf_htons(HEADER_ETHERTYPE);
	__u32 *device = bpf_map_lookup_elem(&flowlet_devices, &unit);
	if (!device || !*device)
		return drop(counts, COUNT_NO_UNIT);
	if (make_room(skb, sizeof(*header)) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, header, sizeof(*header), 0) ||
	    bpf_skb_store_bytes(skb, AT_ETHERTYPE, &ethertype, sizeof(ethertype), 0))
		return drop(counts, COUNT_NO_HEADER);
	return bpf_redirect(*device, 0);
}

/* ethertype_of returns a frame's EtherType, or 0 if the frame is too short. */
inlined __be16 ethertype_of(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	return (void *)(eth + 1) > (void *)(long)skb->data_end ? 0 : eth->h_proto;
}

SEC("tc")
int flowlet(struct __sk_buff *skb)
{
	struct flowlet_header header = {.version = HEADER_VERSION, .ethertype = ethertype_of(skb)};
	__u32 zero = 0, len = skb->len;

	struct flowlet_tally *counts = bpf_map_lookup_elem(&flowlet_counts, &zero);
	if (!counts)
		return DROP;
	__u64 flags = back(skb), later = 0;
	__u32 fragment = 0, way = 0, ended = 0;
	__u32 ip = parse(skb, ETH_HLEN, header.ethertype, &header.key, &fragment, &way);
	if (!ip) {
		counts->n[COUNT_OTHERS]++;
		return leave(flags & HEADER_BACK ? WIRE_INNER : WIRE_OUTER, WIRE_ENDS);
	}
	if (IS_ICMP(header.key.protocol) && relate(skb, ip, &header.key, fragment))
		way |= WAY_OTHER;
	__u64 now = time_is_stamp ? skb->tstamp : bpf_ktime_get_ns();
	struct assign_config *config = bpf_map_lookup_elem(&flowlet_config, &zero);
	struct assign_units *units = bpf_map_lookup_elem(&flowlet_units, &zero);
	if (!config || !units)
		return drop(counts, COUNT_NO_UNIT);
	if (fragment)
		later = gather(skb, ip, &header.key);
	struct flowlet_flow *known = bpf_map_lookup_elem(&flowlet_flows, &header.key);
	if (!known) {
		flags |= meet(&header.key);
		known = bpf_map_lookup_elem(&flowlet_flows, &header.key);
		if (!known && replace(now)) {
			meet(&header.key);
			known = bpf_map_lookup_elem(&flowlet_flows, &header.key);
		}
		if (!known)
			return drop(counts, COUNT_FULL);
	}

	bpf_spin_lock(&known->lock);
	ended = mark(known, way, flags);
	/* No flowlet begins while state moves, nor after a datagram's first fragment. */
	known->flow.ready = assign_max(known->flow.ready, (now + 1) & -(later & 1));
	int result = assign_packet(config, units, &known->flow, now, len);
	header.unit = known->flow.unit;
	header.previous = known->flow.previous;
	header.epoch = known->flow.epoch;
	header.position = known->flow.position - 1;
	header.clock = known->flow.clock;
	header.replicas = assign_targets(&known->flow);
	bpf_spin_unlock(&known->lock);
	if (ended) /* it may give its place to another flow */
		bpf_map_push_elem(&flowlet_young, &header.key, BPF_EXIST);
	if (header.unit >= ASSIGN_UNITS)
		return drop(counts, COUNT_NO_UNIT);
	header.flags = flags | (result & ASSIGN_FLOWLET); /* HEADER_FLOWLET is the same bit */

	counts->n[COUNT_PACKETS]++;
	counts->n[COUNT_BYTES] += len;
	counts->n[COUNT_FLOWLETS] += result & 1;
	counts->n[COUNT_MOVES] += result >> 1 & 1;
	counts->n[COUNT_GROWN] += result >> 2 & 1;
	counts->n[COUNT_AGGREGATES] += skb->gso_segs > 1;
	return decide_only ? PASS : send(skb, &header, counts);
}

/* learn stores the key of a flow's packets after the unit as an alias.
 * It deletes a flow under that key: its packets were unsolicited. */
inlined void learn(struct __sk_buff *skb, const struct flowlet_header *header,
		   struct flowlet_tally *counts)
{
	struct flowlet_key alias = {}, own = header->key;
	__u32 fragment, way, ip;

	ip = parse(skb, sizeof(struct ethhdr) + sizeof(*header), header->ethertype, &alias, &fragment,
	    &way);
	if (!ip)
		return;
	if (IS_ICMP(alias.protocol))
		relate(skb, ip, &alias, fragment);
	struct flowlet_key *known = bpf_map_lookup_elem(&flowlet_aliases, &alias);
	if (known && same(known, &header->key))
		return;
	bpf_map_update_elem(&flowlet_aliases, &alias, &own, BPF_ANY);
	struct flowlet_flow *flow = bpf_map_lookup_elem(&flowlet_flows, &own);
	if (flow)
		flow->alias = alias;
	bpf_map_delete_elem(&flowlet_flows, &alias);
	counts->n[COUNT_ALIASES]++;
}

/* Handles a unit's output: removes the header and sends the packet out of the named end. The
 * Ethernet header must be IP here, because the kernel removes room only from IP packets. */
SEC("tc")
int flowlet_return(struct __sk_buff *skb)
{
	struct flowlet_header header;
	__u32 zero = 0;

	struct flowlet_tally *counts = bpf_map_lookup_elem(&flowlet_counts, &zero);
	if (!counts || bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &header, sizeof(header)) ||
	    header.version != HEADER_VERSION)
		return DROP;
	if (header.flags & HEADER_TRANSLATED)
		learn(skb, &header, counts);
	if (bpf_skb_adjust_room(skb, -(int)sizeof(header), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return drop(counts, COUNT_NO_HEADER);
	if (header.ethertype != ethertype_of(skb) &&
	    bpf_skb_store_bytes(skb, AT_ETHERTYPE, &header.ethertype, sizeof(header.ethertype), 0))
		return drop(counts, COUNT_NO_HEADER);
	counts->n[COUNT_RETURNED]++;
	return leave(header.flags & HEADER_BACK ? WIRE_INNER : WIRE_OUTER, WIRE_INNER); /* one end */
}

char _license[] SEC("license") = "Dual BSD/GPL";
