/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The shares of the connection table. A service holds at most three times the free places, and so
 * does a tenant with all its services. A flood of one so leaves room for all others. A tenant has
 * the same share of the places for guarded flows, which are opening. */
#ifndef HELD_H
#define HELD_H

#include "packet.h"

/* counts_of has the numbers of held flows that one flow changes: of its service, of all services,
 * and of its tenant. The tenant is NULL while user space has not named it: no limit applies. */
struct counts_of {
	__u64 *own, *all;
	__s64 *tenant;
};

/* find_counts uses one place of the stack for all keys: a kernel 6.1 allows 512 bytes to all
 * nested calls together. */
inlined void find_counts(struct counts_of *c, __u32 service, __u32 six)
{
	__u32 key = service;
	__u32 *tenant = bpf_map_lookup_elem(&tenants, &key);

	c->tenant = NULL;
	if (tenant && *tenant) {
		key = 2 * *tenant + six;
		c->tenant = bpf_map_lookup_elem(&tenant_held, &key);
	}
	key = 2 * service + six;
	c->own = bpf_map_lookup_elem(&held, &key);
	key = 2 * SERVICES_MAX + six;
	c->all = bpf_map_lookup_elem(&held, &key);
}

/* leave_held counts one held flow of a service less. */
apart int leave_held(__u32 service, __u32 six)
{
	struct counts_of c;

	find_counts(&c, service, six);
	if (c.own && c.all) {
		__sync_fetch_and_add(c.own, -1);
		__sync_fetch_and_add(c.all, -1);
		if (c.tenant)
			__sync_fetch_and_add(c.tenant, -1);
	}
	return 0;
}

/* enter_held counts one held flow of a service more, unless the service or its tenant has its
 * share. */
apart int enter_held(__u32 service, __u32 six)
{
	__u64 places = six ? held6_max : held_max;
	struct counts_of c;

	find_counts(&c, service, six);
	if (!c.own || !c.all || *c.all >= places || *c.own >= 3 * (places - *c.all) ||
	    (c.tenant && *c.tenant >= (__s64)(3 * (places - *c.all)))) {
		count(COUNT_CROWDED);
		return 0;
	}
	__sync_fetch_and_add(c.own, 1);
	__sync_fetch_and_add(c.all, 1);
	if (c.tenant)
		__sync_fetch_and_add(c.tenant, 1);
	return 1;
}

/* leave_guarded counts one guarded flow of a service less. */
apart int leave_guarded(__u32 service, __u32 six)
{
	__u32 key = service;
	__u32 *tenant = bpf_map_lookup_elem(&tenants, &key);
	__s32 *n;

	if (tenant && *tenant) {
		key = 2 * *tenant + six;
		n = bpf_map_lookup_elem(&tenant_guarded, &key);
		if (n)
			__sync_fetch_and_add(n, -1);
	}
	key = six;
	n = bpf_map_lookup_elem(&tenant_guarded, &key);
	if (n)
		__sync_fetch_and_add(n, -1);
	return 0;
}

/* enter_guarded counts one guarded flow of a service more, unless its tenant has its share. */
apart int enter_guarded(__u32 service, __u32 six)
{
	__s32 places = six ? guarded6_max : guarded_max, *own = NULL;
	__u32 key = service;
	__u32 *tenant = bpf_map_lookup_elem(&tenants, &key);

	if (tenant && *tenant) {
		key = 2 * *tenant + six;
		own = bpf_map_lookup_elem(&tenant_guarded, &key);
	}
	key = six;
	__s32 *all = bpf_map_lookup_elem(&tenant_guarded, &key);
	if (!all)
		return 0;
	__s32 room = places - *all;
	if (room <= 0 || (own && *own >= 3 * room))
		return 0;
	__sync_fetch_and_add(all, 1);
	if (own)
		__sync_fetch_and_add(own, 1);
	return 1;
}

#endif
