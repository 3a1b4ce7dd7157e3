/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The host's own address as a way to services. A packet to a port of the host gets the host's front
 * as its destination, before steering. A reply that leaves gets the own address of the front's host
 * as its source. No flow is noted: a front stands for one host (driver/network/front). */
#include "packet.h"

#define PORTS_MAX 4096
#define HOSTS_MAX 1024

/* A port of the host's own address. */
struct host_port {
	__u16 port; /* in network order */
	__u8 protocol;
	__u8 pad;
};

/* The service of a port of the host. */
struct published {
	__u32 vip[2][4]; /* IPv4 in the first word; zero: none */
	__u64 service;   /* its number, the same in every life of the agent */
	__u16 port;      /* the published one, in network order */
	__u16 pad[3];
};

/* A host's own addresses, as in packets. */
struct own {
	__u32 addr[2][4];
};

struct {
	GROWING(PORTS_MAX, struct host_port, struct published);
} host_ports SEC(".maps");

struct {
	TABLE_OF(ARRAY, HOSTS_MAX, __u32, struct own);
} owns SEC(".maps"); /* by the number of the host */

volatile const __u64 netns; /* the cookie of this host's network namespace */

/* ends of a packet, by the offset of the address in the network header. */
#define SOURCE(six) \
	(ETH_HLEN + ((six) ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr)))
#define DESTINATION(six) (SOURCE(six) + ((six) ? 16 : 4))
#define IPV6_SUM (1ull << 7) /* BPF_F_IPV6, from Linux 6.16 on */

inlined struct published *published_at(__u16 port, __u8 protocol)
{
	struct host_port k = {.port = port, .protocol = protocol};

	return bpf_map_lookup_elem(&host_ports, &k);
}

/* seal brings a checksum over the pseudo header up to date with a new address. */
inlined int seal(struct __sk_buff *skb, __u32 at, const __u32 *from, const __u32 *to, __u64 flags,
		 int six)
{
	if (!six)
		return bpf_l4_csum_replace(skb, at, from[0], to[0], flags | 4);
	__u32 diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)to, 16, 0);
	/* A kernel without BPF_F_IPV6 gets the card's sum wrong, but sums up again itself. */
	return bpf_l4_csum_replace(skb, at, 0, diff, flags | IPV6_SUM) &&
	    bpf_l4_csum_replace(skb, at, 0, diff, flags);
}

/* readdress replaces an address of a packet. check: the offset of its checksum, 0 for none. */
inlined int readdress(struct __sk_buff *skb, __u32 at, __u32 check, __u64 flags, const __u32 *from,
		      const __u32 *to, int six)
{
	if (check && seal(skb, check, from, to, flags | BPF_F_PSEUDO_HDR, six))
		return -1;
	if (six) /* if no checksum balances the new address, the card's sum must change */
		return bpf_skb_store_bytes(skb, at, to, 16, check ? 0 : BPF_F_RECOMPUTE_CSUM);
	if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), from[0], to[0], 4))
		return -1;
	return bpf_skb_store_bytes(skb, at, to, 4, 0);
}

/* check_of returns the offset of a packet's checksum over its addresses, 0 for none. */
inlined __u32 check_of(const struct packet *p, int six)
{
	if (p->part == LATER)
		return 0;
	if (p->protocol == IPPROTO_TCP)
		return p->l4 + offsetof(struct tcphdr, check);
	if (p->protocol == IPPROTO_UDP)
		return p->l4 + offsetof(struct udphdr, check);
	return six && p->protocol == IPPROTO_ICMPV6 ? p->l4 + ICMP_CHECK : 0;
}

