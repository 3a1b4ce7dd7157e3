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
//	tenant       doc.go        the owner of services and functions.
//	alias        doc.go        a further name of a service.
//	account      access/       the record of a tenant.
//	quota        access/       a limit of all services of a tenant together.
//	bound        access/share  a limit with a share for each owner and a reserve for operators.
//	error        doc.go        a reason that a caller may test for.
//	clock        doc.go        the only source of time below cmd/ and demo/.
//	host         host.go       a machine that runs the agent.
//	member       host.go       a host that was admitted to the cluster.
//	admissions   access/       the count of admitted hosts and of uses of tokens.
//	figures      figures.go    the counts of a server or an agent since its start.
//	token        access/       of a tenant: lets a caller from outside the hosts use the API.
//	signal       signal.go     a signal of a program, in every form that files have.
//	grant        grant.go      a device, a path or the network of a host, given by its owner.
//	right        right.go      a permission of the operators of one host.
//	deed         access/       a request that changed something, with its caller and its outcome.
//	audit        access/       the deeds of the cluster, bounded.
//	work         work.go       the counted work of a tenant, by its meters.
//	bill         access/       the work of a tenant by hours, days or months.
//	mark         work.go       the last batch of a host's work that the bills have.
//	invitation   right.go      a token with the address at which it admits hosts.
//	sighting     host.go       the store that a host has seen last.
//	peers        host.go       the way to the agents of other hosts.
//	liveness     edge/         the verdicts of the probes between hosts.
//	registry     store.go      the records of the cluster, with leases and fences.
//	record       store.go      one key of the registry with its value.
//	cgroup       instance.go   the group that limits and counts a sandbox.
//	wait         waits.go      work that reports what it waits for.
//	turn         access/turns  the right to do bounded work, such as a pull, with a share per owner.
//
// Services that scale themselves (fractal):
//
//	intent       request.go    a request, with its reason and its state.
//	self         request.go    every request that an instance may make.
//	budget       service.go    min, max, warm and rate of a service's instances.
//	grant        scale/        the answer to a request for one more instance.
//	state        state/        tree, branch, commit, merge and conflict.
//	objects      store.go      the hash tree of states on one host.
//	keeper       copies.go     the record of a state on several hosts.
//	copy         copies.go     a state on one of its hosts.
//	journal      store.go      the uncommitted state of one instance.
//
// Steering (haven):
//
//	VIP          service.go    the address of a service on every host.
//	share        edge/         a part of the VIPs with one holder.
//	wait         waits.go      work that waits for another machine, and tells its caller.
//	rest         rest.go       a released VIP or slot, which nobody else gets yet.
//	holder       edge/         the host of a network that answers for a VIP.
//	router       route.go      a neighbour of a host that speaks BGP.
//	routes       route.go      the VIPs that one host announces to routers.
//	steering     steering.go   the way of packets to instances and back.
//	endpoint     steering.go   one destination of flows.
//	external     external.go   an endpoint that Pando does not start.
//	front        front.go      a VIP that stands for the own address of a host.
//	endpoints    steering.go   the compact record of a service that every host follows.
//	seat         seats.go      one instance in the endpoints of its service.
//	flow         steering.go   the packets of one 5-tuple; the kernel has its entry.
//	weight       steering.go   an endpoint's share of new flows.
//	bucket       balance/      one slot of a steering table.
//	policy       balance.go    how a service chooses the endpoint of a new flow.
//	meter        balance.go    one measurement of an instance by its host.
//	score        balance.go    how loaded an endpoint is; lower is better.
//
// Services in their life (container-devops):
//
//	service      service.go    its target and its progress.
//	spec         service.go    an operator's description of a service.
//	reach        service.go    the part of the network that instances may connect to.
//	default      defaults.go   the value of a field that a spec leaves out.
//	revision     service.go    one version of a spec.
//	snapshot     snapshot.go   the processes and the memory of an instance, as files.
//	seal         snapshot.go   the proof that Pando wrote the description of a snapshot.
//	image        image.go      the files of a service, and the hosts that may have them.
//	seed         snapshot.go   the snapshot that new instances of a revision continue.
//	move         move.go       a running instance on its way to another host.
//	session      session.go    a command that an operator runs inside an instance.
//	machine      snapshot.go   a kind of machine that snapshots depend on.
//	volume       volume.go     a folder of a service that outlives its instances.
//	secret       secret.go     a text that the store keeps encrypted, for files of instances.
//	config       config.go     a file of a spec in its instances, plain or a template.
//	ordinal      stateful.go   the number of an instance's own volumes, and of its name.
//	hook         stateful.go   a command of a stateful service for one step of its life.
//	position     stateful.go   how far the data of an ordinal went.
//	pin          service.go    a number of instances that an operator fixed.
//	instance     instance.go   one running copy of a service.
//	phase        instance.go   one step in the life of an instance.
//	image        instance.go   the files of a service that brings its own.
//	vm           vm.go         a virtual machine in place of a program.
//	sandbox      instance.go   the container of an instance.
//	session      instance.go   a command that an operator runs inside an instance.
//	probe        service.go    one check of an instance's health.
//	health       health.go     the state of an instance that its probes show.
//	hearing      hearing.go    the address families by which an instance accepts.
//	usage        usage.go      the use of one instance at one moment.
//	kept         spread.go     connections that stay when a service grows.
//	decision     decision.go   a decision of Pando, with its inputs and its threshold.
//	operators    request.go    every request that people may make.
//	run          run.go        one run of a job, or of a command with a service's spec.
//	rollout      rollout.go    the way from one revision to the next.
//	trial        rollout.go    the progress of a rollout.
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

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Layout is the version of every stored record and of every pinned map. A reader upgrades older
// layouts as it reads (see world.Decode) and refuses newer ones.
const Layout = 1

