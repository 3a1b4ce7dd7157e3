/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Services that choose at connect. A program that connects to the VIP gets a socket straight to an
 * instance, and no packet of it is looked up or translated. The choice is that of a first packet
 * (choose.h). The program sees the VIP as its peer. A socket without a way straight to the chosen
 * instance keeps the VIP, and steering chooses at its first packet. */
#ifndef STRAIGHT_H
#define STRAIGHT_H

#include "arrive.h"

#define STRAIGHT_PORTS 8 /* published ports of an instance; a later one takes the VIP's way */
#define CLIENTS_MAX (1 << 13)
#define SPOKEN_MAX (1 << 12)
#define PROCEED 1   /* the answer that lets a program go on */
#define TCP_CLOSED 7 /* a socket that may connect */

struct straight_port {
	__u16 published, target;
	__u8 protocol;
	__u8 pad[3];
};

/* The way straight to an endpoint. */
struct straight {
	__u32 addr[2][4]; /* its own: IPv4 as ::ffff:a.b.c.d, and IPv6; zero: none */
	struct straight_port ports[STRAIGHT_PORTS];
	__s32 sockets; /* of this host that it has now */
	__u32 epoch;   /* of the endpoint: another one in its slot has another way */
};

/* The instance that a socket got in place of a VIP. */
struct met {
	__u32 vip[4], addr[4];
	__u16 port, target;
	__u32 slot, epoch;
};

/* The VIP:port or the instance that an unconnected UDP socket has sent to. */
struct spoken_key {
	__u64 cookie; /* of the socket */
	__u32 addr[4];
	__u16 port;
	__u16 pad[3];
};

/* An instance of this host, by its own address. */
struct home {
	__u32 ifindex;
	__u8 mac[6];
	__u8 host_mac[6];
	__u32 straight; /* 1: sockets reach it straight */
};

struct {
	GROWING(2 * ENDPOINTS_MAX, __u32[4], struct home);
} homes SEC(".maps");

/* The ports of services that choose at connect. */
struct {
	GROWING(1 << 12, struct service_key, __u32);
} connects SEC(".maps");

struct {
	GROWING(ENDPOINTS_MAX, __u32, struct straight);
} straights SEC(".maps"); /* by endpoint */

/* The network namespaces with clients: this host and its instances. */
struct {
	GROWING(CLIENTS_MAX, __u64, __u32);
} clients SEC(".maps"); /* -> ifindex of the instance's link, 0 for the host */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct met);
} mets SEC(".maps");

/* The choice stays for the datagrams of a socket, as a flow stays. */
struct {
	TABLE_OF(LRU_HASH, SPOKEN_MAX, struct spoken_key, struct met);
} spoken SEC(".maps");

/* across sends a packet between two instances of this host to the link of its receiver, if one of
 * them is reached straight. The kernel's forwarding costs more than the table. */
cold int across(struct __sk_buff *skb, struct packet *p, __u32 six)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 key[4];

	if (!p)
		return DROP;
	four(key, p->dst, six);
	struct home *to = bpf_map_lookup_elem(&homes, key);
	if (!to)
		return PASS;
	if (!to->straight) {
		four(key, p->src, six);
		struct home *from = bpf_map_lookup_elem(&homes, key);
		if (!from || !from->straight)
			return PASS;
	}
	if (data + ETH_HLEN > end)
		return PASS;
	__builtin_memcpy(data, to->mac, 6);
	__builtin_memcpy(data + 6, to->host_mac, 6);
	return bpf_redirect(to->ifindex, 0);
}

/* is_client returns whether this host steers the packets of a socket. */
inlined int is_client(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);

	return !!bpf_map_lookup_elem(&clients, &cookie);
}

inlined int is_same(__u32 slot, __u32 epoch)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);

	return e && e->ifindex && e->epoch == epoch;
}

