/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tunnel to endpoints of other hosts: VXLAN on a device that takes its receiver from the packet
 * (driver/network/ebpf/tunnel.go). The tag of an endpoint has 64 bits, the same on all hosts. The VNI has
 * its high 24 bits. The destination MAC has a mark in its first byte, then the low 40 bits. */
#ifndef TUNNEL_H
#define TUNNEL_H

#include "reply.h"

enum how { IS_FIRST = 1, IS_OPENING = 2 }; /* it begins a flow; its flow is not held here */

/* TO_HELD, TO_OPENING: a packet to an endpoint, from a flow in that state. The others are messages
 * back. IS_PROVEN: the endpoint's host has proven the packet's flow, so the other host may hold it.
 * IS_GONE: no endpoint there has the tag, so the flow that was to begin chooses anew. IS_ENDED: the
 * instance has no socket of the flow any more. */
enum mark { TO_HELD = 0x02, IS_PROVEN = 0x06, TO_OPENING = 0x0a, IS_GONE = 0x0e, IS_ENDED = 0x12 };

#define TUNNEL_TTL 64
#define OPTIONS_MAX 10 /* words of TCP options */
#define OPTION_END 0
#define OPTION_NONE 1
#define OPTION_MSS 2

/* address_tunnel sets the receiver of a packet that goes into the tunnel. */
inlined int address_tunnel(struct __sk_buff *skb, const __u32 *remote, __u32 tunnel)
{
	struct bpf_tunnel_key t = {.tunnel_id = tunnel, .tunnel_ttl = TUNNEL_TTL};

	if (remote[2] == bpf_htonl(0xffff) && !remote[0] && !remote[1]) {
		t.remote_ipv4 = bpf_ntohl(remote[3]);
		t.local_ipv4 = bpf_ntohl(own_addr[3]);
		return bpf_skb_set_tunnel_key(skb, &t, sizeof(t), BPF_F_ZERO_CSUM_TX);
	}
	copy(t.remote_ipv6, remote, 1);
	for (int i = 0; i < 4; i++)
		t.local_ipv6[i] = own6_addr[i];
	return bpf_skb_set_tunnel_key(skb, &t, sizeof(t), BPF_F_TUNINFO_IPV6);
}

/* into_tunnel sends a packet to an endpoint of another host. A packet from the tunnel never
 * goes into it again: two hosts that each count on the other would send it to and fro. */
apart int into_tunnel(struct __sk_buff *skb, struct endpoint *e, __u32 how)
{
	if (!e)
		return DROP;
	__u8 mark = TO_OPENING;

	if (skb->ifindex == e->ifindex)
		return drop(DROP_NO_ENDPOINT);
	if (how & IS_OPENING && bpf_skb_store_bytes(skb, 0, &mark, 1, 0))
		return drop(DROP_KERNEL);
	if (address_tunnel(skb, e->remote, e->tunnel))
		return drop(DROP_KERNEL);
	return bpf_redirect(e->ifindex, 0);
}

/* clamp lowers the MSS option of a SYN, so that no packet of its receiver is too large. */
apart int clamp(struct __sk_buff *skb, struct packet *p, __u32 most)
{
	if (!p)
		return DROP;
	__u32 at = p->l4 + sizeof(struct tcphdr), end;
	__u8 offset, option[4];
	__u16 mss, less = bpf_htons(most);

	if (bpf_skb_load_bytes(skb, p->l4 + 12, &offset, 1))
		return 0;
	end = p->l4 + (offset >> 4) * 4;
	for (int i = 0; i < OPTIONS_MAX; i++) {
		if (at + 4 > end || bpf_skb_load_bytes(skb, at, option, 4) || option[0] == OPTION_END)
			return 0;
		if (option[0] == OPTION_NONE) {
			at++;
			continue;
		}
		if (option[0] == OPTION_MSS)
			break;
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	if (option[0] != OPTION_MSS || option[1] != 4)
		return 0;
	__builtin_memcpy(&mss, option + 2, 2);
	if (bpf_ntohs(mss) <= most ||
	    bpf_l4_csum_replace(skb, p->l4 + offsetof(struct tcphdr, check), mss, less, 2))
		return 0;
	return bpf_skb_store_bytes(skb, at + 2, &less, 2, 0);
}

#endif
