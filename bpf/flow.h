/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows: the connection table, the choice of an endpoint and the forwarding to it. */
#ifndef FLOW_H
#define FLOW_H

#include "reply.h"

#define REFUSE 100 /* above every action */
#define SEEN_STEP 64 /* how exactly it is known when a flow was last seen, in ticks */

union flow_any {
	struct flow_key four;
	struct flow_key6 six;
};

inlined void flow_key_of(union flow_any *k, const __u32 *client, const __u32 *vip,
			 __u16 client_port, __u16 port, __u8 protocol, int six)
{
	if (six) {
		copy(k->six.client, client, 1);
		k->six.vip[0] = vip[2];
		k->six.vip[1] = vip[3];
		k->six.client_port = client_port;
		k->six.port = port;
		k->six.protocol = protocol;
		__builtin_memset(k->six.pad, 0, sizeof(k->six.pad));
	} else {
		k->four.client = client[0];
		k->four.client_port = client_port;
		k->four.port = port;
		k->four.vip = vip[0] >> 16; /* in network order, on a little-endian machine */
		k->four.protocol = protocol;
		k->four.pad = 0;
	}
}

inlined struct flow *find_flow(const union flow_any *k, int six)
{
	return six ? bpf_map_lookup_elem(&flows6, &k->six) : bpf_map_lookup_elem(&flows, &k->four);
}

inlined void add_flow(const union flow_any *k, const struct flow *f, int six)
{
	if (!find_flow(k, six))
		count(COUNT_ADDED);
	if (six)
		bpf_map_update_elem(&flows6, &k->six, f, BPF_ANY);
	else
		bpf_map_update_elem(&flows, &k->four, f, BPF_ANY);
}

inlined void remove_flow(const union flow_any *k, int six)
{
	if (!(six ? bpf_map_delete_elem(&flows6, &k->six) : bpf_map_delete_elem(&flows, &k->four)))
		count(COUNT_REMOVED);
}

/* translation returns the port on the other side of an instance's port. */
inlined __u16 *translation(__u32 ifindex, __u16 port, __u8 protocol, __u8 goes)
{
	struct port_key k = {.ifindex = ifindex, .port = port, .protocol = protocol, .goes = goes};

	return bpf_map_lookup_elem(&translations, &k);
}

inlined __u32 hash(const struct packet *p, int six)
{
	__u32 client = p->src[0] * 0x9E3779B1u, vip = six ? p->dst[3] : p->dst[0];

	if (six)
		client = ((client ^ p->src[1]) * 0x85EBCA77u ^ p->src[2]) * 0xC2B2AE3Du ^ p->src[3] * 0x27D4EB2Fu;
	__u32 h = client ^ (((__u32)p->sport << 16) | p->dport);
	h ^= h >> 15;
	h *= 0x85EBCA77u;
	h ^= vip + p->protocol;
	h ^= h >> 13;
	h *= 0xC2B2AE3Du;
	return h ^ h >> 16;
}

/* pick returns a flow's endpoint from the current or the previous table, -1 if it has none. */
inlined int pick(__u32 service, __u32 hashed, int before)
{
	struct service *s = bpf_map_lookup_elem(&services, &service);
	if (!s)
		return -1;
	__u32 which = (*(volatile __u32 *)&s->active ^ before) & 1;
	if (!s->endpoints[which])
		return -1;
	__u32 n = service * 2 + which;
	struct table *t = bpf_map_lookup_elem(&tables, &n);
	if (!t)
		return -1;
	__u32 slot = hashed % TABLE_SLOTS;
	asm volatile("" : "+r"(slot)); /* the verifier does not follow % */
	if (slot >= TABLE_SLOTS)
		return -1;
	return t->endpoint[slot];
}

/* forward sends a packet to an endpoint. */
inlined int forward(struct __sk_buff *skb, struct packet *p, __u32 n, struct endpoint *e, int first)
{
	struct counters *c = bpf_map_lookup_elem(&traffic, &n);
	if (c) {
		c->packets++;
		c->bytes += skb->len;
		c->flows += first;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + ETH_HLEN > end)
		return drop(DROP_KERNEL);
	__builtin_memcpy(data, e->mac, 6);
	__builtin_memcpy(data + 6, e->host_mac, 6);
	return bpf_redirect(e->ifindex, 0);
}

/* elsewhere returns whether another host serves a VIP. Packets
 * without a flow here pass there unchanged by this host's routes. */
cold int elsewhere(const __u32 *vip, __u32 six)
{
	__u32 key[4];

	four(key, vip, six);
	__u32 *service = bpf_map_lookup_elem(&vips, key);
	return service && *service & ELSEWHERE;
}

inlined void fragment_key_of(struct fragment_key *k, const struct packet *p, int six)
{
	four(k->src, p->src, six);
	four(k->dst, p->dst, six);
	k->id = p->id;
	k->protocol = p->protocol;
	__builtin_memset(k->pad, 0, sizeof(k->pad));
}

cold int remember_fragments(struct packet *p, __u32 n, __u32 epoch, __u32 six)
{
	struct fragment_key k;
	struct fragment f = {.endpoint = n, .epoch = epoch};

	fragment_key_of(&k, p, six);
	return bpf_map_update_elem(&fragments, &k, &f, BPF_ANY);
}