/* count_socket counts a socket that gets an endpoint (1) or leaves it (-1). */
inlined void count_socket(__u32 slot, __s32 n)
{
	struct straight *s = bpf_map_lookup_elem(&straights, &slot);
	struct counters *c = bpf_map_lookup_elem(&traffic, &slot);

	if (!s)
		return;
	__sync_fetch_and_add(&s->sockets, n);
	count_live(slot, n);
	if (c && n > 0)
		__sync_fetch_and_add(&c->flows, 1);
	else if (c)
		__sync_fetch_and_add(&c->ends, 1); /* so that a drain looks at once */
}

/* meet chooses the instance for a VIP:port. It returns 0 if there is a way straight to it. */
inlined int meet(struct met *m, __u8 protocol, int six)
{
	struct service_key k = {.port = m->port, .protocol = protocol};

	copy(k.addr, m->vip, 1);
	__u32 *service = bpf_map_lookup_elem(&connects, &k);
	if (!service)
		return -1;
	int at = choose(*service, bpf_get_prandom_u32());
	if (at < 0)
		return -1;
	__u32 slot = at;
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &slot);
	struct straight *s = bpf_map_lookup_elem(&straights, &slot);
	if (!e || !s || !e->ifindex || e->service != *service || e->epoch != s->epoch)
		return -1;
	m->slot = slot;
	m->epoch = e->epoch;
	copy(m->addr, s->addr[six], 1);
	if (!(m->addr[0] | m->addr[3]))
		return -1;
	for (int i = 0; i < STRAIGHT_PORTS; i++) {
		if (s->ports[i].published == k.port && s->ports[i].protocol == protocol) {
			m->target = s->ports[i].target;
			return 0;
		}
	}
	return -1;
}

/* redirect_socket chooses at a connect. It returns whether the socket gets the instance. A program
 * that does not wait may ask again about a connect under way, and meets the same instance. */
inlined int redirect_socket(struct bpf_sock_addr *ctx, struct met *m, int six)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk || !is_client(ctx))
		return 0;
	struct met *was = bpf_sk_storage_get(&mets, sk, 0, 0);
	if (was && ctx->protocol == IPPROTO_TCP && sk->state != TCP_CLOSED) {
		*m = *was;
		return 1;
	}
	if (meet(m, ctx->protocol, six))
		return 0;
	if (was) {
		if (is_same(was->slot, was->epoch))
			count_socket(was->slot, -1);
		*was = *m;
	} else if (!bpf_sk_storage_get(&mets, sk, m, BPF_SK_STORAGE_GET_F_CREATE)) {
		return 0;
	}
	count_socket(m->slot, 1);
	return 1;
}

/* redirect_datagram chooses at a datagram of a socket that is not connected. */
inlined int redirect_datagram(struct bpf_sock_addr *ctx, struct met *m, int six)
{
	struct spoken_key k = {.cookie = bpf_get_socket_cookie(ctx), .port = m->port};

	if (!is_client(ctx))
		return 0;
	copy(k.addr, m->vip, 1);
	struct met *was = bpf_map_lookup_elem(&spoken, &k);
	if (was && is_same(was->slot, was->epoch)) {
		*m = *was;
		return 1;
	}
	if (meet(m, ctx->protocol, six) || bpf_map_update_elem(&spoken, &k, m, BPF_ANY))
		return 0;
	k.port = m->target;
	copy(k.addr, m->addr, 1);
	return !bpf_map_update_elem(&spoken, &k, m, BPF_ANY);
}

/* appear finds the VIP for the peer of a socket. m has the address of the peer. */
inlined int appear(struct bpf_sock_addr *ctx, struct met *m, int datagram)
{
	struct bpf_sock *sk = ctx->sk;
	struct met *was = sk ? bpf_sk_storage_get(&mets, sk, 0, 0) : 0;

	if (!was && datagram) {
		struct spoken_key k = {.cookie = bpf_get_socket_cookie(ctx), .port = m->target};
		copy(k.addr, m->addr, 1);
		was = bpf_map_lookup_elem(&spoken, &k);
	}
	if (!was || !same(was->addr, m->addr, 1) || was->target != m->target)
		return 0;
	*m = *was;
	return 1;
}

