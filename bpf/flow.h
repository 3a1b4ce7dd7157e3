/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows: the connection table, the choice of an endpoint and the forwarding to it. */
#ifndef FLOW_H
#define FLOW_H

#include "choose.h"
#include "held.h"
#include "sleep.h"

#define REFUSE 100 /* above every action */
#define ANEW 99    /* the packet begins another flow */
#define KNOWN 98   /* the flow is in the table now */
#define GONE 97    /* the flow's endpoint has left this host */
#define USED (FLOW_ESTABLISHED | FLOW_FIN | FLOW_RST)
#define ANSWER_WINDOW (1 << 20) /* bytes that an instance sends before its client's first ACK */
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

inlined struct flow *find_held(const union flow_any *k, int six)
{
	return six ? bpf_map_lookup_elem(&flows6, &k->six) : bpf_map_lookup_elem(&flows, &k->four);
}

/* find_opening returns a flow that is not proven. Nearly always there is no unguarded one. */
inlined struct flow *find_opening(const union flow_any *k, int six)
{
	struct flow *f = six ? bpf_map_lookup_elem(&guarded6, &k->six)
			     : bpf_map_lookup_elem(&guarded, &k->four);

	if (f || !unguarded)
		return f;
	return six ? bpf_map_lookup_elem(&opening6, &k->six)
		   : bpf_map_lookup_elem(&opening, &k->four);
}

/* remove_opening deletes an opening flow of a service and returns whether there was one. */
inlined int remove_opening(const union flow_any *k, __u32 service, __u32 six)
{
	if (!(six ? bpf_map_delete_elem(&guarded6, &k->six)
		  : bpf_map_delete_elem(&guarded, &k->four))) {
		leave_guarded(service, six);
		return 1;
	}
	return unguarded && !(six ? bpf_map_delete_elem(&opening6, &k->six)
				  : bpf_map_delete_elem(&opening, &k->four));
}

inlined struct flow *find_flow(const union flow_any *k, int six)
{
	struct flow *f = find_held(k, six);

	return f ? f : find_opening(k, six);
}

/* hold moves a flow to the held ones. */
inlined int hold(const union flow_any *k, const struct flow *f, __u32 six)
{
	if (!enter_held(f->service, six))
		return 0;
	if (six ? bpf_map_update_elem(&flows6, &k->six, f, BPF_NOEXIST)
		: bpf_map_update_elem(&flows, &k->four, f, BPF_NOEXIST)) {
		leave_held(f->service, six);
		return 0;
	}
	if (!remove_opening(k, f->service, six))
		count(COUNT_ADDED);
	return 1;
}

/* remove_flow deletes a flow of a service and returns whether there was one. */
inlined int remove_flow(const union flow_any *k, __u32 service, __u32 six)
{
	if (!(six ? bpf_map_delete_elem(&flows6, &k->six) : bpf_map_delete_elem(&flows, &k->four)))
		leave_held(service, six);
	else if (!remove_opening(k, service, six))
		return 0;
	return 1;
}

inlined void add_flow(const union flow_any *k, const struct flow *f, int six)
{
	struct flow *was = find_flow(k, six);

	if (was && remove_flow(k, was->service, six))
		count(COUNT_REMOVED);
	count(COUNT_ADDED);
	if (enter_guarded(f->service, six)) {
		if (!(six ? bpf_map_update_elem(&guarded6, &k->six, f, BPF_ANY)
			  : bpf_map_update_elem(&guarded, &k->four, f, BPF_ANY)))
			return;
		leave_guarded(f->service, six);
	}
	if (!unguarded)
		unguarded = 1;
	if (six)
		bpf_map_update_elem(&opening6, &k->six, f, BPF_ANY);
	else
		bpf_map_update_elem(&opening, &k->four, f, BPF_ANY);
}

/* translation returns the port on the other side of an instance's port. */
inlined __u16 *translation(__u32 ifindex, __u16 port, __u8 protocol, __u8 goes)
{
	struct port_key k = {.ifindex = ifindex, .port = port, .protocol = protocol, .goes = goes};

	return bpf_map_lookup_elem(&translations, &k);
}

#define ROTATED(x, n) ((x) << (n) | (x) >> (32 - (n)))