/* follow sends a fragment to the endpoint of its datagram's first fragment. */
cold int follow(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	struct fragment_key k;

	fragment_key_of(&k, p, six);
	struct fragment *f = bpf_map_lookup_elem(&fragments, &k);
	if (!f)
		return elsewhere(p->dst, six) ? PASS : drop(DROP_FRAGMENT);
	__u32 n = f->endpoint;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (!e || !e->ifindex || e->epoch != f->epoch)
		return drop(DROP_NO_ENDPOINT);
	return forward(skb, p, n, e, 0);
}

/* send is the last step to an instance: it replaces the published port by the target. */
inlined int send(struct __sk_buff *skb, struct packet *p, __u32 n, struct endpoint *e, __u16 target,
		 int first, int six)
{
	if (unlikely(p->part == FIRST)) {
		struct packet q = *p;
		remember_fragments(&q, n, e->epoch, six);
	}
	if (target != p->dport && translate(skb, p, offsetof(struct udphdr, dest), p->dport, target))
		return drop(DROP_KERNEL);
	return forward(skb, p, n, e, first);
}

/* start adds a flow from a bucket of the service's table. A packet that opens nothing belongs
 * to a flow that the table lost. The previous table names its likely endpoint; if both tables
 * agree, start restores the flow. For a packet to refuse it returns REFUSE + reason. */
cold int start(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	struct service_key sk = {.port = p->dport, .protocol = p->protocol};
	int opens = p->protocol != IPPROTO_TCP || (p->flags & (SYN | ACK)) == SYN;
	union flow_any k;

	four(sk.addr, p->dst, six);
	__u32 *service = bpf_map_lookup_elem(&ports, &sk);
	if (!service) {
		/* This host may be about to take over the unknown address: do not reset the connection. */
		if (!opens && !bpf_map_lookup_elem(&vips, sk.addr))
			return drop(DROP_NO_SERVICE);
		return REFUSE + DROP_NO_SERVICE;
	}
	__u32 hashed = six ? hash(p, 1) : hash(p, 0);
	int now = pick(*service, hashed, 0), n = now;
	if (!opens && !migrating) {
		n = pick(*service, hashed, 1);
		if (n < 0)
			n = now;
	}
	if (n < 0)
		return REFUSE + (opens ? DROP_NO_ENDPOINT : DROP_NO_FLOW);
	__u32 slot = n;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	__u16 *target = e && e->ifindex && e->service == *service
	    ? translation(e->ifindex, p->dport, p->protocol, 0) : 0;
	if (!e || !target)
		return REFUSE + (opens ? DROP_NO_ENDPOINT : DROP_NO_FLOW);
	if (n == now) {
		struct flow f = {.endpoint = slot, .epoch = e->epoch, .target = *target, .seen = bpf_jiffies64()};
		f.flags = opens ? 0 : FLOW_ESTABLISHED;
		if (six) {
			flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
			add_flow(&k, &f, 1);
		} else {
			flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
			add_flow(&k, &f, 0);
		}
	}
	return send(skb, p, slot, e, *target, opens, six);
}

inlined int begin(struct __sk_buff *skb, struct packet *p, int six, __u64 back)
{
	struct packet q = *p; /* so that p itself may stay in registers */

	int verdict = start(skb, &q, six);

	/* Once this host has no flows to lose, its own packets (back) go there by a separate route. */
	if (verdict >= REFUSE && !back && elsewhere(p->dst, six))
		return PASS;
	return verdict < REFUSE ? verdict : refuse(skb, &q, verdict - REFUSE, six, back);
}

/* steer sends a TCP or UDP packet for a VIP to the endpoint of its flow. */
inlined int steer(struct __sk_buff *skb, struct packet *p, int six, __u64 back)
{
	union flow_any k;

	if (unlikely(p->part == LATER)) {
		struct packet q = *p;
		return follow(skb, &q, six);
	}
	flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, six);
	struct flow *f = find_flow(&k, six);
	if (!f)
		return begin(skb, p, six, back);
	int tcp = p->protocol == IPPROTO_TCP, opens = tcp && (p->flags & (SYN | ACK)) == SYN;
	/* A SYN on an established flow is another connection with the same
	 * ports. A SYN on a flow that is still opening is a retransmission. */
	if (opens && f->flags)
		return begin(skb, p, six, back);
	__u32 n = f->endpoint;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (unlikely(!e || !e->ifindex || e->epoch != f->epoch)) {
		remove_flow(&k, six);
		if (!tcp || opens)
			return begin(skb, p, six, back);
		struct packet q = *p;
		return refuse(skb, &q, DROP_NO_ENDPOINT, six, back);
	}
	if (tcp) {
		__u32 flags = f->flags | (p->flags & SYN ? 0 : FLOW_ESTABLISHED) |
		    (p->flags & FIN ? FLOW_FIN : 0) |
			      (p->flags & RST ? FLOW_RST : 0);
		if (flags != f->flags)
			f->flags = flags;
	}
	if (!opens) {
		__u64 now = bpf_jiffies64(); /* a load; the clock would cost 20 ns */
		if (now - f->seen > SEEN_STEP)
			f->seen = now;
	}
	return send(skb, p, n, e, f->target, 0, six);
}

#endif
