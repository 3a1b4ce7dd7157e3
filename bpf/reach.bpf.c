/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Refuses new flows of an instance to the parts of the network that its spec does not name. It runs
 * before steering (driver/network/firewall). Replies and packets of established TCP flows pass. */
#include "reply.h"

#define WALLED_MAX 8192 /* instances of a host */
/* The VIPs of 16,384 services, 8,192 instances and 1,024 hosts, each by both families. */
#define PLACES_MAX (1 << 16)
#define ANSWERS_MAX 8 /* UDP ports of a service */
#define DNS 53

/* No spec has NOBODY. */
enum reach { INTERNET = 1, TENANTS = 2, HOST = 4, METADATA = 8, NOBODY = 16 };

/* An instance, by the ifindex of the host's end of its link. */
struct walled {
	__u64 tenant, service;
	__u32 addr[2][4]; /* IPv4 in the first word */
	__u32 reach;
	__u16 answers[ANSWERS_MAX]; /* its UDP ports, in network order; 0: none */
	__u32 pad;
};

/* A VIP (service 0), an instance of this host, or another host (both 0). */
struct owner {
	__u64 tenant, service;
};

struct {
	GROWING(WALLED_MAX, __u32, struct walled);
} walls SEC(".maps");

struct {
	GROWING(PLACES_MAX, __u32[4], struct owner);
} owners SEC(".maps");

#define NAMED_MAX (1 << 16)
#define OPEN_MAX 8 /* ports of a service that walls remember */

/* An ordinal of a stateful service, on any host. Its own service reaches all its ports, and its
 * tenant the published ones. */
struct named {
	__u64 tenant, service;
	__u16 ports[OPEN_MAX]; /* its targets, in network order; 0: none */
};

struct {
	GROWING(NAMED_MAX, __u32[4], struct named);
} names SEC(".maps");

/* Datagrams in fragments whose first one passed. Only that one has ports: the later ones are judged
 * as it was. A flood of one instance harms the datagrams of others at most. */
struct {
	TABLE_OF(LRU_HASH, 4096, struct fragment_key, __u8);
} pieces SEC(".maps");

volatile const __u32 instances_net, instances_mask, instances6_net[2];
/* The ports at which the hosts themselves listen, the tunnel's among them. */
volatile const __u16 own_port_first, own_port_last, tunnel_port;

inlined int is_instance(const __u32 *a, int six)
{
	if (!six)
		return (a[0] & instances_mask) == instances_net;
	return a[0] == instances6_net[0] && a[1] == instances6_net[1];
}

/* is_metadata recognizes 169.254.0.0/16 and fd00:ec2::/32. */
inlined int is_metadata(const __u32 *a, int six)
{
	if (!six)
		return (a[0] & bpf_htonl(0xffff0000)) == bpf_htonl(0xa9fe0000);
	return a[0] == bpf_htonl(0xfd000ec2);
}

inlined struct owner *owner_of(const __u32 *a, int six)
{
	__u32 key[4];

	four(key, a, six);
	return bpf_map_lookup_elem(&owners, key);
}

/* answers returns whether a UDP packet comes from a port of the instance's service. No client has a
 * port of the hosts' own: on its way out, such a packet gets the address of this host, and the
 * tunnel of another host would take it for a member's. */
inlined int answers(const struct walled *w, const struct packet *p)
{
	__u16 to = bpf_ntohs(p->dport);

	if (p->protocol != IPPROTO_UDP || !p->sport || (to >= own_port_first && to <= own_port_last))
		return 0;
	for (int i = 0; i < ANSWERS_MAX; i++)
		if (w->answers[i] == p->sport)
			return 1;
	return 0;
}

/* is_open returns whether the destination is an ordinal that the instance may reach. */
inlined int is_open(const struct walled *w, const struct packet *p, int six)
{
	__u32 key[4];

	four(key, p->dst, six);
	struct named *n = bpf_map_lookup_elem(&names, key);
	if (!n)
		return 0;
	if (n->service == w->service)
		return 1;
	if (n->tenant != w->tenant || !p->dport)
		return 0;
	for (int i = 0; i < OPEN_MAX; i++)
		if (n->ports[i] == p->dport)
			return 1;
	return 0;
}

