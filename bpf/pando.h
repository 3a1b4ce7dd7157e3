/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The types shared by user space and the steering programs. No struct has hidden padding. An
 * address is four words, IPv4 as ::ffff:a.b.c.d. Addresses and ports are in network order. */
#ifndef PANDO_H
#define PANDO_H

#include <linux/bpf.h>
#include <linux/types.h>

#define SERVICES_MAX 16384
#define ENDPOINTS_MAX 8192 /* of this host */
#define SLOTS_MAX 32768    /* the slots from ENDPOINTS_MAX on are for endpoints of other hosts */
#define PEERS_MAX 4096
#define NAME_BYTES 128

/* The tables of all services are blocks of chunks. Slabs of chunks are made on demand. */
#define CHUNK_BUCKETS 128
#define SLAB_CHUNKS 4096
#define SLABS_MAX 64

/* ANSWERED: the instance has replied. The flow is proven by its client's next valid packet. */
enum flow_flag { FLOW_ESTABLISHED = 1, FLOW_FIN = 2, FLOW_RST = 4, FLOW_ANSWERED = 8 };

/* The high half of a flow's flags is the number of the host that it came from; 0: none. The same
 * half of struct peer's room has that number. */
#define HALF 16
#define LOW_HALF 0xffff

/* Counters on every CPU: first the reasons for a drop (order of driver/network/ebpf), then the rest. */
enum count {
	DROP_SPOOFED = 0, /* an instance sent from a source that it does not own */
	DROP_CHATTER,     /* an instance's link-local traffic */
	DROP_FRAGMENT,    /* its first fragment was not seen */
	DROP_HEADER,      /* a truncated header, or too many extension headers */
	DROP_PROTOCOL,    /* to a VIP, but no TCP, UDP, echo or error */
	DROP_NO_SERVICE,  /* a VIP:port without a service */
	DROP_NO_ENDPOINT, /* a service without an endpoint, or a flow with its endpoint gone */
	DROP_NO_FLOW,     /* not the first packet of a flow, and no such flow */
	DROP_KERNEL,      /* the kernel could not change the packet as needed */
	DROP_KINDS,
	COUNT_REFUSED = DROP_KINDS, /* dropped packets that were answered with RST or ICMP */
	COUNT_ADDED,      /* flows added to the connection table */
	COUNT_REMOVED,    /* flows removed by the programs */
	COUNT_SWEPT,      /* flows removed by the sweep */
	COUNT_CROWDED,    /* proven flows that stay among the opening ones: a share is full (held.h) */
	DROP_STRANGER,    /* a packet of a tunnel from a foreign address */
	DROP_TOO_LARGE,   /* larger than the links of instances */
	COUNTS,
};

/* A served address. */
struct service_key {
	__u32 addr[4];
	__u16 port;
	__u8 protocol;
	__u8 pad;
};

/* A translation is between a target and a published port, or between a target and a host's port. */
enum goes { TO_TARGET = 0, TO_PUBLISHED, HOST_TO_TARGET, TARGET_TO_HOST };

/* The other side of an instance's port. */
struct port_key {
	__u32 ifindex; /* of the host's end of the instance's link */
	__u16 port;
	__u8 protocol;
	__u8 goes; /* enum goes */
};

/* The key of the connection table. VIPs share a /16 and a /64, so the key
 * holds only the rest. That is one word less to hash for every packet. */
struct flow_key {
	__u32 client;
	__u16 client_port;
	__u16 port;
	__u16 vip; /* its last two bytes */
	__u8 protocol;
	__u8 pad;
};

struct flow_key6 {
	__u32 client[4];
	__u32 vip[2]; /* its last eight bytes */
	__u16 client_port;
	__u16 port;
	__u8 protocol;
	__u8 pad[3];
};

struct flow {
#ifdef LAYOUT_NEXT /* a trial layout for tests of the upgrade of pinned tables */
	__u64 spare;
	__u32 flags;
	__u32 endpoint;
	__u32 epoch;
#else
	__u32 endpoint;
	__u32 epoch;
	__u32 flags;
#endif
	__u32 service;
	__u32 answer; /* sequence number of the instance's SYN, in the machine's order */
	__u16 target;
	__u16 room; /* bytes of the largest packet in the tunnel that it came by; 0: by none */
	__u64 seen; /* in ticks; for a TCP flow that is still opening: its first packet */
};

/* A change of the connection table that user space asks for, behind an Ethernet header. */
struct order {
	__u32 what; /* enum order_kind */
	__u32 six;
	__u32 key[10]; /* struct flow_key or struct flow_key6 */
	struct flow flow;
};

