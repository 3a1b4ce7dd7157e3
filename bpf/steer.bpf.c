/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Steering of flows to instances, without a process on the path (DSR: no address is rewritten, see driver/ebpf). */
#include <linux/bpf.h>
#include <linux/icmp.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "pando.h"

#define PASS -1 /* TCX_NEXT */
#define DROP 2  /* TCX_DROP */
#define inlined static __always_inline
#define L4 (ETH_HLEN + sizeof(struct iphdr))

volatile const __u32 vip_net, vip_mask, gateway; /* network order */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 20);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct service_key);
	__type(value, struct service_port);
} ports SEC(".maps"); /* VIP:published -> service, target */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct service_key);
	__type(value, __u16);
} replies SEC(".maps"); /* VIP:target -> published */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} vips SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct table);
} tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, struct counters);
} traffic SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, struct instance_link);
} links SEC(".maps"); /* by ifindex of the host's end */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_KINDS);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

/* What user space remembers of the numbers; no program reads these. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct name);
} service_names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINTS_MAX);
	__type(key, __u32);
	__type(value, struct name);
} endpoint_names SEC(".maps");

struct packet {
	__u32 src, dst;
	__u16 sport, dport;
	__u8 protocol, flags; /* flags: TCP's FIN, SYN, RST, ACK */
};

enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

inlined int drop(__u32 why)
{
	__u64 *n = bpf_map_lookup_elem(&drops, &why);
	if (n)
		(*n)++;
	return DROP;
}

inlined int is_vip(__u32 addr)
{
	return (addr & vip_mask) == vip_net && addr != gateway;
}

/* parse reads an IPv4 packet. It returns 0, or 1 for one that is none of our business. */
inlined int parse(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + ETH_HLEN;

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5)
		return 1;
	p->src = ip->saddr;
	p->dst = ip->daddr;
	p->protocol = ip->protocol;
	p->flags = 0;
	p->sport = p->dport = 0;
	if (ip->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end)
			return 1;
		p->sport = tcp->source;
		p->dport = tcp->dest;
		p->flags = *((volatile __u8 *)tcp + 13);
	} else if (ip->protocol == IPPROTO_UDP) {
		struct udphdr *udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return 1;
		p->sport = udp->source;
		p->dport = udp->dest;
	}
	return 0;
}

inlined int is_fragment(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip = data + ETH_HLEN;

	return (void *)(ip + 1) <= end && (ip->frag_off & bpf_htons(0x3fff));
}

inlined __u32 hash(const struct flow_key *k)
{
	__u32 h = k->client * 0x9E3779B1u ^ (((__u32)k->client_port << 16) | k->port);

	h ^= h >> 15;
	h *= 0x85EBCA77u;
	h ^= k->vip + k->protocol;
	h ^= h >> 13;
	h *= 0xC2B2AE3Du;
	return h ^ h >> 16;
}

/* pick chooses the endpoint of a flow from the service's table now (or the one before), -1 if it has none. */
inlined int pick(__u32 service, const struct flow_key *k, int before)
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
	__u32 slot = hash(k) % TABLE_SLOTS;
	asm volatile("" : "+r"(slot)); /* the verifier does not follow % */
	if (slot >= TABLE_SLOTS)
		return -1;
	return t->endpoint[slot];
}

inlined int translate(struct __sk_buff *skb, __u8 protocol, __u32 offset, __u16 from, __u16 to)
{
	__u32 check = L4 + (protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	__u64 flags = 2 | (protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);

	if (bpf_l4_csum_replace(skb, check, from, to, flags))
		return -1;
	return bpf_skb_store_bytes(skb, L4 + offset, &to, sizeof(to), 0);
}

inlined int forward(struct __sk_buff *skb, struct packet *p, __u32 n, struct endpoint *e, __u16 target, int first)
{
	struct counters *c = bpf_map_lookup_elem(&traffic, &n);
	if (c) {
		c->packets++;
		c->bytes += skb->len;
		c->flows += first;
	}
	__u32 ifindex = e->ifindex;
	__u8 mac[12];
	__builtin_memcpy(mac, e->mac, 6);
	__builtin_memcpy(mac + 6, e->host_mac, 6);
	if (target != p->dport && translate(skb, p->protocol, 2, p->dport, target))
		return DROP;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + ETH_HLEN > end)
		return DROP;
	__builtin_memcpy(data, mac, 12);
	return bpf_redirect(ifindex, 0);
}

