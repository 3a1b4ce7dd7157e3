/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that other hosts send to endpoints of this host. The other host has chosen the endpoint.
 * This host notes the flow, translates the port and sends the reply directly to the client. */
#ifndef ARRIVE_H
#define ARRIVE_H

#include "icmp.h"

#define NO_SLOT 0xffffffff

/* A packet's way through the tunnel. */
struct arrival {
	__u64 tag;
	__u32 from[4]; /* the address of the other host */
	__u32 room;
	__u32 number; /* of the other host */
	__u32 slot; /* of the endpoint, NO_SLOT if no endpoint here has the tag */
	__u8 mark;
	__u8 pad[3];
};

/* read_arrival reads the tag and the sender. It returns the reason to drop the packet, else 0. */
inlined int read_arrival(struct __sk_buff *skb, struct arrival *a)
{
	struct bpf_tunnel_key t = {};
	__u8 mac[6];

	if (!bpf_skb_get_tunnel_key(skb, &t, sizeof(t), 0)) {
		__u32 sender = bpf_htonl(t.remote_ipv4);
		four(a->from, &sender, 0);
	} else if (!bpf_skb_get_tunnel_key(skb, &t, sizeof(t), BPF_F_TUNINFO_IPV6)) {
		copy(a->from, t.remote_ipv6, 1);
	} else {
		return DROP_STRANGER;
	}
	struct peer *peer = bpf_map_lookup_elem(&peers, a->from);
	if (!peer)
		return DROP_STRANGER;
	a->room = peer->room & LOW_HALF;
	a->number = peer->room >> HALF;
	if (bpf_skb_load_bytes(skb, 0, mac, sizeof(mac)))
		return DROP_HEADER;
	a->mark = mac[0];
	a->tag = (__u64)(t.tunnel_id & 0xffffff) << 40 | (__u64)mac[1] << 32 | (__u64)mac[2] << 24 |
	    (__u64)mac[3] << 16 | (__u64)mac[4] << 8 | mac[5];
	__u32 *slot = bpf_map_lookup_elem(&arrivals, &a->tag);
	a->slot = slot ? *slot : NO_SLOT;
	return 0;
}

/* report sends a copy of a packet back, as a message about its flow. */
cold int report(struct __sk_buff *skb, struct arrival *a, __u32 what)
{
	__u8 mark = what;

	if (bpf_skb_store_bytes(skb, 0, &mark, 1, 0) || address_tunnel(skb, a->from, a->tag >> 40))
		return -1;
	return bpf_clone_redirect(skb, skb->ifindex, 0);
}

/* end_far removes a flow after its instance has closed the socket. A flow that was seen within
 * SEEN_STEP is a newer one with the same ports: its instance's host reports after two seconds. */
cold int end_far(const union flow_any *k, struct flow *f, __u32 six)
{
	__u32 n = f->endpoint, flags = f->flags, service = f->service;

	if (bpf_jiffies64() - f->seen <= SEEN_STEP || !remove_flow(k, service, six))
		return DROP;
	count(COUNT_REMOVED);
	if (!(flags & (FLOW_FIN | FLOW_RST)))
		count_live(n, -1);
	return DROP;
}

/* believe obeys a message: hold or forget a flow that is opening, or remove a flow that has ended.
 * A message never has an answer. */
cold int believe(struct __sk_buff *skb, struct packet *p, struct arrival *a, __u32 six)
{
	union flow_any k;
	struct flow *f;

	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		f = a->mark == IS_ENDED ? find_flow(&k, 1) : find_opening(&k, 1);
	} else {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
		f = a->mark == IS_ENDED ? find_flow(&k, 0) : find_opening(&k, 0);
	}
	if (!f)
		return DROP;
	__u32 n = f->endpoint;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (!e || !e->away || e->epoch != f->epoch || e->tunnel != a->tag >> 40 ||
	    !same(e->remote, a->from, 1))
		return DROP;
	if (a->mark == IS_ENDED)
		return end_far(&k, f, six);
	struct flow proven = *f;
	if (a->mark == IS_PROVEN) {
		proven.flags |= FLOW_ESTABLISHED;
		hold(&k, &proven, six);
	} else if (!(proven.flags & USED) && remove_flow(&k, proven.service, six)) {
		count(COUNT_REMOVED);
	}
	return DROP;
}

/* settle adds a flow to the endpoint that the other host has chosen. A packet that opens nothing
 * belongs to a flow that this table lost: the instance resets it if it has no such connection. */