inlined void sip_round(__u32 *v)
{
	v[0] += v[1];
	v[1] = ROTATED(v[1], 5) ^ v[0];
	v[0] = ROTATED(v[0], 16);
	v[2] += v[3];
	v[3] = ROTATED(v[3], 8) ^ v[2];
	v[0] += v[3];
	v[3] = ROTATED(v[3], 7) ^ v[0];
	v[2] += v[1];
	v[1] = ROTATED(v[1], 13) ^ v[2];
	v[2] = ROTATED(v[2], 16);
}

inlined void sip_word(__u32 *v, __u32 word)
{
	v[3] ^= word;
	sip_round(v);
	v[0] ^= word;
}

/* hash is HalfSipHash-1-3 of a flow, or of its client, with a random key: a client cannot choose
 * its bucket. */
inlined __u32 hash(const struct packet *p, int client, int six)
{
	__u32 zero = 0, words = six ? 7 : 4;
	struct hash_key *key = bpf_map_lookup_elem(&hash_keys, &zero);

	if (!key)
		return 0;
	__u32 v[4] = {key->word[0], key->word[1], key->word[0] ^ 0x6c796765, key->word[1] ^ 0x74656462};
	sip_word(v, p->src[0]);
	if (six) {
		sip_word(v, p->src[1]);
		sip_word(v, p->src[2]);
		sip_word(v, p->src[3]);
	}
	if (!client) {
		sip_word(v, (__u32)p->sport << 16 | p->dport);
		sip_word(v, six ? p->dst[3] : p->dst[0]);
	}
	sip_word(v, words << 26 | (client ? 0 : p->protocol));
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return v[1] ^ v[3];
}

/* place_of returns the place of a packet in the table of its service, by the service's policy. */
apart __u32 place_of(struct packet *p, __u32 service, __u32 six)
{
	if (!p)
		return 0;
	struct policy *how = bpf_map_lookup_elem(&policies, &service);

	if (how && how->by == BY_CLIENT)
		return six ? hash(p, 1, 1) : hash(p, 1, 0);
	return six ? hash(p, 0, 1) : hash(p, 0, 0);
}

/* forward sends a packet to an endpoint. */
inlined int forward(struct __sk_buff *skb, struct packet *p, __u32 n, struct endpoint *e, int how)
{
	struct counters *c = bpf_map_lookup_elem(&traffic, &n);
	if (c) {
		c->packets++;
		c->bytes += skb->len;
		c->flows += how & IS_FIRST;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + ETH_HLEN > end)
		return drop(DROP_KERNEL);
	__builtin_memcpy(data, e->mac, 6);
	__builtin_memcpy(data + 6, e->host_mac, 6);
	if (unlikely(e->away))
		return into_tunnel(skb, e, how);
	return bpf_redirect(e->ifindex, 0);
}

/* note_end_of counts a packet that ends a flow of an endpoint. */
apart int note_end_of(__u32 n)
{
	struct counters *c = bpf_map_lookup_elem(&traffic, &n);
	if (c)
		c->ends++;
	return 0;
}

/* elsewhere returns whether another host serves a VIP. Packets without a flow here pass there. */
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

apart int remember_fragments(struct packet *p, __u32 n, __u32 epoch, __u32 six)
{
	if (!p)
		return DROP;
	struct fragment_key k;
	struct fragment f = {.endpoint = n, .epoch = epoch};

	fragment_key_of(&k, p, six);
	return bpf_map_update_elem(&fragments, &k, &f, BPF_ANY);
}

/* follow sends a fragment to the endpoint of its datagram's first fragment. */
apart int follow(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	if (!p)
		return DROP;
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
		 int how, int six)
{
	if (unlikely(p->part == FIRST)) {
		struct packet q = *p;
		remember_fragments(&q, n, e->epoch, six);
	}
	if (target != p->dport && translate(skb, p, offsetof(struct udphdr, dest), p->dport, target))
		return drop(DROP_KERNEL);
	return forward(skb, p, n, e, how);
}

/* target_of returns the port at which an endpoint listens, -1 if it has none. Only the host of an
 * endpoint translates ports. */
