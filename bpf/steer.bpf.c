/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Steers flows to instances without a process on the path (DSR without NAT; see driver/network/ebpf). */
#include "travel.h"

/* to_vip handles a packet to a VIP after its addresses were read. */
inlined int to_vip(struct __sk_buff *skb, struct packet *p, int six, __u64 back)
{
	if (transport(skb, p, six))
		return drop(DROP_HEADER);
	if (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP) {
		/* The kernel itself splits what a card has joined. */
		if (unlikely(skb->len > ETH_HLEN + LINK_BYTES && !skb->gso_size)) {
			struct packet q = *p;
			return too_large(skb, &q, six, back);
		}
		return steer(skb, p, six, back);
	}
	if (!IS_ICMP(p, six))
		return drop(DROP_PROTOCOL);
	struct packet q = *p;
	return icmp_to_vip(skb, &q, six, back);
}

/* arriving handles a packet that reaches this host or begins on it. */
inlined int arriving(struct __sk_buff *skb, __u64 back)
{
	struct packet p = {};

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return addresses(skb, &p, 0) || !is_vip(p.dst, 0) ? PASS : to_vip(skb, &p, 0, back);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return addresses(skb, &p, 1) || !is_vip(p.dst, 1) ? PASS : to_vip(skb, &p, 1, back);
	return PASS;
}

/* from_outside runs at the ingress of an uplink. A switch floods frames for a dead host to all
 * others. A host without the flow would reset it. */
SEC("tc")
int from_outside(struct __sk_buff *skb)
{
	return skb->pkt_type == PACKET_HOST ? arriving(skb, 0) : PASS;
}

/* from_host runs at the egress of pando0, which carries the host's own packets to VIPs. */
SEC("tc")
int from_host(struct __sk_buff *skb)
{
	__u64 back = BPF_F_INGRESS;

	barrier_var(back); /* the compiler's own copies of the code take more stack */
	return arriving(skb, back);
}

/* note marks a flow that its instance answers or ends. The forward path misses this packet. */
apart int note(struct __sk_buff *skb, struct packet *p, __u32 published, __u32 six)
{
	if (!p)
		return DROP;
	union flow_any k;
	struct flow *f;
	__u32 sequence;

	if (six) {
		flow_key_of(&k, p->dst, p->src, p->dport, published, p->protocol, 1);
		f = find_flow(&k, 1);
	} else {
		flow_key_of(&k, p->dst, p->src, p->dport, published, p->protocol, 0);
		f = find_flow(&k, 0);
	}
	if (!f)
		return 0;
	if (p->flags & SYN) {
		if (bpf_skb_load_bytes(skb, p->l4 + offsetof(struct tcphdr, seq), &sequence, 4))
			return 0;
		f->answer = bpf_ntohl(sequence);
		f->flags |= FLOW_ANSWERED;
		if (f->room)
			clamp(skb, p, f->room - (six ? 60 : 40));
	}
	if (p->flags & (FIN | RST)) {
		if (!(f->flags & (FLOW_FIN | FLOW_RST)) && !f->room) /* else its ingress counts it */
			count_live(f->endpoint, -1);
		f->flags |= p->flags & RST ? FLOW_RST : FLOW_FIN;
		note_end_of(f->endpoint);
	}
	return 0;
}

#define IPV6_SUM (1ull << 7) /* BPF_F_IPV6, from Linux 6.16 on */

/* become_vip sets the VIP as the source. Only the first fragment of a datagram has a checksum. */
inlined int become_vip(struct __sk_buff *skb, struct packet *p, const __u32 *vip, int six)
{
	__u32 check = p->l4 + offsetof(struct udphdr, check);
	__u64 flags = BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0;

	if (six) {
		__u32 diff = bpf_csum_diff(p->src, 16, (__be32 *)vip, 16, 0);
		/* A kernel without BPF_F_IPV6 gets the card's sum wrong, but sums up again itself. */
		if (p->part != LATER && bpf_l4_csum_replace(skb, check, 0, diff, flags | IPV6_SUM) &&
		    bpf_l4_csum_replace(skb, check, 0, diff, flags))
			return -1;
		/* If no checksum balances the new address, the card's sum must change. */
		return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, saddr), vip, 16,
		    p->part == LATER ? BPF_F_RECOMPUTE_CSUM : 0);
	}
	if (p->part != LATER && bpf_l4_csum_replace(skb, check, p->src[0], vip[0], flags | 4))
		return -1;
	if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), p->src[0], vip[0], 4))
		return -1;
	return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, saddr), vip, 4, 0);
}

#define BY_FRONT 1 /* the epoch of an answer in fragments to a client of this host's own address */