enum order_kind {
	ORDER_ADD = 0, /* a new flow to the opening ones, unless the table has one of this key */
	ORDER_HOLD,    /* a flow to the held ones: its instance has its socket */
	ORDER_FORGET,  /* delete the flow, unless a packet has changed it meanwhile */
	ORDER_COPIED = 1 << 8, /* with another: another layout's table has counted the flow */
};

/* A fragmented datagram. Only its first fragment has ports; the others follow it. */
struct fragment_key {
	__u32 src[4];
	__u32 dst[4];
	__u32 id;
	__u8 protocol;
	__u8 pad[3];
};

struct fragment {
	__u32 endpoint;
	__u32 epoch;
};

/* The place of an endpoint: this host, another one, or one that is dead by the probes or has no
 * lease. */
enum away { AT_HOME, AWAY, AWAY_SILENT };

struct endpoint {
	__u32 ifindex; /* 0: unused */
	__u32 epoch;   /* grows when the slot gets another instance */
	__u8 mac[6];     /* of an endpoint of another host: a mark and the low 40 bits of its tag */
	__u8 host_mac[6];
	__u32 service;
	__u32 away;      /* enum away; if it is on another host, ifindex is the tunnel */
	__u32 tunnel;    /* the high 24 bits of its tag */
	__u32 remote[4]; /* the address of its host; of an endpoint here, see enum own_word */
};

/* The words in remote of an endpoint of this host: its tag, and the number of its network namespace
 * plus 1. 0: its sockets cannot be asked. */
enum own_word { OWN_TAG_HIGH = 0, OWN_TAG_LOW, OWN_NETNS };

/* Another host of the cluster. */
struct peer {
	__u32 room; /* bytes of the largest packet that fits into a tunnel to it, and its number */
};

/* The places that may have the connections of a service. Hosts with its endpoints have numbers from
 * 0, and endpoints of this host have numbers from DOOR_HERE. */
struct door_key {
	__u32 service;
	__u32 n;
};

#define DOOR_HERE (1u << 31)
#define DOORS_MAX (1 << 13)

struct door {
	__u32 remote[4]; /* the address of the other host */
	__u32 slot;      /* of the endpoint of this host */
};

/* A question to other hosts about the flow of a packet. */
struct ask {
	__u32 asked; /* hosts */
	__u32 none;  /* of them, those that do not have the flow */
	__u32 pad[2];
};

/* The place of a service's table: its first chunk, counted over all slabs, and its
 * number of buckets less one. The number is a power of two and at least CHUNK_BUCKETS. */
struct place {
	__u32 chunk;
	__u32 mask;
};

struct service {
	__u32 active; /* index of the active table, 0 or 1 */
	__u32 endpoints[2]; /* endpoints with a bucket, by table */
	__u32 asleep; /* 1: user space holds first packets until there is an endpoint */
	struct place places[2];
};

#define HELD_BYTES 1536

/* The first packet of a flow of a service that sleeps, on its way to user space. */
struct held_packet {
	__u32 service;
	__u32 bytes;
	__u8 frame[HELD_BYTES];
};

struct chunk {
	__u16 endpoint[CHUNK_BUCKETS];
};

/* How a service chooses the endpoint of a new flow. */
enum balance_by { BY_HASH = 0, BY_ROUND_ROBIN, BY_HAVEN, BY_SCORE, BY_LEAST_FLOWS, BY_CLIENT };

/* Ranks are lists of endpoints, one in use and one to write. Scores and ranks of a
 * dead agent grow old: from the time until on, the service chooses by hash. */
struct policy {
	__u32 by;
	__u32 active; /* index of the rank in use, 0 or 1 */
	__u32 members[2]; /* endpoints of each rank */
	__u64 until; /* in nanoseconds since boot */
};

/* A score from here on is chosen only if every candidate has one. Lower is better. */
#define EXCLUDED (1u << 31)

/* The flows that a rank has placed. A lock, because an atomic addition that returns the sum needs
 * a newer instruction set than the rest of the programs. */
struct turn {
	struct bpf_spin_lock lock;
	__u32 at;
};

struct rank_key {
	__u32 service;
	__u16 which; /* rank 0 or 1 */
	__u16 chunk;
};

/* The key of the hash of flows: random, made with the tables. */
struct hash_key {
	__u32 word[2];
};

struct counters {
	__u64 flows;
	__u64 packets;
	__u64 bytes;
	__u64 ends; /* packets that end a flow: FIN or RST, of either side */
};

struct instance_link {
	__u32 addr[2][4]; /* its own, IPv4 and IPv6 */
	__u32 vip[2][4];  /* its service's */
	__u8 mac[6];
	__u8 pad[2];
};

/* The number of the kernel's own answers in the second that began at since. */
struct pace {
	__u64 since;
	__u64 answers;
};

struct name {
	__u32 service;
	__u32 used;
	char text[NAME_BYTES];
};

#endif
