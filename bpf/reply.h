/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Refuses packets so that clients do not wait: TCP with RST (RFC 9293 §3.10.7.1), UDP with
 * "port unreachable" (RFC 1122 §3.2.2.1, RFC 4443 §3.1). The packet itself becomes the answer. */
#ifndef REPLY_H
#define REPLY_H

#include "packet.h"

#define UNREACHABLE_PER_SECOND_MAX 1000 /* per CPU: an answer is larger than the smallest packet */
#define SECOND 1000000000ull

/* The part of an answer after its network header. */
struct reply {
	__u32 body[14]; /* zero after bytes */
	__u32 bytes;
	__u32 check; /* offset of its checksum */
	__u32 seal;  /* offset of the checksum in the packet that is answered */
	__u8 protocol;
};

inlined __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* is_partial returns whether the network card has yet to write the checksum (CHECKSUM_PARTIAL).
 * Only then the kernel leaves a checksum unchanged. The two bytes at `at` must be zero. */
inlined int is_partial(struct __sk_buff *skb, __u32 at)
{
	__u16 now = 0;

	bpf_l4_csum_replace(skb, at, 0, 1, 2);
	bpf_skb_load_bytes(skb, at, &now, sizeof(now));
	bpf_l4_csum_replace(skb, at, 1, 0, 2);
	return !now;
}

inlined int turn(struct __sk_buff *skb)
{
	__u8 mac[12], turned[12];

	if (bpf_skb_load_bytes(skb, 0, mac, 12))
		return -1;
	__builtin_memcpy(turned, mac + 6, 6);
	__builtin_memcpy(turned + 6, mac, 6);
	return bpf_skb_store_bytes(skb, 0, turned, 12, 0);
}

inlined int store_header(struct __sk_buff *skb, const struct packet *p, const struct reply *r,
			 int six)
{
	if (six) {
		struct ipv6hdr ip = {.version = 6, .hop_limit = 64, .nexthdr = r->protocol,
		    .payload_len = bpf_htons(r->bytes)};
		copy(ip.saddr.in6_u.u6_addr32, p->dst, 1);
		copy(ip.daddr.in6_u.u6_addr32, p->src, 1);
		return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
	}
	struct iphdr ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = r->protocol,
	    .frag_off = bpf_htons(0x4000)};
	ip.tot_len = bpf_htons(sizeof(ip) + r->bytes);
	ip.saddr = p->dst[0];
	ip.daddr = p->src[0];
	ip.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

inlined __u64 pseudo_header(const struct packet *p, const struct reply *r, int six)
{
	__u32 h[10] = {};

	if (!six && r->protocol == IPPROTO_ICMP)
		return 0;
	copy(h, p->src, six);
	copy(h + 4, p->dst, six);
	h[8] = bpf_htonl(r->bytes);
	h[9] = bpf_htonl(r->protocol);
	return bpf_csum_diff(0, 0, h, sizeof(h), 0);
}

/* respond turns the packet into its answer. If the checksum is still partial, the network
 * card sums up all from the transport header on and writes the complement at seal. The
 * sum of the pseudo header, stored at seal, then also makes the answer's checksum right. */
inlined int respond(struct __sk_buff *skb, struct packet *p, struct reply *r, int six)
{
	__u32 bytes = r->bytes, check = r->check & 31, seal = r->seal & 31;

	if (p->l4 != L4(six) || p->part != WHOLE || bytes < 20 || bytes > sizeof(r->body))
		return drop(DROP_KERNEL);
	if (bpf_skb_change_tail(skb, L4(six) + bytes, 0) || turn(skb) || store_header(skb, p, r, six) ||
	    bpf_skb_store_bytes(skb, L4(six), r->body, bytes, BPF_F_RECOMPUTE_CSUM))
		return drop(DROP_KERNEL);
	__u64 pseudo = pseudo_header(p, r, six);
	__u16 seed = fold(pseudo);
	__u16 sum = ~fold(pseudo + (__u32)bpf_csum_diff(0, 0, r->body, sizeof(r->body), 0));
	if (is_partial(skb, L4(six) + seal)) {
		if (check != seal)
			bpf_skb_store_bytes(skb, L4(six) + seal, &seed, 2, BPF_F_RECOMPUTE_CSUM);
		else
			sum = seed;
	} else if (check != seal) {
		seed = 0;
		bpf_skb_store_bytes(skb, L4(six) + seal, &seed, 2, BPF_F_RECOMPUTE_CSUM);
	}
	if (bpf_skb_store_bytes(skb, L4(six) + check, &sum, 2, BPF_F_RECOMPUTE_CSUM))
		return drop(DROP_KERNEL);
	count(COUNT_REFUSED);
	return 0;
}