/* answer sets the VIP as the source of a UDP server's answer, if the client used the VIP. */
inlined int answer(struct __sk_buff *skb, struct packet *p, const __u32 *own, int six)
{
	union flow_any k;
	__u32 vip[4];

	copy(vip, own, six);
	if (p->part == LATER) {
		struct fragment_key fk;
		fragment_key_of(&fk, p, six);
		struct fragment *first = bpf_map_lookup_elem(&fragments, &fk);
		if (!first)
			return PASS;
		if (first->epoch == BY_FRONT)
			front_of(vip, own_slot, six);
		return become_vip(skb, p, vip, six) ? drop(DROP_KERNEL) : PASS;
	}
	__u16 *published = translation(skb->ifindex, p->sport, IPPROTO_UDP, TO_PUBLISHED);
	if (!published)
		return PASS;
	__u16 port = *published;
	__u32 by = 0;
	flow_key_of(&k, p->dst, vip, p->dport, port, IPPROTO_UDP, six);
	struct flow *f = find_flow(&k, six);
	if (!f) { /* the client may have used this host's own address */
		__u16 *at_host = translation(skb->ifindex, p->sport, IPPROTO_UDP, TARGET_TO_HOST);
		if (!at_host)
			return PASS;
		port = *at_host;
		by = BY_FRONT;
		front_of(vip, own_slot, six);
		flow_key_of(&k, p->dst, vip, p->dport, port, IPPROTO_UDP, six);
		f = find_flow(&k, six);
		if (!f)
			return PASS;
	}
	if (!(f->flags & FLOW_ANSWERED))
		f->flags |= FLOW_ANSWERED;
	if (p->part == FIRST)
		remember_fragments(p, 0, by, six);
	if (port != p->sport && translate(skb, p, offsetof(struct udphdr, source), p->sport, port))
		return drop(DROP_KERNEL);
	return become_vip(skb, p, vip, six) ? drop(DROP_KERNEL) : PASS;
}

cold int answer4(struct __sk_buff *skb, struct packet *p, const struct instance_link *l)
{
	return l ? answer(skb, p, l->vip[0], 0) : DROP;
}

cold int answer6(struct __sk_buff *skb, struct packet *p, const struct instance_link *l)
{
	return l ? answer(skb, p, l->vip[1], 1) : DROP;
}

/* reply handles a packet sent from the VIP: it replaces the target by the published port. */
inlined int reply(struct __sk_buff *skb, struct packet *p, int six)
{
	if (p->protocol != IPPROTO_TCP && p->protocol != IPPROTO_UDP) {
		struct packet q = *p;
		return IS_ICMP(p, six) ? error_from_vip(skb, &q, six) : drop(DROP_SPOOFED);
	}
	if (unlikely(p->part == LATER))
		return PASS; /* useless to the receiver without its first fragment, which is checked */
	__u16 *published = translation(skb->ifindex, p->sport, p->protocol,
	    is_front(p->src, six) ? TARGET_TO_HOST : TO_PUBLISHED);
	if (!published)
		return drop(DROP_SPOOFED); /* the VIP, but not a port of the service */
	__u16 port = *published;
	if (p->flags & (SYN | FIN | RST)) {
		struct packet q = *p;
		note(skb, &q, port, six);
	}
	if (port != p->sport && translate(skb, p, offsetof(struct udphdr, source), p->sport, port))
		return drop(DROP_KERNEL);
	return PASS;
}

enum { ROUTER_SOLICITATION = 133, ROUTER_ADVERTISEMENT, NEIGHBOUR_SOLICITATION,
    NEIGHBOUR_ADVERTISEMENT, REDIRECT };

/* chatter passes IPv6 neighbour discovery and drops router advertisements and redirects. */
apart int chatter(struct __sk_buff *skb, struct packet *p, __u32 own)
{
	if (!p)
		return DROP;
	__u8 type;

	if (p->protocol == IPPROTO_ICMPV6 && p->part == WHOLE &&
	    !bpf_skb_load_bytes(skb, p->l4, &type, 1)) {
		if (type == NEIGHBOUR_SOLICITATION || type == NEIGHBOUR_ADVERTISEMENT)
			return PASS;
		if (type == ROUTER_ADVERTISEMENT || type == REDIRECT)
			return drop(DROP_SPOOFED);
	}
	return own ? PASS : drop(DROP_CHATTER);
}