cold int settle(struct __sk_buff *skb, struct packet *p, struct arrival *a, __u32 six)
{
	int opens = p->protocol != IPPROTO_TCP || (p->flags & (SYN | ACK)) == SYN;
	struct service_key sk = {.port = p->dport, .protocol = p->protocol};
	__u32 slot = a->slot;
	union flow_any k;

	four(sk.addr, p->dst, six);
	__u32 *service = bpf_map_lookup_elem(&ports, &sk);
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	if (!service || !e || !e->ifindex || e->away || e->service != *service)
		return REFUSE + DROP_NO_ENDPOINT;
	int target = target_of(e, p);
	if (target < 0)
		return REFUSE + DROP_NO_ENDPOINT;
	struct flow f = {.endpoint = slot, .epoch = e->epoch, .target = target, .service = *service,
	    .room = a->room, .seen = bpf_jiffies64()};
	f.flags = (opens ? 0 : FLOW_ESTABLISHED) | a->number << HALF;
	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		add_flow(&k, &f, 1);
		return send(skb, p, slot, e, target, opens ? IS_FIRST : 0, 1);
	}
	flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
	add_flow(&k, &f, 0);
	return send(skb, p, slot, e, target, opens ? IS_FIRST : 0, 0);
}

/* resume sends a packet of a flow in this host's table to the flow's endpoint. The sockets are
 * here, so the choice of the other host does not count. It returns ANEW without such a flow. */
inlined int resume(struct __sk_buff *skb, struct packet *p, struct arrival *a, int six)
{
	union flow_any k;

	flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, six);
	struct flow *f = find_held(&k, six);
	int is_held = !!f;
	if (!f)
		f = find_opening(&k, six);
	if (!f)
		return ANEW;
	__u32 n = f->endpoint;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (e && e->away)
		return ANEW; /* it entered here before */
	if (f->flags >> HALF != a->number) /* the client's way has changed */
		f->flags = (f->flags & LOW_HALF) | a->number << HALF;
	if (a->mark == TO_OPENING &&
	    (is_held ? bpf_jiffies64() - f->seen > SEEN_STEP : is_proven(skb, p, f)))
		report(skb, a, IS_PROVEN);
	return carry(skb, p, &k, f, is_held, six);
}

cold int resume4(struct __sk_buff *skb, struct packet *p, struct arrival *a)
{
	return resume(skb, p, a, 0);
}

cold int resume6(struct __sk_buff *skb, struct packet *p, struct arrival *a)
{
	return resume(skb, p, a, 1);
}

/* refuse_arrival answers a packet of a lost connection by this host's routes. It never answers one
 * that opens a flow: this host may not have the endpoint yet, and the client tries again. */
cold int refuse_arrival(struct __sk_buff *skb, struct packet *p, __u32 why, __u32 six)
{
	__u32 vip[4];

	four(vip, p->dst, six);
	if (p->protocol != IPPROTO_TCP || p->flags & SYN || !bpf_map_lookup_elem(&vips, vip))
		return drop(why);
	if (refuse(skb, p, why, six, 0) == DROP || bpf_skb_change_type(skb, 0))
		return DROP;
	return PASS;
}

/* missing handles a packet of an unknown flow to an unknown endpoint. */
cold int missing(struct __sk_buff *skb, struct packet *p, struct arrival *a)
{
	if (p->protocol != IPPROTO_TCP || (p->flags & (SYN | ACK)) == SYN)
		report(skb, a, IS_GONE);
	return REFUSE + DROP_NO_ENDPOINT;
}

/* arrived handles a packet for a VIP that came by the tunnel. */
inlined int arrived(struct __sk_buff *skb, struct arrival *a, int six)
{
	struct packet p = {};
	int verdict = ANEW;

	if (addresses(skb, &p, six))
		return drop(DROP_HEADER);
	if (!is_vip(p.dst, six))
		return drop(DROP_NO_SERVICE);
	struct packet q = p;
	if (transport(skb, &q, six))
		return drop(DROP_HEADER);
	if (q.protocol != IPPROTO_TCP && q.protocol != IPPROTO_UDP)
		return IS_ICMP(&q, six) ? icmp_to_vip(skb, &q, six, 0) : drop(DROP_PROTOCOL);
	if (q.part == LATER)
		return follow(skb, &q, six);
	if (a->mark == IS_PROVEN || a->mark == IS_GONE || a->mark == IS_ENDED)
		return believe(skb, &q, a, six);
	verdict = six ? resume6(skb, &q, a) : resume4(skb, &q, a);
	if (verdict == ANEW && a->slot != NO_SLOT)
		verdict = settle(skb, &q, a, six);
	else if (verdict == ANEW)
		verdict = missing(skb, &q, a);
	return verdict < REFUSE ? verdict : refuse_arrival(skb, &q, verdict - REFUSE, six);
}

/* from_tunnel runs at the ingress of the tunnel's device. */
SEC("tc")
int from_tunnel(struct __sk_buff *skb)
{
	struct arrival a = {};
	int why = read_arrival(skb, &a);

	if (why)
		return drop(why);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return arrived(skb, &a, 0);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return arrived(skb, &a, 1);
	return drop(DROP_PROTOCOL);
}

#endif