inlined __u64 flags_of(const struct packet *p)
{
	return p->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

inlined int is_error(__u8 type, int six)
{
	if (six)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

/* requote puts the front into the packet that an error quotes, if that one left a port of a
 * service. It returns whether it did. Without these errors a path with a smaller MTU loses every
 * large packet. */
cold int requote(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	__u32 at = p->l4 + ICMP_BYTES, source, end, own[4] = {}, front[4] = {};
	__u8 type, protocol, first;
	__u16 port;

	if (p->part != WHOLE || bpf_skb_load_bytes(skb, p->l4, &type, 1) || !is_error(type, six))
		return 0;
	if (six) {
		source = at + offsetof(struct ipv6hdr, saddr);
		end = at + sizeof(struct ipv6hdr);
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &protocol, 1) ||
		    bpf_skb_load_bytes(skb, source, own, 16))
			return 0;
	} else {
		source = at + offsetof(struct iphdr, saddr);
		if (bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, protocol), &protocol, 1) ||
		    bpf_skb_load_bytes(skb, at, &first, 1) || bpf_skb_load_bytes(skb, source, own, 4))
			return 0;
		end = at + (first & 15) * 4;
	}
	if (bpf_skb_load_bytes(skb, end, &port, 2) || !published_at(port, protocol) ||
	    !(six ? same(own, p->dst, 1) : same(own, p->dst, 0)))
		return 0;
	if (six) {
		front_of(front, own_slot, 1);
		return !seal(skb, p->l4 + ICMP_CHECK, own, front, 0, 1) &&
		    !bpf_skb_store_bytes(skb, source, front, 16, 0);
	}
	front_of(front, own_slot, 0);
	return !bpf_l4_csum_replace(skb, p->l4 + ICMP_CHECK, own[0], front[0], 4) &&
	    !bpf_skb_store_bytes(skb, source, front, 4, 0);
}

/* Datagrams in fragments of which the first one went to the front: the others have no port. */
struct {
	TABLE_OF(LRU_HASH, 4096, struct fragment_key, __u8);
} front_pieces SEC(".maps");

/* is_piece notes the first fragment of a datagram to a service, and returns whether the first one of a
 * later fragment was noted. */
cold int is_piece(const struct packet *p, __u32 six)
{
	struct fragment_key k = {};
	__u8 noted = 1;

	if (!p)
		return 0;
	four(k.src, p->src, six);
	four(k.dst, p->dst, six);
	k.id = p->id;
	k.protocol = p->protocol;
	if (p->part == FIRST)
		bpf_map_update_elem(&front_pieces, &k, &noted, BPF_ANY);
	return bpf_map_lookup_elem(&front_pieces, &k) != 0;
}

/* to_front handles a packet that arrives. Steering runs next and sees the front. */
inlined int to_front(struct __sk_buff *skb, int six)
{
	struct packet p = {};
	__u32 n = own_slot, front[4];

	struct own *own = bpf_map_lookup_elem(&owns, &n);
	if (!own || addresses(skb, &p, six) || !same(p.dst, own->addr[six], six) ||
	    transport(skb, &p, six))
		return PASS;
	if (p.part == LATER) {
		struct packet q = p;
		if (!is_piece(&q, six))
			return PASS;
	} else if (IS_ICMP(&p, six)) {
		struct packet q = p;
		if (!requote(skb, &q, six))
			return PASS;
	} else if (!published_at(p.dport, p.protocol)) {
		return PASS;
	}
	if (unlikely(p.part == FIRST)) {
		struct packet q = p;
		is_piece(&q, six);
	}
	front_of(front, n, six);
	if (readdress(skb, DESTINATION(six), check_of(&p, six), flags_of(&p), p.dst, front, six))
		return drop(DROP_KERNEL);
	return PASS;
}

/* to_host runs at the ingress of an uplink, before steering. */
SEC("tc")
int to_host(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST)
		return PASS;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return to_front(skb, 0);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return to_front(skb, 1);
	return PASS;
}

/* unquote puts the host's own address into the packet that an error of steering quotes: its client
 * knows no front. */
cold int unquote(struct __sk_buff *skb, struct packet *p, const __u32 *own, __u32 six)
{
	__u32 at = p->l4 + ICMP_BYTES, front[4] = {}, to[4] = {};
	__u8 type;

	if (!own || p->part != WHOLE || bpf_skb_load_bytes(skb, p->l4, &type, 1) || !is_error(type, six))
		return 0;
	copy(to, own, six);
	at += six ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr);
	if (bpf_skb_load_bytes(skb, at, front, six ? 16 : 4) ||
	    !(six ? same(front, p->src, 1) : same(front, p->src, 0)))
		return 0;
	if (six)
		return seal(skb, p->l4 + ICMP_CHECK, front, to, 0, 1) ||
		    bpf_skb_store_bytes(skb, at, to, 16, 0);
	return bpf_l4_csum_replace(skb, p->l4 + ICMP_CHECK, front[0], to[0], 4) ||
	    bpf_skb_store_bytes(skb, at, to, 4, 0);
}