inlined int is_link_local(const __u32 *a)
{
	return (a[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) || !(a[0] | a[1] | a[2] | a[3]);
}

/* leaving handles an IP packet of an instance. */
inlined int leaving(struct __sk_buff *skb, struct instance_link *l, int six)
{
	struct packet p = {};

	if (addresses(skb, &p, six))
		return drop(DROP_HEADER);
	int own = same(p.src, l->addr[six], six);
	if (is_vip(p.dst, six))
		return own ? to_vip(skb, &p, six, 0) : drop(DROP_SPOOFED);
	if (own && p.protocol == IPPROTO_TCP) {
		struct packet q = p;
		return six ? across(skb, &q, 1) : across(skb, &q, 0);
	}
	if (transport(skb, &p, six))
		return drop(DROP_HEADER);
	if (!own && (same(p.src, l->vip[six], six) || (is_vip(p.src, six) && is_front(p.src, six))))
		return reply(skb, &p, six);
	struct packet q = p;
	if (own && p.protocol == IPPROTO_UDP)
		return six ? answer6(skb, &q, l) : answer4(skb, &q, l);
	if (six && (own || is_link_local(p.src)))
		return chatter(skb, &q, own);
	return own ? PASS : drop(DROP_SPOOFED);
}

#define ARP_SENDER_IP 14

/* speaks_for passes an instance's ARP packets that have its own sender address, or none. */
cold int speaks_for(struct __sk_buff *skb, __u32 addr)
{
	__u32 ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN + ARP_SENDER_IP, &ip, sizeof(ip)))
		return drop(DROP_HEADER);
	return ip == addr || !ip ? PASS : drop(DROP_SPOOFED);
}

/* from_instance runs at the ingress of the host's end of an instance's link. */
SEC("tc")
int from_instance(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	__u32 ifindex = skb->ifindex;
	struct instance_link *l = bpf_map_lookup_elem(&links, &ifindex);

	if (!l) /* a sandbox that waits for its instance: no program is in it, only a kernel */
		return drop(DROP_CHATTER);
	if ((void *)(eth + 1) > end || skb->vlan_present)
		return drop(DROP_SPOOFED);
	__u32 high, mac_high;
	__u16 low, mac_low;
	__builtin_memcpy(&high, eth->h_source, 4);
	__builtin_memcpy(&low, eth->h_source + 4, 2);
	__builtin_memcpy(&mac_high, l->mac, 4);
	__builtin_memcpy(&mac_low, l->mac + 4, 2);
	if (high != mac_high || low != mac_low)
		return drop(DROP_SPOOFED);
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return leaving(skb, l, 0);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return leaving(skb, l, 1);
	if (eth->h_proto == bpf_htons(ETH_P_ARP))
		return speaks_for(skb, l->addr[0][0]);
	return drop(DROP_CHATTER);
}

const struct order *order_for_user_space; /* so that the object describes the type */

/* obey carries out an order of user space. It returns 1 if the order had an effect. */
inlined int obey(const struct order *o, __u32 six)
{
	union flow_any k = {};
	struct flow f = o->flow;

	__builtin_memcpy(&k, o->key, sizeof(k));
	struct flow *was = find_flow(&k, six);
	switch (o->what & ~ORDER_COPIED) {
	case ORDER_ADD:
		if (was)
			return 0;
		add_flow(&k, &f, six);
		break;
	case ORDER_HOLD:
		if (was)
			f = *was;
		f.flags |= FLOW_ESTABLISHED;
		if (!hold(&k, &f, six))
			return 0;
		break;
	case ORDER_FORGET:
		if (!was || was->endpoint != f.endpoint || was->epoch != f.epoch ||
		    was->flags != f.flags || was->seen != f.seen)
			return 0;
		if (!remove_flow(&k, was->service, six))
			return 0;
		count(COUNT_SWEPT);
		break;
	default:
		return 0;
	}
	if (o->what & ORDER_COPIED)
		count(COUNT_SWEPT); /* so that the flow is not counted twice */
	return 1;
}

/* change changes the connection table for user space, in step with all counts. */
SEC("tc")
int change(struct __sk_buff *skb)
{
	struct order o;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &o, sizeof(o)))
		return 0;
	return o.six ? obey(&o, 1) : obey(&o, 0);
}

/* post sends a message of user space into the tunnel. cb has the address of the other host and the
 * VNI of the tag. */
SEC("tc")
int post(struct __sk_buff *skb)
{
	__u32 to[4] = {skb->cb[0], skb->cb[1], skb->cb[2], skb->cb[3]};

	if (address_tunnel(skb, to, skb->cb[4]))
		return -1;
	return bpf_clone_redirect(skb, skb->ifindex, 0);
}

/* ticks returns the kernel's time to user space, in the connection table's unit. */
SEC("tc")
int ticks(struct __sk_buff *skb)
{
	return bpf_jiffies64();
}

/* nothing is the baseline program for every benchmark. */
SEC("tc")
int nothing(struct __sk_buff *skb)
{
	return PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
