/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads packets: the usual whole packet without options in place, any other packet in walk. */
#ifndef PACKET_H
#define PACKET_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"

#define PASS -1 /* TCX_NEXT */
#define DROP 2  /* TCX_DROP */
#define inlined static __always_inline
/* The verifier follows a static function at every call, and one that is apart once, for any
 * arguments. So it asks for a look at each pointer, and a load costs a quarter of the time. A
 * kernel of 6.1 takes no pointer of such a function as the key of a map. */
#define cold static __noinline
#define apart __noinline
#define unlikely(x) __builtin_expect(!!(x), 0)
#define L4(six) (ETH_HLEN + ((six) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))

/* Codes of ICMP and ICMPv6 (linux/icmp.h would include the C library). */
enum { ICMP_ECHOREPLY = 0, ICMP_DEST_UNREACH = 3, ICMP_ECHO = 8, ICMP_TIME_EXCEEDED = 11,
    ICMP_PARAMETERPROB = 12 };
enum { ICMPV6_DEST_UNREACH = 1, ICMPV6_PARAMPROB = 4, ICMPV6_ECHO_REQUEST = 128,
    ICMPV6_ECHO_REPLY = 129 };
enum { ICMP_FRAG_NEEDED = 4, ICMPV6_PKT_TOOBIG = 2 };
enum { ICMP_PORT_UNREACH = 3, ICMPV6_PORT_UNREACH = 4, ICMP_CHECK = 2, ICMP_BYTES = 8 };

#define LINK_BYTES 1500 /* the largest IP packet that the link of an instance takes */
#define EXTENSIONS_MAX 4
#define NEXT_HOP 0
#define NEXT_FRAGMENT 44
#define NEXT_OPTIONS 60
#define IS_ICMP(p, six) ((p)->protocol == ((six) ? IPPROTO_ICMPV6 : IPPROTO_ICMP))

volatile const __u32 vip_net, vip_mask, gateway;
volatile const __u32 vip6_net[2], gateway6[4]; /* a /64 */
volatile const __u32 own_addr[4]; /* of this host, for tunnels; 0: the kernel chooses */
volatile const __u32 own6_addr[4]; /* likewise, towards hosts with an IPv6 address */
volatile const __u32 own_slot; /* the number of this host */
volatile const __u32 held_max, held6_max; /* places of held flows, by family */
volatile const __u32 guarded_max, guarded6_max; /* places of guarded flows, by family */
/* There may be unguarded flows. The sweep clears it, so that a first packet saves a lookup. */
volatile __u32 unguarded = 1;
volatile __u32 tunnel_device; /* its ifindex; 0: there is none */
volatile __u32 migrating; /* flows are being copied from tables of another layout */

enum part { WHOLE, FIRST, LATER };
enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };
enum verdict { READ, TRUNCATED };

struct packet {
	__u32 src[4], dst[4]; /* IPv4 uses the first word only */
	__u32 id;             /* of a fragment */
	__u16 sport, dport;
	__u16 l4; /* where the transport header begins */
	__u8 protocol;
	__u8 flags; /* of TCP: FIN, SYN, RST, ACK */
	__u8 part;
};

inlined void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);
	if (n)
		(*n)++;
}

apart int drop(__u32 why)
{
	count(why);
	return DROP;
}

inlined int same(const __u32 *a, const __u32 *b, int six)
{
	if (!six)
		return a[0] == b[0];
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

inlined void copy(__u32 *to, const __u32 *from, int six)
{
	to[0] = from[0];
	if (six) {
		to[1] = from[1];
		to[2] = from[2];
		to[3] = from[3];
	}
}

/* four writes an address in the form of the maps for both families. */
inlined void four(__u32 *to, const __u32 *from, int six)
{
	if (six) {
		copy(to, from, 1);
	} else {
		to[0] = to[1] = 0;
		to[2] = bpf_htonl(0xffff);
		to[3] = from[0];
	}
}

inlined int is_vip(const __u32 *a, int six)
{
	if (!six)
		return (a[0] & vip_mask) == vip_net && a[0] != gateway;
	return a[0] == vip6_net[0] && a[1] == vip6_net[1] && !(a[2] == gateway6[2] && a[3] == gateway6[3]);
}

/* The front of a host is a VIP that stands for the host's own address while a packet is steered:
 * 10.127.252.0/22 and ...:0:1::/96, by the number of the host (bpf/front.bpf.c). */
#define FRONT_MASK bpf_htonl(0xfffffc00)
#define FRONT_PART bpf_htonl(0x0000fc00)
#define FRONT6 bpf_htonl(1)

/* is_front returns whether a VIP is the front of a host. */
inlined int is_front(const __u32 *vip, int six)
{
	return six ? vip[2] == FRONT6 : (vip[0] & FRONT_PART) == FRONT_PART;
}

/* front_of writes the front of the host with a number. */
inlined void front_of(__u32 *to, __u32 n, int six)
{
	if (six) {
		to[0] = vip6_net[0];
		to[1] = vip6_net[1];
		to[2] = FRONT6;
		to[3] = bpf_htonl(n);
	} else {
		to[0] = vip_net | FRONT_PART | bpf_htonl(n);
	}
}

/* addresses reads the network header. The caller has checked the EtherType (six: IPv6). */
inlined int addresses(struct __sk_buff *skb, struct packet *p, int six)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (unlikely(data + L4(six) > end)) {
		if (bpf_skb_pull_data(skb, L4(six)))
			return TRUNCATED;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + L4(six) > end)
			return TRUNCATED;
	}
	if (six) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		copy(p->src, ip->saddr.in6_u.u6_addr32, 1);
		copy(p->dst, ip->daddr.in6_u.u6_addr32, 1);
		p->protocol = ip->nexthdr;
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		p->src[0] = ip->saddr;
		p->dst[0] = ip->daddr;
		p->protocol = ip->protocol;
	}
	return READ;
}