inlined int reset(struct __sk_buff *skb, struct packet *p, int six)
{
	struct tcphdr was;
	__u16 length = 0;

	if (p->flags & RST || bpf_skb_load_bytes(skb, p->l4, &was, sizeof(was)) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + (six ? 4 : 2), &length, 2))
		return DROP;
	__u32 header = (((__u8 *)&was)[12] >> 4) * 4;
	__u32 segment = bpf_ntohs(length) + (six ? sizeof(struct ipv6hdr) : 0) + ETH_HLEN - p->l4 - header;
	struct reply r = {.bytes = sizeof(struct tcphdr), .check = offsetof(struct tcphdr, check),
	    .protocol = IPPROTO_TCP};
	r.seal = r.check;
	/* both in network order, on a little-endian machine */
	r.body[0] = (__u32)was.dest | (__u32)was.source << 16;
	if (p->flags & ACK) {
		r.body[1] = was.ack_seq;
		r.body[3] = bpf_htonl(5u << 28 | RST << 16);
	} else {
		r.body[2] = bpf_htonl(bpf_ntohl(was.seq) + segment + !!(p->flags & SYN) + !!(p->flags & FIN));
		r.body[3] = bpf_htonl(5u << 28 | (RST | ACK) << 16);
	}
	return respond(skb, p, &r, six);
}

/* may_answer limits the number of errors per second. */
inlined int may_answer(void)
{
	__u32 zero = 0;
	struct pace *pace = bpf_map_lookup_elem(&paces, &zero);

	if (!pace)
		return 0;
	__u64 now = bpf_ktime_get_coarse_ns();
	if (now - pace->since > SECOND) {
		pace->since = now;
		pace->answers = 0;
	}
	return pace->answers++ < UNREACHABLE_PER_SECOND_MAX;
}

inlined int unreachable(struct __sk_buff *skb, struct packet *p, int six)
{
	struct reply r = {.check = 2, .seal = offsetof(struct udphdr, check)};

	if (p->l4 != L4(six) || !may_answer())
		return DROP;
	if (six) {
		r.bytes = 8 + sizeof(struct ipv6hdr) + 8;
		r.protocol = IPPROTO_ICMPV6;
		r.body[0] = bpf_htonl(ICMPV6_DEST_UNREACH << 24 | ICMPV6_PORT_UNREACH << 16);
		if (bpf_skb_load_bytes(skb, ETH_HLEN, r.body + 2, sizeof(struct ipv6hdr) + 8))
			return DROP;
	} else {
		r.bytes = 8 + sizeof(struct iphdr) + 8;
		r.protocol = IPPROTO_ICMP;
		r.body[0] = bpf_htonl(ICMP_DEST_UNREACH << 24 | ICMP_PORT_UNREACH << 16);
		if (bpf_skb_load_bytes(skb, ETH_HLEN, r.body + 2, sizeof(struct iphdr) + 8))
			return DROP;
	}
	return respond(skb, p, &r, six);
}

/* write_before writes the header of an error and its checksum. inner: the sum of what it quotes,
 * bytes: its length. */