/* start makes a flow: a bucket of the service's table, remembered. */
inlined int start(struct __sk_buff *skb, struct packet *p, struct flow_key *k, __u64 now)
{
	struct service_key sk = {.addr = p->dst, .port = p->dport, .protocol = p->protocol};
	struct service_port *port = bpf_map_lookup_elem(&ports, &sk);
	if (!port)
		return drop(DROP_NO_SERVICE);
	int opens = p->protocol != IPPROTO_TCP || (p->flags & (SYN | ACK)) == SYN;
	int n = pick(port->service, k, !opens);
	if (n < 0)
		return drop(opens ? DROP_NO_ENDPOINT : DROP_NO_FLOW);
	__u32 slot = n;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	if (!e || !e->ifindex || e->service != port->service)
		return drop(opens ? DROP_NO_ENDPOINT : DROP_NO_FLOW);
	__u16 target = port->target;
	if (opens) {
		struct flow f = {.endpoint = slot, .epoch = e->epoch, .target = target, .seen = now};
		bpf_map_update_elem(&flows, k, &f, BPF_ANY);
	}
	return forward(skb, p, slot, e, target, opens);
}

inlined int steer(struct __sk_buff *skb, struct packet *p)
{
	if (p->protocol != IPPROTO_TCP && p->protocol != IPPROTO_UDP)
		return PASS;
	if (is_fragment(skb))
		return drop(DROP_FRAGMENT);
	struct flow_key k = {.client = p->src, .vip = p->dst, .client_port = p->sport, .port = p->dport, .protocol = p->protocol};
	__u64 now = bpf_ktime_get_coarse_ns();
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (!f)
		return start(skb, p, &k, now);
	int tcp = p->protocol == IPPROTO_TCP;
	/* A SYN on a flow that was established is another connection with the same ports; one on a flow that is still
	 * opening is a retransmission. */
	if (tcp && (p->flags & (SYN | ACK)) == SYN && f->flags)
		return start(skb, p, &k, now);
	__u32 n = f->endpoint;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n);
	if (!e || !e->ifindex || e->epoch != f->epoch) {
		bpf_map_delete_elem(&flows, &k);
		return start(skb, p, &k, now);
	}
	if (tcp) {
		__u32 flags = f->flags | (p->flags & SYN ? 0 : FLOW_ESTABLISHED) | (p->flags & FIN ? FLOW_FIN : 0) |
			      (p->flags & RST ? FLOW_RST : 0);
		if (flags != f->flags)
			f->flags = flags;
	}
	if (now - f->seen > 500000000ull)
		f->seen = now;
	return forward(skb, p, n, e, f->target, 0);
}

/* echo answers a ping to a VIP in place. */
inlined int echo(struct __sk_buff *skb, struct packet *p, __u64 direction)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct icmphdr *icmp = data + L4;
	__u32 vip = p->dst;

	if ((void *)(icmp + 1) > end || icmp->type != ICMP_ECHO || !bpf_map_lookup_elem(&vips, &vip))
		return PASS;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + ETH_HLEN;
	__u8 mac[6];
	__builtin_memcpy(mac, eth->h_dest, 6);
	__builtin_memcpy(eth->h_dest, eth->h_source, 6);
	__builtin_memcpy(eth->h_source, mac, 6);
	ip->daddr = p->src; /* a swap leaves the header's checksum as it was */
	ip->saddr = vip;
	icmp->type = ICMP_ECHOREPLY;
	bpf_l4_csum_replace(skb, L4 + offsetof(struct icmphdr, checksum), bpf_htons(ICMP_ECHO << 8), 0, 2);
	return bpf_redirect(skb->ifindex, direction);
}

