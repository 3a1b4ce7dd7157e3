/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The IP packet inside tags and sessions, and the flow of an ICMP message. flowlet.bpf.c includes
 * this after its key and its order. */
#ifndef INSIDE_H
#define INSIDE_H

/* has_ports returns all ones if ports follow the IP header, else 0. */
inlined __u64 has_ports(__u8 protocol, __u32 fragment)
{
	__u64 tcp = (__u64)protocol ^ IPPROTO_TCP, udp = (__u64)protocol ^ IPPROTO_UDP;

	return (assign_sign(tcp - 1) | assign_sign(udp - 1)) & assign_sign((__u64)fragment - 1);
}

#define TCP_FLAGS 12      /* of the TCP header: two bytes, the second one has the flags */
#define FLAGS_MASK 0xff00 /* in those two bytes, as a little-endian number */

/* is_tcp returns all ones for TCP, else 0. */
inlined __u64 is_tcp(__u8 protocol)
{
	return assign_sign(((__u64)protocol ^ IPPROTO_TCP) - 1);
}

/* unwrap skips VLAN tags and a PPPoE header, from offset `at`. It returns the IP
 * packet's offset << 16 | EtherType, or 0. function/flow/src/lib.rs skips the same. */
__noinline __u32 unwrap(struct __sk_buff *skb, __u32 at, __u32 ethertype)
{
	__be16 tag[2], session[4];

#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (ethertype != bpf_htons(ETH_P_8021Q) && ethertype != bpf_htons(ETH_P_8021AD))
			break;
		if (bpf_skb_load_bytes(skb, at, tag, sizeof(tag)))
			return 0;
		ethertype = tag[1];
		at += sizeof(tag);
	}
	if (ethertype == bpf_htons(ETH_P_PPP_SES)) {
		/* Version 1, type 1, code 0; number; length; PPP's protocol. */
		if (bpf_skb_load_bytes(skb, at, session, sizeof(session)) || session[0] != bpf_htons(0x1100))
			return 0;
		ethertype = session[3] == bpf_htons(0x0021) ? bpf_htons(ETH_P_IP)
			  : session[3] == bpf_htons(0x0057) ? bpf_htons(ETH_P_IPV6) : 0;
		at += sizeof(session);
	}
	return IS_IP(ethertype) ? at << 16 | ethertype : 0;
}

/* An ICMP header, and the first bytes of a transport in the same places. */
struct flowlet_icmp {
	__u8 type, code;
	__be16 sum, id, sequence;
};

/* is_echo returns 1 for an ICMP echo or its answer, of either version. */
inlined int is_echo(__u8 protocol, __u8 type)
{
	return (protocol == IPPROTO_ICMP && (type == 0 || type == 8)) ||
	       (protocol == IPPROTO_ICMPV6 && (type == 128 || type == 129));
}

/* quote reads the flow of the packet that an ICMP error quotes from offset `at`. It needs the IP
 * header and the 8 bytes behind it. The key stays as it is if the quote names no flow. */
inlined void quote(struct __sk_buff *skb, __u32 at, struct flowlet_key *key)
{
	__u32 src[4] = {}, dst[4] = {}, words = key->version == 4 ? 1 : 4;
	struct flowlet_icmp behind;
	__u8 protocol, first;
	__u16 fragment = 0, ports[2] = {};

	if (bpf_skb_load_bytes(skb, at, &first, 1) || first >> 4 != key->version)
		return;
	if (words == 1) {
		if (bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, protocol), &protocol, 1) ||
		    bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, frag_off), &fragment, 2) ||
		    bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, saddr), src, 4) ||
		    bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, daddr), dst, 4))
			return;
		at += (first & 15) * 4;
	} else {
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &protocol, 1) ||
		    bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, saddr), src, 16) ||
		    bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, daddr), dst, 16))
			return;
		at += sizeof(struct ipv6hdr);
	}
	if (fragment & bpf_htons(0x1fff) || bpf_skb_load_bytes(skb, at, &behind, sizeof(behind)))
		return;
	if (is_echo(protocol, behind.type))
		ports[0] = ports[1] = behind.id;
	else if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return; /* no error is sent about an error */
	__u16 with = has_ports(protocol, 0);
	ports[0] |= *(__u16 *)&behind.type & with;
	ports[1] |= behind.sum & with;
	key->protocol = protocol;
	if (words == 1)
		order(key, src, dst, ports, 1);
	else
		order(key, src, dst, ports, 4);
}

/* relate gives an ICMP message with IP header `at` its flow: an echo has its identifier as both
 * ports, an error has the flow of the packet that it quotes. A later fragment has no header. It
 * returns 1 for an error, which neither end of the flow needs to have sent.
 * function/flow/src/lib.rs does the same. */
__noinline int relate(struct __sk_buff *skb, __u32 at, struct flowlet_key *key, __u32 fragment)
{
	struct flowlet_icmp icmp;
	__u8 first;

	if (!key || (fragment & (key->version == 4 ? bpf_htons(0x1fff) : bpf_htons(0xfff8))) ||
	    bpf_skb_load_bytes(skb, at, &first, 1))
		return 0;
	at += key->version == 4 ? (first & 15) * 4 : sizeof(struct ipv6hdr);
	if (key->version == 6 && fragment)
		at += 8;
	if (bpf_skb_load_bytes(skb, at, &icmp, sizeof(icmp)))
		return 0;
	if (is_echo(key->protocol, icmp.type)) {
		key->low_port = key->high_port = icmp.id;
		return 0;
	}
	if (!fragment && (key->protocol == IPPROTO_ICMP
			      ? icmp.type == 3 || icmp.type == 11 || icmp.type == 12
			      : icmp.type >= 1 && icmp.type <= 4)) {
		quote(skb, at + sizeof(icmp), key);
		return 1;
	}
	return 0;
}

#endif