/* is_local asks the kernel whether this host itself takes the packet. A destination without a route
 * counts as local: it is refused either way. */
inlined int is_local(struct __sk_buff *skb, const struct packet *p, int six)
{
	struct bpf_fib_lookup f = {.ifindex = skb->ifindex, .l4_protocol = p->protocol};

	if (six) {
		f.family = 10;
		copy(f.ipv6_src, p->src, 1);
		copy(f.ipv6_dst, p->dst, 1);
	} else {
		f.family = 2;
		f.ipv4_src = p->src[0];
		f.ipv4_dst = p->dst[0];
	}
	return bpf_fib_lookup(skb, &f, sizeof(f), 0) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* needs returns the word of the spec that the instance needs for a new flow, 0 for none. */
cold __u32 needs(struct __sk_buff *skb, struct packet *p, const struct walled *w, __u32 six)
{
	struct owner *o;

	if (!w)
		return 0;
	if (!six ? p->dst[0] == gateway : same(p->dst, (const __u32 *)gateway6, 1))
		return p->dport == bpf_htons(DNS) ? 0 : HOST;
	o = owner_of(p->dst, six);
	if (is_vip(p->dst, six))
		return o && o->tenant != w->tenant ? TENANTS : 0;
	if (answers(w, p))
		return 0;
	if (is_instance(p->dst, six))
		return (o && o->service == w->service) || is_open(w, p, six) ? 0 : TENANTS;
	if (is_metadata(p->dst, six))
		return METADATA;
	/* Another host has the same walls as this one, at every port and for every protocol. */
	if (!o && !is_local(skb, p, six))
		return INTERNET;
	return p->protocol == IPPROTO_UDP && p->dport == bpf_htons(tunnel_port) ? NOBODY : HOST;
}

inlined void piece_of(struct fragment_key *k, const struct packet *p, int six)
{
	__builtin_memset(k, 0, sizeof(*k));
	four(k->src, p->src, six);
	four(k->dst, p->dst, six);
	k->id = p->id;
	k->protocol = p->protocol;
}

/* note_piece notes the first fragment of a datagram that passes. */
inlined void note_piece(const struct packet *p, int six)
{
	struct fragment_key k;
	__u8 passed = 1;

	piece_of(&k, p, six);
	bpf_map_update_elem(&pieces, &k, &passed, BPF_ANY);
}

/* is_piece returns whether the first fragment of a later one has passed. */
inlined int is_piece(const struct packet *p, int six)
{
	struct fragment_key k;

	piece_of(&k, p, six);
	return bpf_map_lookup_elem(&pieces, &k) != 0;
}

inlined int begins(struct __sk_buff *skb, struct walled *w, int six)
{
	struct packet p = {};

	if (addresses(skb, &p, six) || !same(p.src, w->addr[six], six))
		return PASS; /* a reply from the VIP, or a packet that steering drops */
	if (IS_ICMP(&p, six))
		return PASS;
	if (transport(skb, &p, six))
		return PASS;
	if (p.protocol == IPPROTO_TCP && p.part == WHOLE && (p.flags & (SYN | ACK)) != SYN)
		return PASS;
	if (IS_ICMP(&p, six))
		return PASS;
	if (p.part == LATER && is_piece(&p, six))
		return PASS;
	struct packet q = p;
	__u32 need = needs(skb, &q, w, six);
	if (!need || need & w->reach) {
		if (p.part == FIRST)
			note_piece(&p, six);
		return PASS;
	}
	struct packet r = p;
	return refuse(skb, &r, 0, six, 0);
}

/* from_walled runs at the ingress of the host's end of an instance's link. */
SEC("tc")
int from_walled(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct walled *w = bpf_map_lookup_elem(&walls, &ifindex);

	if (!w)
		return PASS; /* steering drops packets of a link without an instance */
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return begins(skb, w, 0);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return begins(skb, w, 1);
	return PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
