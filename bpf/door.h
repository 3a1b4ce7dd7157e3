/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet at the wrong door: it opens no flow, and this host's table lacks its flow. The router in
 * front may have chosen another ingress host. The sockets of the instances are the truth, and the
 * connection table of their host has their flows.
 *
 * This host first asks the sockets of its own endpoints. Then it sends the packet to each host that
 * has endpoints of the service, as a question. The host that has the flow delivers the packet and
 * reports, and this host holds the flow from then on. Every other host sends the packet back. After
 * the last one, the flow is unknown to the cluster.
 *
 *	question ──► has it: delivers, reports IS_PROVEN
 *	         └─► has it not: NOT_HERE ──► the last one: refuse
 *	packet of an entry here ──► has it not: LOST ──► question
 *
 * No host passes a question on. Each answer leads to a later step only, so no packet goes round.
 * test/model/src/door.rs has the same steps, and a checker explores every interleaving of them.
 */
#ifndef DOOR_H
#define DOOR_H

#include "icmp.h"

#define HOSTS_ASKED_MAX 128 /* about one flow */
#define SOCKETS_ASKED_MAX 64 /* endpoints of this host, about one flow */
#define ASKS_PER_SECOND_MAX 40000 /* sockets and hosts, on a CPU: forged packets cost them all */
#define UNFOUND_MIN SECOND /* between two questions without an answer, before a refusal */
#define UNFOUND_MAX (60 * SECOND)

/* A question and its answers have the mark IS_GONE and this VNI. A host of an older build drops
 * them in silence. The destination MAC has the kind, then the number of the packet. */
#define DOOR_VNI 0xffffff

enum { NONE_HERE = -1, UNKNOWN = -2 };
enum door_kind { QUESTION = 1, NOT_HERE, LOST };

/* service_of returns the service of a packet's VIP and port, SERVICES_MAX if there is none. */
apart __u32 service_of(struct packet *p, __u32 six)
{
	if (!p)
		return SERVICES_MAX;
	struct service_key sk;

	if (six)
		service_key_of(&sk, p, 1);
	else
		service_key_of(&sk, p, 0);
	__u32 *service = bpf_map_lookup_elem(&ports, &sk);
	return service ? *service : SERVICES_MAX;
}

/* is_end_of returns whether an endpoint of this host has a socket of a packet's flow: 1 or 0, or -1
 * if its sockets cannot be asked. A listener and a socket in TIME-WAIT have no flow. */
apart int is_end_of(struct __sk_buff *skb, struct packet *p, __u32 slot, __u32 six)
{
	if (!p)
		return -1;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	struct bpf_sock_tuple u = {};
	struct bpf_sock *socket;

	if (!p || !e || !e->ifindex || e->away)
		return 0;
	__u32 netns = e->remote[OWN_NETNS];
	if (!netns)
		return -1;
	int target = target_of(e, p, six);
	if (target < 0)
		return 0;
	if (six) {
		copy(u.ipv6.saddr, p->src, 1);
		copy(u.ipv6.daddr, p->dst, 1);
		u.ipv6.sport = p->sport;
		u.ipv6.dport = target;
		socket = bpf_skc_lookup_tcp(skb, &u, sizeof(u.ipv6), netns - 1, 0);
	} else {
		u.ipv4.saddr = p->src[0];
		u.ipv4.daddr = p->dst[0];
		u.ipv4.sport = p->sport;
		u.ipv4.dport = target;
		socket = bpf_skc_lookup_tcp(skb, &u, sizeof(u.ipv4), netns - 1, 0);
	}
	if (!socket)
		return 0;
	__u32 state = socket->state;
	bpf_sk_release(socket);
	return state != BPF_TCP_LISTEN && state != BPF_TCP_TIME_WAIT && state != BPF_TCP_CLOSE;
}

struct search {
	struct __sk_buff *skb;
	struct packet *p;
	__u32 service, six;
	int slot;    /* of the endpoint that has the flow */
	int unknown; /* an endpoint of this host could not be asked */
	__u32 looks; /* at endpoints, or hosts asked */
	__u32 hosts;
};

static long look_in(__u32 n, struct search *s)
{
	struct door_key k = {.service = s->service, .n = DOOR_HERE | n};
	struct door *d = bpf_map_lookup_elem(&doors, &k);

	if (!d)
		return 1;
	__u32 slot = d->slot;
	int has = is_end_of(s->skb, s->p, slot, s->six);
	s->looks++;
	if (has < 0)
		s->unknown = 1;
	if (has > 0)
		s->slot = slot;
	return has > 0;
}

/* charge_asks counts questions, up to the bound of a second. It returns whether more may follow. */
inlined int charge_asks(__u32 n)
{
	__u32 zero = 0;
	struct pace *pace = bpf_map_lookup_elem(&ask_paces, &zero);

	if (!pace)
		return 0;
	__u64 now = bpf_ktime_get_coarse_ns();
	if (now - pace->since > SECOND) {
		pace->since = now;
		pace->answers = 0;
	}
	pace->answers += n;
	return pace->answers < ASKS_PER_SECOND_MAX;
}