/* from_front handles a packet that leaves from the front of a host. */
cold int from_front(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	__u32 n = bpf_ntohl(six ? p->src[3] : p->src[0]) & (HOSTS_MAX - 1);
	struct own *own = bpf_map_lookup_elem(&owns, &n);
	__u32 to[4];

	if (!own || transport(skb, p, six))
		return drop(DROP_HEADER);
	if (six) {
		copy(to, own->addr[1], 1);
		if (!(to[0] | to[1] | to[2] | to[3]))
			return drop(DROP_NO_ENDPOINT); /* not yet known */
		if (IS_ICMP(p, 1) && unquote(skb, p, to, 1))
			return drop(DROP_KERNEL);
		return readdress(skb, SOURCE(1), check_of(p, 1), flags_of(p), p->src, to, 1)
		    ? drop(DROP_KERNEL) : PASS;
	}
	copy(to, own->addr[0], 0);
	if (!to[0])
		return drop(DROP_NO_ENDPOINT);
	if (IS_ICMP(p, 0) && unquote(skb, p, to, 0))
		return drop(DROP_KERNEL);
	return readdress(skb, SOURCE(0), check_of(p, 0), flags_of(p), p->src, to, 0)
		    ? drop(DROP_KERNEL) : PASS;
}

/* leaves runs at the egress of an uplink. */
SEC("tc")
int leaves(struct __sk_buff *skb)
{
	int six = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct packet p = {};

	if (!six && skb->protocol != bpf_htons(ETH_P_IP))
		return PASS;
	if (six)
		return !addresses(skb, &p, 1) && is_vip(p.src, 1) && is_front(p.src, 1)
		    ? from_front(skb, &p, 1) : PASS;
	return !addresses(skb, &p, 0) && is_vip(p.src, 0) && is_front(p.src, 0)
	    ? from_front(skb, &p, 0) : PASS;
}

#define CONNECT 1 /* the answer that lets a program go on */

/* is_own4 returns whether an address leads to this host: loopback, none, or its own. */
inlined int is_own4(__u32 a, const struct own *own)
{
	return (a & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000) || !a || a == own->addr[0][0];
}

/* connects4 runs when a program calls connect. One of the host that connects to a port of the host
 * connects to the VIP instead. */
SEC("cgroup/connect4")
int connects4(struct bpf_sock_addr *ctx)
{
	__u32 n = own_slot;
	struct own *own = bpf_map_lookup_elem(&owns, &n);

	if (!own || bpf_get_netns_cookie(ctx) != netns || !is_own4(ctx->user_ip4, own))
		return CONNECT;
	struct published *to = published_at(ctx->user_port, ctx->protocol);
	if (!to || !to->vip[0][0])
		return CONNECT;
	ctx->user_ip4 = to->vip[0][0];
	ctx->user_port = to->port;
	return CONNECT;
}

SEC("cgroup/connect6")
int connects6(struct bpf_sock_addr *ctx)
{
	__u32 a[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	__u32 n = own_slot;
	struct own *own = bpf_map_lookup_elem(&owns, &n);

	if (!own || bpf_get_netns_cookie(ctx) != netns)
		return CONNECT;
	struct published *to = published_at(ctx->user_port, ctx->protocol);
	if (!to)
		return CONNECT;
	if (!a[0] && !a[1] && a[2] == bpf_htonl(0xffff)) { /* an IPv4 address */
		if (!is_own4(a[3], own) || !to->vip[0][0])
			return CONNECT;
		ctx->user_ip6[3] = to->vip[0][0];
		ctx->user_port = to->port;
		return CONNECT;
	}
	int none = !a[0] && !a[1] && !a[2] && (!a[3] || a[3] == bpf_htonl(1));
	if ((!none && !same(a, own->addr[1], 1)) || !(to->vip[1][0] | to->vip[1][3]))
		return CONNECT;
	ctx->user_ip6[0] = to->vip[1][0];
	ctx->user_ip6[1] = to->vip[1][1];
	ctx->user_ip6[2] = to->vip[1][2];
	ctx->user_ip6[3] = to->vip[1][3];
	ctx->user_port = to->port;
	return CONNECT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