inlined int write_before(struct __sk_buff *skb, const struct packet *p, __u32 inner, __u32 bytes,
			 int six)
{
	struct reply r = {.bytes = ICMP_BYTES + bytes, .protocol = six ? IPPROTO_ICMPV6 : IPPROTO_ICMP};
	__u32 icmp[2] = {};

	icmp[0] = six ? bpf_htonl(ICMPV6_PKT_TOOBIG << 24)
		      : bpf_htonl(ICMP_DEST_UNREACH << 24 | ICMP_FRAG_NEEDED << 16);
	icmp[1] = bpf_htonl(LINK_BYTES);
	__u64 sum = pseudo_header(p, &r, six) + inner + (__u32)bpf_csum_diff(0, 0, icmp, sizeof(icmp), 0);
	icmp[0] |= (__u32)(__u16)~fold(sum) << 16; /* on a little-endian machine */
	return turn(skb) || store_header(skb, p, &r, six) ||
	    bpf_skb_store_bytes(skb, L4(six), icmp, sizeof(icmp), BPF_F_RECOMPUTE_CSUM);
}

/* quote puts the headers of an error before the packet, of which it keeps the beginning. The packet
 * stays where it is, so that a checksum that the network card has yet to write is the quoted one: a
 * receiver that gets it unwritten ignores it. */
inlined int quote(struct __sk_buff *skb, struct packet *p, int six)
{
	__u32 kept = p->protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr);
	__u32 words[17] = {}, head = p->l4 - ETH_HLEN, bytes = head + kept; /* 40 + 8 + 20 at most */
	__u32 check = p->l4 + (p->protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check)
							  : offsetof(struct udphdr, check));
	__u16 seed = 0, zero = 0;

	if (head < 20 || head > 48 || bytes < 28 || bytes > sizeof(words) ||
	    bpf_skb_change_tail(skb, p->l4 + kept, 0) || bpf_skb_load_bytes(skb, check, &seed, 2))
		return -1;
	bpf_skb_store_bytes(skb, check, &zero, 2, BPF_F_RECOMPUTE_CSUM);
	int partial = is_partial(skb, check);
	bpf_skb_store_bytes(skb, check, &seed, 2, BPF_F_RECOMPUTE_CSUM);
	if (bpf_skb_load_bytes(skb, ETH_HLEN, words, partial ? head : bytes))
		return -1;
	__u32 inner = bpf_csum_diff(0, 0, words, sizeof(words), 0);
	if (partial) /* the card makes the rest the complement of its seed */
		inner = fold((__u64)inner + (__u16)~seed);
	if (bpf_skb_adjust_room(skb, L4(six) - ETH_HLEN + ICMP_BYTES, BPF_ADJ_ROOM_MAC,
	    BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return -1;
	return write_before(skb, p, inner, bytes, six);
}

/* too_large drops a packet that no link of an instance takes, and tells its sender the largest size
 * (RFC 1191, RFC 8201). The kernel would drop it in silence, and the sender would try for ever. A
 * later fragment has no ports, so only the first one of its datagram is answered. */
apart int too_large(struct __sk_buff *skb, struct packet *p, __u32 six, __u64 back)
{
	if (!p)
		return DROP;
	count(DROP_TOO_LARGE);
	if (p->part == LATER || !may_answer())
		return DROP;
	if (six ? quote(skb, p, 1) : quote(skb, p, 0))
		return drop(DROP_KERNEL);
	count(COUNT_REFUSED);
	return bpf_redirect(skb->ifindex, back);
}

/* refuse drops a packet to a VIP and answers its sender. back: bpf_redirect's way to the sender. */
apart int refuse(struct __sk_buff *skb, struct packet *p, __u32 why, __u32 six, __u64 back)
{
	if (!p)
		return DROP;
	int err = DROP;

	count(why);
	if (p->part != WHOLE)
		return DROP;
	if (p->protocol == IPPROTO_TCP)
		err = six ? reset(skb, p, 1) : reset(skb, p, 0);
	else if (p->protocol == IPPROTO_UDP)
		err = six ? unreachable(skb, p, 1) : unreachable(skb, p, 0);
	return err ? DROP : bpf_redirect(skb->ifindex, back);
}

#endif
