// Package pando holds the nouns of Pando and the interfaces through which its rooms meet.
//
// It never does I/O, never reads a clock and never draws a random number. Drivers behind these
// interfaces touch the outside, so the same decisions run against the kernel and in a simulation.
//
// # Index
//
// Each noun with the file of this package, or the room, that defines it.
//
// Words of all systems:
//
//	tenant       names.go      the owner of services and functions.
//	error        names.go      a reason that a caller may test for.
//	clock        names.go      the only source of time below cmd/ and demo/.
//	host         host.go       a machine that runs the agent.
//	member       host.go       a host that was admitted to the cluster.
//	sighting     cluster.go    the store that a host has seen last.
//	peers        host.go       the way to the agents of other hosts.
//	registry     store.go      the records of the cluster, with leases and fences.
//	record       store.go      one key of the registry with its value.
//	cgroup       instance.go   the group that limits and counts a sandbox.
//
// Services that scale themselves (fractal):
//
//	intent       request.go    a request, with its reason and its state.
//	self         request.go    every request that an instance may make.
//	budget       service.go    min, max, warm and rate of a service's instances.
//	grant        scale/        the answer to a request for one more instance.
//	state        state/        tree, branch, commit, merge and conflict.
//	objects      store.go      the hash tree of states on one host.
//	journal      store.go      the uncommitted state of one instance.
//
// Steering (haven):
//
//	VIP          service.go    the address of a service on every host.
//	steering     steering.go   the way of packets to instances and back.
//	endpoint     steering.go   one destination of flows.
//	endpoints    endpoints.go  the compact record of a service that every host follows.
//	seat         endpoints.go  one instance in the endpoints of its service.
//	flow         steering.go   the packets of one 5-tuple; the kernel has its entry.
//	weight       steering.go   an endpoint's share of new flows.
//	bucket       balance/      one slot of a steering table.
//
// Services in their life (container-devops):
//
//	service      service.go    its target and its progress.
//	spec         service.go    an operator's description of a service.
//	reach        service.go    the part of the network that instances may connect to.
//	revision     service.go    one version of a spec.
//	pin          service.go    a number of instances that an operator fixed.
//	instance     instance.go   one running copy of a service.
//	phase        instance.go   one step in the life of an instance.
//	image        image.go      the files of a service that brings its own.
//	sandbox      instance.go   the container of an instance.
//	session      instance.go   a command that an operator runs inside an instance.
//	probe        service.go    one check of an instance's health.
//	decision     request.go    a decision of Pando, with its inputs and its threshold.
//	operators    request.go    every request that people may make.
//	rollout      lifecycle/    the way from one revision to the next.
//	placement    lifecycle/    the host of an instance.
//
// Network functions (snf):
//
//	function     function/     a program that processes batches of packets.
//	unit         function.go   a process that runs functions on one core.
//	group        function/     the units that share flows.
//	flowlet      function.go   a burst of a flow, between two idle gaps.
//	assignment   bpf/          the unit of a flowlet.
//	output log   function/     the batches that a unit has sent, kept by another process.
//	meter        function/     counted work that is billed.
//
// Far memory (disaggregated-memory-unikernel):
//
//	memory host  memory/       a program that lends memory.
//	lease        memory/       the memory that one borrower has on a memory host.
//	pager        memory/       the library that moves pages of a borrower.
//	region       memory/       a range of a borrower's addresses with far pages.
//	page         memory/       4 KiB of a region, local or far.
//	guide        sdk/          an application's own choice of pages to prefetch.
package pando