inlined int target_of(const struct endpoint *e, const struct packet *p, int six)
{
	int front = six ? is_front(p->dst, 1) : is_front(p->dst, 0);

	if (e->away)
		return p->dport;
	__u16 *target = translation(e->ifindex, p->dport, p->protocol,
	    front ? HOST_TO_TARGET : TO_TARGET);
	return target ? *target : -1;
}

/* service_key_of writes the key of a packet's service. All fronts have the same services. */
inlined void service_key_of(struct service_key *k, const struct packet *p, int six)
{
	four(k->addr, p->dst, six);
	k->port = p->dport;
	k->protocol = p->protocol;
	k->pad = 0;
	if (is_front(p->dst, six))
		k->addr[3] = six ? 0 : k->addr[3] & FRONT_MASK;
}

int seek(struct __sk_buff *skb, struct packet *p, __u32 six);

/* start adds a flow from a bucket of the service's table. A packet that opens nothing belongs
 * to a flow that is not in this host's table: seek finds it (door.h). If this host alone serves the
 * service and no socket has the flow, the previous table names its likely endpoint; if both tables
 * agree, start restores the flow. For a packet to refuse it returns REFUSE + reason. */
apart int start(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	if (!p)
		return DROP;
	int opens = p->protocol != IPPROTO_TCP || (p->flags & (SYN | ACK)) == SYN;
	struct service_key sk;
	union flow_any k;

	if (six)
		service_key_of(&sk, p, 1);
	else
		service_key_of(&sk, p, 0);
	__u32 *service = bpf_map_lookup_elem(&ports, &sk);
	if (!service) {
		/* This host may be about to take over the unknown address: do not reset the connection. */
		if (!opens && !bpf_map_lookup_elem(&vips, sk.addr))
			return drop(DROP_NO_SERVICE);
		return REFUSE + DROP_NO_SERVICE;
	}
	__u32 hashed = place_of(p, *service, six);
	if (!opens && migrating) /* another layout's table may have it: its sender tries again */
		return elsewhere(p->dst, six) ? PASS : drop(DROP_NO_FLOW);
	int now = opens ? choose(*service, hashed) : pick(*service, hashed, 0), n = now;
	if (!opens) {
		n = pick(*service, hashed, 1);
		if (n < 0)
			n = now;
	}
	if (n < 0) {
		int held = opens ? hold_back(skb, p, *service) : 0;
		return held ? held : REFUSE + (opens ? DROP_NO_ENDPOINT : DROP_NO_FLOW);
	}
	__u32 slot = n;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	int target = e && e->ifindex && e->service == *service ? target_of(e, p, six) : -1;
	if (!e || target < 0)
		return REFUSE + (opens ? DROP_NO_ENDPOINT : DROP_NO_FLOW);
	if (n == now) {
		count_live(slot, 1);
		struct flow f = {.endpoint = slot, .epoch = e->epoch, .target = target,
		    .service = *service, .seen = bpf_jiffies64()};
		f.flags = opens ? 0 : FLOW_ESTABLISHED;
		if (six) {
			flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
			add_flow(&k, &f, 1);
		} else {
			flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
			add_flow(&k, &f, 0);
		}
	}
	return send(skb, p, slot, e, target, (opens ? IS_FIRST : 0) | IS_OPENING, six);
}

/* is_proven returns whether a packet shows that its client receives the instance's answers: for
 * TCP, it acknowledges the instance's SYN. A sender with a false source address never sees it. */
inlined int is_proven(struct __sk_buff *skb, struct packet *p, const struct flow *f)
{
	__u32 acknowledged;

	if (!(f->flags & FLOW_ANSWERED))
		return 0;
	if (p->protocol != IPPROTO_TCP)
		return 1;
	if (!(p->flags & ACK) || p->flags & (SYN | RST) ||
	    bpf_skb_load_bytes(skb, p->l4 + offsetof(struct tcphdr, ack_seq), &acknowledged, 4))
		return 0;
	return bpf_ntohl(acknowledged) - f->answer - 1 < ANSWER_WINDOW;
}

/* carry sends a packet of a known flow to the flow's endpoint. It returns ANEW if the packet begins
 * another flow, and GONE if the endpoint has left. */
