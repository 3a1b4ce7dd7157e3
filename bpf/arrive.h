/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets that other hosts send to endpoints of this host. The other host has chosen the endpoint.
 * This host notes the flow, translates the port and sends the reply directly to the client. */
#ifndef ARRIVE_H
#define ARRIVE_H

#include "door.h"

#define NO_SLOT 0xffffffff
#define OFFERS 16 /* draws of an endpoint of this host for a flow without one */

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

/* report sends a copy of a packet back, as a message about its flow. The packet has the tag. */
apart int report(struct __sk_buff *skb, struct arrival *a, __u32 what)
{
	if (!a)
		return DROP;
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

/* learn holds a flow that another host has found in a socket of its endpoint. An entry of this host
 * for another endpoint is older: its client has used the ports again, by another host. */
apart int learn(struct packet *p, struct arrival *a, __u32 six)
{
	if (!p || !a)
		return DROP;
	__u64 tag = a->tag; /* a kernel before 6.4 wants a key on the stack */
	__u32 *slot = bpf_map_lookup_elem(&aways, &tag), service = service_of(p, six);
	union flow_any k;

	if (!slot)
		return DROP;
	__u32 n = *slot;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (!e || !e->away || e->service != service || !same(e->remote, a->from, 1))
		return DROP;
	struct flow f = {.endpoint = n, .epoch = e->epoch, .target = p->dport, .service = service,
	    .seen = bpf_jiffies64(), .flags = FLOW_ESTABLISHED};
	struct flow *was;
	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		was = find_flow(&k, 1);
	} else {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
		was = find_flow(&k, 0);
	}
	if (was) {
		__u32 at = was->endpoint, flags = was->flags, whose = was->service;
		struct endpoint *b = bpf_map_lookup_elem(&endpoints, &at);
		int ends = !!(flags & (FLOW_FIN | FLOW_RST));
		if (b && b->epoch == was->epoch && !b->away && !ends)
			return DROP; /* the sweep asks the sockets of this host */
		if (was->endpoint == n && was->epoch == f.epoch)
			return DROP;
		if (!remove_flow(&k, whose, six))
			return DROP;
		count(COUNT_REMOVED);
		if (!ends)
			count_live(at, -1);
	}
	count_live(n, 1);
	if (!hold(&k, &f, six)) {
		if (six)
			add_flow(&k, &f, 1);
		else
			add_flow(&k, &f, 0);
	}
	return DROP;
}

/* names_another returns whether the tag of a message is that of another endpoint than n. */
apart int names_another(struct arrival *a, __u32 n)
{
	if (!a)
		return 0;
	__u64 tag = a->tag;
	__u32 *slot = bpf_map_lookup_elem(&aways, &tag);

	return slot && *slot != n;
}

/* believe obeys a message: hold or forget a flow that is opening, or remove a flow that has ended.
 * A message never has an answer. */
apart int believe(struct packet *p, struct arrival *a, __u32 six)
{
	union flow_any k;
	struct flow *f;

	if (!p || !a)
		return DROP;
	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		f = a->mark == IS_ENDED ? find_flow(&k, 1) : find_opening(&k, 1);
	} else {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
		f = a->mark == IS_ENDED ? find_flow(&k, 0) : find_opening(&k, 0);
	}
	if (!f)
		return a->mark == IS_PROVEN ? learn(p, a, six) : DROP;
	__u32 n = f->endpoint;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (!e || !e->away || e->epoch != f->epoch || e->tunnel != a->tag >> 40 ||
	    !same(e->remote, a->from, 1) || names_another(a, n))
		return a->mark == IS_PROVEN ? learn(p, a, six) : DROP;
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

/* give_back sends a packet back as an answer of bpf/door.h. */
apart int give_back(struct __sk_buff *skb, struct arrival *a, __u32 kind)
{
	if (!a)
		return DROP;
	if (address_door(skb, kind, a->tag) || address_tunnel(skb, a->from, DOOR_VNI))
		return drop(DROP_KERNEL);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	return DROP;
}

/* settle adds a flow to the endpoint that the other host has chosen. A packet that opens nothing
 * belongs to a flow that this table lost, if the endpoint has its socket. */