enum socket_call { CONNECTS, SENDS, NAMES_PEER, RECEIVES };

/* at_call4 handles a call of an IPv4 socket. */
inlined int at_call4(struct bpf_sock_addr *ctx, enum socket_call call)
{
	struct met m = {};

	if (call == CONNECTS || call == SENDS) {
		four(m.vip, (const __u32[]){ctx->user_ip4}, 0);
		m.port = ctx->user_port;
		if (!is_vip(m.vip + 3, 0) ||
		    !(call == CONNECTS ? redirect_socket(ctx, &m, 0) : redirect_datagram(ctx, &m, 0)))
			return PROCEED;
		ctx->user_ip4 = m.addr[3];
		ctx->user_port = m.target;
		return PROCEED;
	}
	four(m.addr, (const __u32[]){ctx->user_ip4}, 0);
	m.target = ctx->user_port;
	if (appear(ctx, &m, call == RECEIVES)) {
		ctx->user_ip4 = m.vip[3];
		ctx->user_port = m.port;
	}
	return PROCEED;
}

inlined void set_address6(struct bpf_sock_addr *ctx, const __u32 *a, __u16 port)
{
	ctx->user_ip6[0] = a[0];
	ctx->user_ip6[1] = a[1];
	ctx->user_ip6[2] = a[2];
	ctx->user_ip6[3] = a[3];
	ctx->user_port = port;
}

/* at_call6 handles a call of an IPv6 socket, which may have an IPv4 peer. */
inlined int at_call6(struct bpf_sock_addr *ctx, enum socket_call call)
{
	__u32 a[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	int mapped = !a[0] && !a[1] && a[2] == bpf_htonl(0xffff);
	struct met m = {};

	if (call == CONNECTS || call == SENDS) {
		copy(m.vip, a, 1);
		m.port = ctx->user_port;
		if (!(mapped ? is_vip(a + 3, 0) : is_vip(a, 1)))
			return PROCEED;
		if (call == CONNECTS ? redirect_socket(ctx, &m, !mapped)
				     : redirect_datagram(ctx, &m, !mapped))
			set_address6(ctx, m.addr, m.target);
		return PROCEED;
	}
	copy(m.addr, a, 1);
	m.target = ctx->user_port;
	if (appear(ctx, &m, call == RECEIVES))
		set_address6(ctx, m.vip, m.port);
	return PROCEED;
}

SEC("cgroup/connect4")
int straight_connect4(struct bpf_sock_addr *ctx)
{
	return at_call4(ctx, CONNECTS);
}

SEC("cgroup/connect6")
int straight_connect6(struct bpf_sock_addr *ctx)
{
	return at_call6(ctx, CONNECTS);
}

SEC("cgroup/sendmsg4")
int straight_sendmsg4(struct bpf_sock_addr *ctx)
{
	return at_call4(ctx, SENDS);
}

SEC("cgroup/sendmsg6")
int straight_sendmsg6(struct bpf_sock_addr *ctx)
{
	return at_call6(ctx, SENDS);
}

SEC("cgroup/recvmsg4")
int straight_recvmsg4(struct bpf_sock_addr *ctx)
{
	return at_call4(ctx, RECEIVES);
}

SEC("cgroup/recvmsg6")
int straight_recvmsg6(struct bpf_sock_addr *ctx)
{
	return at_call6(ctx, RECEIVES);
}

SEC("cgroup/getpeername4")
int straight_peername4(struct bpf_sock_addr *ctx)
{
	return at_call4(ctx, NAMES_PEER);
}

SEC("cgroup/getpeername6")
int straight_peername6(struct bpf_sock_addr *ctx)
{
	return at_call6(ctx, NAMES_PEER);
}

/* straight_release runs when a program closes a socket. */
SEC("cgroup/sock_release")
int straight_release(struct bpf_sock *sk)
{
	struct met *was = bpf_sk_storage_get(&mets, (void *)sk, 0, 0);

	if (was && is_same(was->slot, was->epoch))
		count_socket(was->slot, -1);
	return PROCEED;
}

#endif