inlined int carry(struct __sk_buff *skb, struct packet *p, const union flow_any *k, struct flow *f,
		  int is_held, int six)
{
	int tcp = p->protocol == IPPROTO_TCP, opens = tcp && (p->flags & (SYN | ACK)) == SYN;
	/* A SYN on an established flow is another connection with the same
	 * ports. A SYN on a flow that is still opening is a retransmission. */
	if (opens && f->flags & USED)
		return ANEW;
	__u32 n = f->endpoint;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	int gone = !e || !e->ifindex || e->epoch != f->epoch;
	/* A silent host has not answered the client's first packet, which comes again: it may go to
	 * another endpoint. So may a new connection with the same ports. */
	if (unlikely(gone || (!is_held && e->away == AWAY_SILENT && (!tcp || opens)))) {
		if (!gone && !(f->flags & (FLOW_FIN | FLOW_RST)))
			count_live(n, -1);
		if (remove_flow(k, f->service, six))
			count(COUNT_REMOVED);
		return !tcp || opens ? ANEW : GONE;
	}
	if (tcp) {
		__u32 flags = f->flags | (p->flags & SYN ? 0 : FLOW_ESTABLISHED) |
		    (p->flags & FIN ? FLOW_FIN : 0) |
			      (p->flags & RST ? FLOW_RST : 0);
		if (!(p->flags & RST))
			flags &= ~FLOW_RST; /* the RST was forged, or the instance sends another one */
		if (flags != f->flags) {
			int ends = !!(flags & (FLOW_FIN | FLOW_RST)), ended = !!(f->flags & (FLOW_FIN | FLOW_RST));
			if (ends != ended && !f->room) /* else its ingress counts it */
				count_live(n, ended - ends);
			f->flags = flags;
			if (p->flags & (FIN | RST))
				note_end_of(n);
		}
	}
	if (!opens) {
		__u64 now = bpf_jiffies64(); /* a load; the clock would cost 20 ns */
		if (now - f->seen > SEEN_STEP)
			f->seen = now;
	}
	__u16 target = f->target;
	if (!is_held && is_proven(skb, p, f)) {
		struct flow proven = *f;
		hold(k, &proven, six);
	}
	return send(skb, p, n, e, target, is_held ? 0 : IS_OPENING, six);
}

/* approach handles a packet without a held flow. It returns ANEW if there is no opening one. */
apart int approach(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	if (!p)
		return DROP;
	union flow_any k;
	struct flow *f;

	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		f = find_opening(&k, 1);
		return f ? carry(skb, p, &k, f, 0, 1) : ANEW;
	}
	flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
	f = find_opening(&k, 0);
	return f ? carry(skb, p, &k, f, 0, 0) : ANEW;
}

/* steer sends a TCP or UDP packet for a VIP to the endpoint of its flow. */
inlined int steer(struct __sk_buff *skb, struct packet *p, int six, __u64 back)
{
	union flow_any k;
	int verdict;

	if (unlikely(p->part == LATER)) {
		struct packet q = *p;
		return follow(skb, &q, six);
	}
	flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, six);
	struct flow *f = find_held(&k, six);
	if (f && (verdict = carry(skb, p, &k, f, 1, six)) < GONE)
		return verdict;
	struct packet q = *p; /* so that p itself may stay in registers */
	if (!f)
		verdict = approach(skb, &q, six);
	int gone = verdict == GONE;
	if (gone || (verdict == ANEW && q.protocol == IPPROTO_TCP && (q.flags & (SYN | ACK)) != SYN))
		verdict = seek(skb, &q, six);
	if (verdict == KNOWN)
		verdict = approach(skb, &q, six);
	if (unlikely(verdict == GONE)) /* at this moment */
		return drop(DROP_NO_ENDPOINT);
	if (verdict == ANEW) {
		verdict = gone ? REFUSE + DROP_NO_ENDPOINT : start(skb, &q, six);
		/* Once this host has no flows to lose, its own packets (back) go there by a separate route. */
		if (verdict >= REFUSE && !back && elsewhere(p->dst, six))
			return PASS;
	}
	return verdict < REFUSE ? verdict : refuse(skb, &q, verdict - REFUSE, six, back);
}

#endif