// DefaultTenant owns everything without a tenant.
const DefaultTenant Tenant = "default"

// Names of the nouns. Each is a lower-case DNS label, so it fits into a key, a path, a host name
// and a URL.
type (
	Tenant      string
	ServiceName string
	HostName    string
	InstanceID  string
	IntentID    string
)

var label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$`)

// CheckLabel returns nil if s can name a thing of this kind ("service", "host", …), else the
// reason.
func CheckLabel(kind, s string) error {
	if label.MatchString(s) {
		return nil
	}
	return fmt.Errorf("%w: %s name %q: want 1 to 53 of a-z, 0-9 and '-', "+
		"beginning with a letter and not ending in '-'", ErrInvalid, kind, s)
}

// AliasesMax bounds the further names of one service.
const AliasesMax = 16

var alias = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_.-]{0,250}[a-z0-9_])?$`)

// CheckAlias returns nil if s can be a further name of a service: a name of a host, in lower case.
func CheckAlias(s string) error {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || len(part) > 63 {
			return fmt.Errorf("%w: alias %q: want names of 1 to 63 letters between dots", ErrInvalid, s)
		}
	}
	if !alias.MatchString(s) {
		return fmt.Errorf("%w: alias %q: want 1 to 252 of a-z, 0-9, '_', '-' and '.'", ErrInvalid, s)
	}
	return nil
}

// ServiceKey names a service across tenants.
type ServiceKey struct {
	Tenant Tenant      `json:"tenant"`
	Name   ServiceName `json:"name"`
}

// DefaultService returns the key of a service of the default tenant.
func DefaultService(name ServiceName) ServiceKey {
	return ServiceKey{Tenant: DefaultTenant, Name: name}
}

// String returns tenant/name, or the bare name for the default tenant.
func (k ServiceKey) String() string {
	if k.Tenant == DefaultTenant {
		return string(k.Name)
	}
	return string(k.Tenant) + "/" + string(k.Name)
}