/* extensions skips hop-by-hop and destination options and a fragment header. It stops at a
 * routing header, which hides the real destination, and at ESP and AH, which hide the ports. */
inlined int extensions(struct __sk_buff *skb, struct packet *p)
{
	__u32 at = L4(1);
	__u8 next = p->protocol;

	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 h[8];
		if (next != NEXT_HOP && next != NEXT_OPTIONS && next != NEXT_FRAGMENT)
			break;
		if (bpf_skb_load_bytes(skb, at, h, sizeof(h)))
			return TRUNCATED;
		if (next == NEXT_FRAGMENT) {
			__u16 where = (__u16)h[2] << 8 | h[3];
			p->part = where >> 3 ? LATER : where & 1 ? FIRST : WHOLE;
			__builtin_memcpy(&p->id, h + 4, 4);
			at += 8;
		} else {
			at += 8 + h[1] * 8;
		}
		next = h[0];
		if (p->part == LATER)
			break;
	}
	p->protocol = next;
	p->l4 = at;
	return next == NEXT_HOP || next == NEXT_OPTIONS || next == NEXT_FRAGMENT ? TRUNCATED : READ;
}

/* walk reads every packet that transport cannot read in place. */
apart int walk(struct __sk_buff *skb, struct packet *p, int six)
{
	if (!p)
		return TRUNCATED;
	if (six) {
		if (extensions(skb, p))
			return TRUNCATED;
	} else {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.ihl < 5)
			return TRUNCATED;
		p->l4 = ETH_HLEN + ip.ihl * 4;
		p->part = ip.frag_off & bpf_htons(0x1fff) ? LATER
		    : ip.frag_off & bpf_htons(0x2000) ? FIRST : WHOLE;
		p->id = ip.id;
	}
	if (p->part == LATER)
		return READ;
	__u8 h[sizeof(struct tcphdr)];
	if (p->protocol == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, p->l4, h, sizeof(struct tcphdr)))
			return TRUNCATED;
		p->flags = h[13];
	} else if (p->protocol == IPPROTO_UDP) {
		if (bpf_skb_load_bytes(skb, p->l4, h, sizeof(struct udphdr)))
			return TRUNCATED;
	} else {
		return READ;
	}
	__builtin_memcpy(&p->sport, h, 2);
	__builtin_memcpy(&p->dport, h + 2, 2);
	return READ;
}

/* transport reads the headers after the network header. */
inlined int transport(struct __sk_buff *skb, struct packet *p, int six)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + ETH_HLEN;
	int plain = p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP;

	p->part = WHOLE;
	p->id = p->flags = 0;
	p->sport = p->dport = 0;
	if (!six)
		plain = plain && data + L4(0) <= end && ip->ihl == 5 && !(ip->frag_off & bpf_htons(0x3fff));
	p->l4 = L4(six);
	if (plain && p->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = data + L4(six);
		if ((void *)(tcp + 1) <= end) {
			p->sport = tcp->source;
			p->dport = tcp->dest;
			p->flags = *((volatile __u8 *)tcp + 13);
			return READ;
		}
	} else if (plain) {
		struct udphdr *udp = data + L4(six);
		if ((void *)(udp + 1) <= end) {
			p->sport = udp->source;
			p->dport = udp->dest;
			return READ;
		}
	}
	struct packet q = *p; /* so that p itself may stay in registers */
	int err = walk(skb, &q, six);
	*p = q;
	return err;
}

/* translate replaces a port at an offset of the transport header. */
inlined int translate(struct __sk_buff *skb, struct packet *p, __u32 offset, __u16 from, __u16 to)
{
	__u32 check = p->l4 + (p->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check)
							  : offsetof(struct udphdr, check));
	__u64 flags = 2 | (p->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);

	if (bpf_l4_csum_replace(skb, check, from, to, flags))
		return -1;
	return bpf_skb_store_bytes(skb, p->l4 + offset, &to, sizeof(to), 0);
}

#endif