/* look_here returns the endpoint of this host that has a socket of the packet's flow, NONE_HERE if
 * none has, and UNKNOWN if not all of them could be asked. */
apart int look_here(struct __sk_buff *skb, struct packet *p, __u32 service, __u32 six)
{
	if (!p)
		return UNKNOWN;
	struct search s = {.skb = skb, .p = p, .service = service, .six = six, .slot = NONE_HERE};

	if (!charge_asks(0))
		return UNKNOWN;
	bpf_loop(SOCKETS_ASKED_MAX, look_in, &s, 0);
	charge_asks(s.looks);
	if (s.slot == NONE_HERE && (s.unknown || s.looks == SOCKETS_ASKED_MAX))
		return UNKNOWN;
	return s.slot;
}

/* restore adds the flow of a packet to this host's table again. */
apart int restore(struct packet *p, __u32 slot, __u32 six)
{
	if (!p)
		return DROP;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	union flow_any k;

	if (!p || !e || !e->ifindex)
		return REFUSE + DROP_NO_ENDPOINT;
	int target = target_of(e, p, six);
	if (target < 0)
		return REFUSE + DROP_NO_ENDPOINT;
	struct flow f = {.endpoint = slot, .epoch = e->epoch, .target = target, .service = e->service,
	    .seen = bpf_jiffies64(), .flags = FLOW_ESTABLISHED};
	count_live(slot, 1);
	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
		add_flow(&k, &f, 1);
	} else {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
		add_flow(&k, &f, 0);
	}
	return KNOWN;
}

static long count_host(__u32 n, struct search *s)
{
	struct door_key k = {.service = s->service, .n = n};

	if (!bpf_map_lookup_elem(&doors, &k))
		return 1;
	s->hosts++;
	return 0;
}

/* ask_host sends a copy to a host. The last host gets the packet itself, from question. */
static long ask_host(__u32 n, struct search *s)
{
	struct door_key k = {.service = s->service, .n = n};
	struct door *d = bpf_map_lookup_elem(&doors, &k);

	if (!d || address_tunnel(s->skb, d->remote, DOOR_VNI))
		return 1;
	s->looks++;
	if (s->looks < s->hosts)
		bpf_clone_redirect(s->skb, tunnel_device, 0);
	return 0;
}

/* address_door writes the addresses of a question or an answer. */
inlined int address_door(struct __sk_buff *skb, __u8 kind, __u32 id)
{
	__u8 mac[12] = {IS_GONE, kind, id >> 24, id >> 16, id >> 8, id, 0x02, 'p', 'a', 'n', 'd', 'o'};

	return bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0);
}

/* question sends a packet to every host of its service. It returns ANEW if there is none. complete:
 * no endpoint of this host has the flow. The last host gets the packet itself. After a drop, a
 * socket of this host counts its packet as not sent, and refuses the answer. */
apart int question(struct __sk_buff *skb, __u32 service, __u32 complete)
{
	struct search s = {.skb = skb, .service = service};
	__u32 id = bpf_get_prandom_u32();

	bpf_loop(HOSTS_ASKED_MAX, count_host, &s, 0);
	if (!s.hosts || !tunnel_device)
		return ANEW;
	struct ask a = {.asked = s.hosts};
	if (!complete || s.hosts == HOSTS_ASKED_MAX)
		a.asked = ~0u; /* never all of them */
	if (!charge_asks(s.hosts) || bpf_map_update_elem(&asks, &id, &a, BPF_ANY))
		return drop(DROP_NO_FLOW);
	if (address_door(skb, QUESTION, id))
		return drop(DROP_KERNEL);
	bpf_loop(s.hosts, ask_host, &s, 0);
	if (s.looks < s.hosts)
		return DROP; /* a host has left the list at this moment, and the others decide */
	return bpf_redirect(tunnel_device, 0);
}

/* seek finds the endpoint of a packet that opens nothing, if the table lacks its flow. It returns
 * KNOWN if an endpoint of this host has it, and ANEW without another host to ask. */
apart int seek(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	__u32 service = p ? service_of(p, six) : SERVICES_MAX;

	if (!p || service == SERVICES_MAX || migrating)
		return ANEW;
	int slot = look_here(skb, p, service, six);
	return slot >= 0 ? restore(p, slot, six) : question(skb, service, slot == NONE_HERE);
}

/* is_unfound returns whether all hosts lack a packet's flow for the second time. This host may
 * learn of a new instance a moment later than another one, so the first time proves little. */
apart int is_unfound(struct packet *p, __u32 six)
{
	if (!p)
		return 0;
	union flow_any k = {};

	if (six) {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 1);
	} else {
		flow_key_of(&k, p->src, p->dst, p->sport, p->dport, p->protocol, 0);
	}
	__u64 now = bpf_ktime_get_coarse_ns();
	__u64 *first = bpf_map_lookup_elem(&unfound, &k.six);
	if (first && now - *first < UNFOUND_MAX)
		return now - *first >= UNFOUND_MIN;
	bpf_map_update_elem(&unfound, &k.six, &now, BPF_ANY);
	return 0;
}

#endif