// Compare orders services by tenant, then by name.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(cmp.Compare(k.Tenant, o.Tenant), cmp.Compare(k.Name, o.Name))
}

// ParseServiceKey reads the form that ServiceKey.String prints.
func ParseServiceKey(s string) (ServiceKey, error) {
	k := ServiceKey{Tenant: DefaultTenant, Name: ServiceName(s)}
	if tenant, name, ok := strings.Cut(s, "/"); ok {
		k = ServiceKey{Tenant: Tenant(tenant), Name: ServiceName(name)}
	}
	if err := CheckLabel("tenant", string(k.Tenant)); err != nil {
		return k, err
	}
	return k, CheckLabel("service", string(k.Name))
}

// Errors that a caller may test for with errors.Is. Each is wrapped into a sentence that names the
// action and the object.
var (
	ErrInvalid   = errors.New("invalid")        // the request itself is wrong
	ErrNotFound  = errors.New("not found")      // no such object
	ErrExists    = errors.New("exists already") // the name is taken
	ErrConflict  = errors.New("conflict")       // the object changed, or another request is pending
	ErrRefused   = errors.New("refused")        // a budget, a bound or a rule forbids it; see the text
	ErrForbidden = errors.New("forbidden")      // this asker may not ask that
	ErrTooLarge  = errors.New("too large")      // a body or a record is over its limit

	// ErrKeyReused: the key of a request has named another request before.
	ErrKeyReused = errors.New("another request had the Idempotency-Key")
	ErrLost      = errors.New("lost")                      // an earlier write is gone; nothing done
	ErrFenced    = errors.New("fenced")                    // the writer lost its leadership or epoch
	ErrStoreFull = errors.New("the store is out of space") // no room for writes; traffic still flows
	// ErrUnavailable: the store or its server gives no answer. Try again: the write may have happened.
	ErrUnavailable = errors.New("out of reach")
	// ErrUnreachable: something beside the store gives no answer, such as a registry or another host,
	// and the text names it. It is an ErrUnavailable for whoever only tries again.
	ErrUnreachable = unreachable("out of reach")
	ErrCompacted   = errors.New("history is compacted") // start the watch again with a snapshot

	// ErrFrozen: a record cannot be read, or the store is not the one that is known. Nothing is done.
	ErrFrozen = errors.New("frozen")

	ErrNoRoom   = errors.New("no host has room") // no host for an instance, or no slot for a host
	ErrNotReady = errors.New("not ready")        // a condition did not hold by its deadline
	ErrBusy     = errors.New("busy")             // it is there, and answers late or with "try later"

	ErrUnsupported = errors.New("not supported on this kernel") // needs the kernel that the text names
)

type unreachable string

// Error implements error.
func (u unreachable) Error() string { return string(u) }

// Unwrap makes it an ErrUnavailable.
func (unreachable) Unwrap() error { return ErrUnavailable }

// Clock is the only source of time below cmd/. In a simulation it is virtual.
type Clock interface {
	// Now returns the time.
	Now() time.Time
	// After delivers once, d from now. Stop releases it early.
	After(d time.Duration) (c <-chan time.Time, stop func())
}

// SuspendClock is a Clock that knows how long its machine was suspended. Now does not count that time.
type SuspendClock interface {
	Clock
	// Suspended returns the time since the boot in which the machine stood still.
	Suspended() time.Duration
}

// Suspended returns the time in which the machine of a clock stood still, or 0 if it does not know.
func Suspended(c Clock) time.Duration {
	if s, ok := c.(SuspendClock); ok {
		return s.Suspended()
	}
	return 0
}

// IDs makes unused names. Sequential names begin with the time, so they sort by birth.
type IDs interface {
	Instance(ServiceName) InstanceID // website-7k3fq
	Sequential(now time.Time) string // 01jd…: 26 characters
}

// Sleep waits for d on the clock, or until the context ends.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	ch, stop := c.After(d)
	defer stop()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