apart int settle(struct __sk_buff *skb, struct packet *p, struct arrival *a, __u32 six)
{
	union flow_any k;

	if (!p || !a)
		return DROP;
	int opens = p->protocol != IPPROTO_TCP || (p->flags & (SYN | ACK)) == SYN;
	__u32 slot = a->slot, service = service_of(p, six);
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	if (!e || !e->ifindex || e->away || e->service != service)
		return REFUSE + DROP_NO_ENDPOINT;
	int target = target_of(e, p, six);
	if (target < 0)
		return REFUSE + DROP_NO_ENDPOINT;
	if (!opens && !is_end_of(skb, p, slot, six))
		return give_back(skb, a, LOST);
	struct flow f = {.endpoint = slot, .epoch = e->epoch, .target = target, .service = service,
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

/* write_tag writes a tag into the destination MAC. Apart from its callers, it keeps the stack of
 * the deepest calls within the 512 bytes of a kernel before 6.4. */
apart int write_tag(struct __sk_buff *skb, __u64 tag)
{
	__u8 mac[6] = {0, tag >> 32, tag >> 24, tag >> 16, tag >> 8, tag};

	return bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0);
}

/* report_proven reports which endpoint of this host has a packet's flow. */
apart int report_proven(struct __sk_buff *skb, struct arrival *a, __u32 slot)
{
	if (!a)
		return DROP;
	if (a->slot != slot) { /* not the one that the other host has chosen */
		struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
		if (!e)
			return DROP;
		a->tag = (__u64)e->remote[OWN_TAG_HIGH] << 32 | e->remote[OWN_TAG_LOW];
		a->slot = slot;
		if (write_tag(skb, a->tag))
			return drop(DROP_KERNEL);
	}
	return report(skb, a, IS_PROVEN);
}

/* resume sends a packet of a flow in this host's table to the flow's endpoint. The sockets are
 * here, so the choice of the other host does not count. It returns ANEW without such a flow, and
 * GONE if the flow's endpoint has left. */
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
		report_proven(skb, a, n);
	return carry(skb, p, &k, f, is_held, six);
}

apart int resume4(struct __sk_buff *skb, struct packet *p, struct arrival *a)
{
	return p && a ? resume(skb, p, a, 0) : DROP;
}

apart int resume6(struct __sk_buff *skb, struct packet *p, struct arrival *a)
{
	return p && a ? resume(skb, p, a, 1) : DROP;
}

/* refuse_arrival answers a packet of a lost connection by this host's routes. It never answers one
 * that opens a flow: this host may not have the endpoint yet, and the client tries again. */
apart int refuse_arrival(struct __sk_buff *skb, struct packet *p, __u32 why, __u32 six)
{
	if (!p)
		return DROP;
	__u32 vip[4];

	four(vip, p->dst, six);
	if (p->protocol != IPPROTO_TCP || p->flags & SYN || !bpf_map_lookup_elem(&vips, vip))
		return drop(why);
	if (refuse(skb, p, why, six, 0) == DROP || bpf_skb_change_type(skb, 0))
		return DROP;
	return PASS;
}

struct offer {
	__u32 service, hashed;
	int slot;
};

/* offer draws an endpoint of this host from the table of a service. */
static long offer(__u32 n, struct offer *o)
{
	int at = pick(o->service, o->hashed + n * 0x9e3779b9, 0);
	__u32 slot = at;
	struct endpoint *e = at < 0 ? NULL : bpf_map_lookup_elem(&endpoints, &slot);

	if (e && e->ifindex && !e->away)
		o->slot = slot;
	return at < 0 || o->slot != NONE_HERE;
}

/* missing handles a packet of an unknown flow to an unknown endpoint. A packet that opens a flow
 * was sent to an instance that has just ended. Another instance of this host takes it. */
apart int missing(struct __sk_buff *skb, struct packet *p, struct arrival *a, __u32 six)
{
	if (!p || !a)
		return DROP;
	if (p->protocol == IPPROTO_TCP && (p->flags & (SYN | ACK)) != SYN)
		return give_back(skb, a, LOST);
	report(skb, a, IS_GONE);
	struct offer o = {.service = service_of(p, six), .slot = NONE_HERE};
	if (o.service == SERVICES_MAX || migrating)
		return REFUSE + DROP_NO_ENDPOINT;
	o.hashed = place_of(p, o.service, six);
	bpf_loop(OFFERS, offer, &o, 0);
	if (o.slot == NONE_HERE)
		return REFUSE + DROP_NO_ENDPOINT;
	a->slot = o.slot;
	return settle(skb, p, a, six);
}

/* own_end returns this host's endpoint of a packet's flow by the connection table, else -1. */
apart int own_end(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	if (!p)
		return -1;
	union flow_any k;
	struct flow *f;

	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		f = find_flow(&k, 1);
	} else {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
		f = find_flow(&k, 0);
	}
	if (!f)
		return -1;
	__u32 n = f->endpoint, flags = f->flags;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (!e || !e->ifindex || e->away || e->epoch != f->epoch)
		return -1;
	/* An ended flow may be older than a connection of the same ports on another host. */
	return flags & (FLOW_FIN | FLOW_RST) && !is_end_of(skb, p, n, six) ? -1 : (int)n;
}