/* from_outside: at the ingress of an uplink. */
SEC("tc")
int from_outside(struct __sk_buff *skb)
{
	struct packet p = {};

	if (parse(skb, &p) || !is_vip(p.dst))
		return PASS;
	if (p.protocol == IPPROTO_ICMP)
		return echo(skb, &p, 0);
	return steer(skb, &p);
}

/* from_host: at the egress of pando0, where the host's own packets to VIPs go. */
SEC("tc")
int from_host(struct __sk_buff *skb)
{
	struct packet p = {};

	if (parse(skb, &p) || !is_vip(p.dst))
		return PASS;
	if (p.protocol == IPPROTO_ICMP)
		return echo(skb, &p, BPF_F_INGRESS);
	return steer(skb, &p);
}

/* note_end marks a flow that its instance ends: the forward path does not see this packet. */
inlined void note_end(struct packet *p, __u16 published)
{
	struct flow_key k = {.client = p->dst, .vip = p->src, .client_port = p->dport, .port = published, .protocol = p->protocol};
	struct flow *f = bpf_map_lookup_elem(&flows, &k);
	if (f)
		f->flags |= p->flags & RST ? FLOW_RST : FLOW_FIN;
}

/* answer gives a UDP server that is bound to every address the VIP as its source, if the VIP was asked. */
inlined int answer(struct __sk_buff *skb, struct packet *p, struct instance_link *l)
{
	struct service_key sk = {.addr = l->vip, .port = p->sport, .protocol = IPPROTO_UDP};
	__u16 *published = bpf_map_lookup_elem(&replies, &sk);
	if (!published)
		return PASS;
	struct flow_key k = {.client = p->dst, .vip = l->vip, .client_port = p->dport, .port = *published, .protocol = IPPROTO_UDP};
	if (!bpf_map_lookup_elem(&flows, &k))
		return PASS;
	__u32 vip = l->vip, was = p->src;
	__u16 port = *published;
	if (port != p->sport && translate(skb, IPPROTO_UDP, 0, p->sport, port))
		return DROP;
	bpf_l4_csum_replace(skb, L4 + offsetof(struct udphdr, check), was, vip, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | 4);
	bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), was, vip, 4);
	bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, saddr), &vip, 4, 0);
	return PASS;
}

/* from_instance: at the ingress of the host's end of an instance's link. */
SEC("tc")
int from_instance(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	__u32 ifindex = skb->ifindex;
	struct instance_link *l = bpf_map_lookup_elem(&links, &ifindex);
	struct packet p = {};

	if (!l || (void *)(eth + 1) > end)
		return DROP;
	for (int i = 0; i < 6; i++)
		if (eth->h_source[i] != l->mac[i])
			return drop(DROP_SPOOFED);
	if (eth->h_proto != bpf_htons(ETH_P_IP))
		return PASS;
	if (parse(skb, &p))
		return drop(DROP_SPOOFED);
	if (p.src != l->addr && p.src != l->vip)
		return drop(DROP_SPOOFED);
	if (is_vip(p.dst))
		return p.protocol == IPPROTO_ICMP ? PASS : steer(skb, &p);
	if (p.src == l->addr)
		return p.protocol == IPPROTO_UDP ? answer(skb, &p, l) : PASS;
	if (p.protocol == IPPROTO_ICMP)
		return PASS;
	struct service_key sk = {.addr = p.src, .port = p.sport, .protocol = p.protocol};
	__u16 *published = bpf_map_lookup_elem(&replies, &sk);
	if (!published)
		return drop(DROP_SPOOFED); /* the VIP, but not a port of the service */
	__u16 port = *published;
	if (p.flags & (FIN | RST))
		note_end(&p, port);
	if (port != p.sport && translate(skb, p.protocol, 0, p.sport, port))
		return DROP;
	return PASS;
}

/* nothing is the program that every measurement is held against. */
SEC("tc")
int nothing(struct __sk_buff *skb)
{
	return PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
