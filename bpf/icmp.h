/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP and ICMPv6: echoes are answered in place; an error goes to its quoted packet's sender. */
#ifndef ICMP_H
#define ICMP_H

#include "flow.h"

/* The fields of the packet that an error quotes. */
struct quote {
	__u32 src[4], dst[4];
	__u32 l4; /* offset of its transport header in the outer packet */
	__u16 sport, dport;
	__u8 protocol;
};

inlined int is_error(__u8 type, int six)
{
	if (six)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

/* read_quote reads a quoted TCP or UDP packet. Only a whole one or a first fragment has ports. */
inlined int read_quote(struct __sk_buff *skb, struct packet *p, struct quote *q, int six)
{
	__u32 at = p->l4 + ICMP_BYTES;

	if (six) {
		struct ipv6hdr ip;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return TRUNCATED;
		copy(q->src, ip.saddr.in6_u.u6_addr32, 1);
		copy(q->dst, ip.daddr.in6_u.u6_addr32, 1);
		q->protocol = ip.nexthdr;
		q->l4 = at + sizeof(ip);
		if (ip.nexthdr == NEXT_FRAGMENT) {
			__u8 h[8];
			if (bpf_skb_load_bytes(skb, q->l4, h, sizeof(h)) || h[2] || h[3] >> 3)
				return TRUNCATED;
			q->protocol = h[0];
			q->l4 += sizeof(h);
		}
	} else {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.ihl < 5 || ip.frag_off & bpf_htons(0x1fff))
			return TRUNCATED;
		q->src[0] = ip.saddr;
		q->dst[0] = ip.daddr;
		q->protocol = ip.protocol;
		q->l4 = at + ip.ihl * 4;
	}
	if (q->protocol != IPPROTO_TCP && q->protocol != IPPROTO_UDP)
		return TRUNCATED;
	__u16 two[2];
	if (bpf_skb_load_bytes(skb, q->l4, two, sizeof(two)))
		return TRUNCATED;
	q->sport = two[0];
	q->dport = two[1];
	return READ;
}

/* requote replaces a port in the quoted packet. */
inlined int requote(struct __sk_buff *skb, struct packet *p, __u32 at, __u16 from, __u16 to)
{
	if (from == to)
		return 0;
	if (bpf_l4_csum_replace(skb, p->l4 + ICMP_CHECK, from, to, 2))
		return -1;
	return bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* echo answers a ping to a VIP. A swap of addresses leaves every checksum valid. */
inlined int echo(struct __sk_buff *skb, struct packet *p, int six, __u64 back)
{
	__u8 type = six ? ICMPV6_ECHO_REPLY : ICMP_ECHOREPLY;
	__u16 from = bpf_htons(six ? ICMPV6_ECHO_REQUEST << 8 : ICMP_ECHO << 8), to = bpf_htons(type << 8);
	__u32 vip[4];
	__u32 at = ETH_HLEN + (six ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr));

	four(vip, p->dst, six);
	__u32 *service = bpf_map_lookup_elem(&vips, vip);
	if (!service)
		return drop(DROP_NO_SERVICE);
	if (!back && *service & ELSEWHERE)
		return PASS;
	if (bpf_l4_csum_replace(skb, p->l4 + ICMP_CHECK, from, to, 2) ||
	    bpf_skb_store_bytes(skb, p->l4, &type, 1, 0) || turn(skb))
		return drop(DROP_KERNEL);
	if (bpf_skb_store_bytes(skb, at, p->dst, six ? 16 : 4, 0) ||
	    bpf_skb_store_bytes(skb, at + (six ? 16 : 4), p->src, six ? 16 : 4, 0))
		return drop(DROP_KERNEL);
	return bpf_redirect(skb->ifindex, back);
}

/* deliver_error sends an error to the instance that sent the quoted packet (RFC 1191,
 * RFC 8201). Without these errors a path with a smaller MTU loses every large packet. */
inlined int deliver_error(struct __sk_buff *skb, struct packet *p, int six)
{
	struct quote q = {};
	union flow_any k;

	if (read_quote(skb, p, &q, six) || !same(q.src, p->dst, six))
		return drop(DROP_HEADER);
	flow_key_of(&k, q.dst, q.src, q.dport, q.sport, q.protocol, six);
	struct flow *f = find_flow(&k, six);
	if (!f)
		return elsewhere(p->dst, six) ? PASS : drop(DROP_NO_FLOW);
	__u32 n = f->endpoint;
	__u16 target = f->target;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (!e || !e->ifindex || e->epoch != f->epoch)
		return drop(DROP_NO_ENDPOINT);
	if (requote(skb, p, q.l4, q.sport, target))
		return drop(DROP_KERNEL);
	return forward(skb, p, n, e, 0);
}

apart int icmp_to_vip(struct __sk_buff *skb, struct packet *p, __u32 six, __u64 back)
{
	if (!p)
		return DROP;
	__u8 type;

	if (p->part != WHOLE)
		return drop(DROP_FRAGMENT);
	if (bpf_skb_load_bytes(skb, p->l4, &type, 1))
		return drop(DROP_HEADER);
	if (type == (six ? ICMPV6_ECHO_REQUEST : ICMP_ECHO))
		return six ? echo(skb, p, 1, back) : echo(skb, p, 0, back);
	if (is_error(type, six))
		return six ? deliver_error(skb, p, 1) : deliver_error(skb, p, 0);
	return drop(DROP_PROTOCOL);
}

/* error_from_vip lets an instance send, as its VIP, an error about a packet it received. */
apart int error_from_vip(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	if (!p)
		return DROP;
	struct quote q = {};
	__u8 type;

	if (p->part != WHOLE || bpf_skb_load_bytes(skb, p->l4, &type, 1) || !is_error(type, six))
		return drop(DROP_SPOOFED);
	if ((six ? read_quote(skb, p, &q, 1) : read_quote(skb, p, &q, 0)) || !same(q.dst, p->src, six))
		return drop(DROP_SPOOFED);
	__u16 *published = translation(skb->ifindex, q.dport, q.protocol,
	    is_front(p->src, six) ? TARGET_TO_HOST : TO_PUBLISHED);
	if (!published)
		return drop(DROP_SPOOFED);
	return requote(skb, p, q.l4 + 2, q.dport, *published) ? drop(DROP_KERNEL) : PASS;
}

#endif