/* sought answers a question. */
apart int sought(struct __sk_buff *skb, struct packet *p, struct arrival *a, __u32 six)
{
	if (!p || !a)
		return DROP;
	__u32 service = service_of(p, six);

	if (service == SERVICES_MAX || migrating)
		return DROP; /* the tables here are not complete */
	int known = own_end(skb, p, six);
	int at = known >= 0 ? known : look_here(skb, p, service, six);
	__u32 slot = at;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	if (!e || e->away)
		return at == UNKNOWN ? DROP : give_back(skb, a, NOT_HERE);
	report_proven(skb, a, slot);
	if (known < 0)
		return settle(skb, p, a, six);
	int verdict = six ? resume6(skb, p, a) : resume4(skb, p, a);
	return verdict == GONE ? drop(DROP_NO_ENDPOINT) : verdict;
}

/* not_there handles the answer of a host that does not have a flow. */
apart int not_there(struct packet *p, struct arrival *a, __u32 six)
{
	if (!p || !a)
		return DROP;
	__u32 id = a->tag;
	struct ask *k = bpf_map_lookup_elem(&asks, &id);

	if (!k)
		return DROP;
	__sync_fetch_and_add(&k->none, 1);
	if (*(volatile __u32 *)&k->none < k->asked)
		return DROP;
	bpf_map_delete_elem(&asks, &id);
	if (!is_unfound(p, six))
		return drop(DROP_NO_FLOW);
	return REFUSE + DROP_NO_FLOW;
}

/* gone_there handles a packet that comes back from the host of its flow's endpoint, which has no
 * such flow: the entry here is too old. */
apart int gone_there(struct __sk_buff *skb, struct packet *p, struct arrival *a, __u32 six)
{
	if (!p || !a)
		return DROP;
	union flow_any k;
	struct flow *f;

	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		f = find_flow(&k, 1);
	} else {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
		f = find_flow(&k, 0);
	}
	if (f) {
		__u32 n = f->endpoint, flags = f->flags;
		struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
		if (e && e->epoch == f->epoch && (!e->away || !same(e->remote, a->from, 1)))
			return drop(DROP_NO_FLOW); /* the entry is newer by now, and the client tries again */
		if (remove_flow(&k, f->service, six)) {
			count(COUNT_REMOVED);
			if (!(flags & (FLOW_FIN | FLOW_RST)))
				count_live(n, -1);
		}
	}
	int verdict = seek(skb, p, six);
	if (verdict == KNOWN)
		verdict = approach(skb, p, six);
	if (verdict == GONE)
		return drop(DROP_NO_ENDPOINT);
	return verdict == ANEW ? REFUSE + DROP_NO_FLOW : verdict;
}

/* at_door handles the questions and answers of bpf/door.h. */
apart int at_door(struct __sk_buff *skb, struct packet *p, struct arrival *a, __u32 six)
{
	if (!p || !a || p->protocol != IPPROTO_TCP || (p->flags & (SYN | ACK)) == SYN)
		return drop(DROP_HEADER);
	switch (a->tag >> 32 & 0xff) {
	case QUESTION:
		return sought(skb, p, a, six);
	case NOT_HERE:
		return not_there(p, a, six);
	case LOST:
		return gone_there(skb, p, a, six);
	}
	return drop(DROP_HEADER);
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
	if (transport(skb, &p, six))
		return drop(DROP_HEADER);
	if (p.protocol != IPPROTO_TCP && p.protocol != IPPROTO_UDP)
		return IS_ICMP(&p, six) ? icmp_to_vip(skb, &p, six, 0) : drop(DROP_PROTOCOL);
	if (p.part == LATER)
		return follow(skb, &p, six);
	if (a->mark == IS_GONE && a->tag >> 40 == DOOR_VNI) {
		verdict = at_door(skb, &p, a, six);
		return verdict < REFUSE ? verdict : refuse_arrival(skb, &p, verdict - REFUSE, six);
	}
	if (a->mark == IS_PROVEN || a->mark == IS_GONE || a->mark == IS_ENDED)
		return believe(&p, a, six);
	verdict = six ? resume6(skb, &p, a) : resume4(skb, &p, a);
	if (verdict == GONE)
		return give_back(skb, a, LOST);
	if (verdict == ANEW && a->slot != NO_SLOT)
		verdict = settle(skb, &p, a, six);
	else if (verdict == ANEW)
		verdict = missing(skb, &p, a, six);
	return verdict < REFUSE ? verdict : refuse_arrival(skb, &p, verdict - REFUSE, six);
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
