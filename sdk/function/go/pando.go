package main

import "unsafe"

// The batch interface of Pando's units, ABI version 1 (sdk/function/c/pando_nf.h is its contract).

const (
	abi          = 1
	batchPackets = 32
	batchEvents  = 1024
	stateMax     = 4096
	configMax    = 4096

	stateValid = 1
	reply      = 2
	translated = 4
	leased     = 8
	statePut   = 16
	leaseTaken = 32
	alias      = 64
	outer      = 128
)

type entry struct {
	data, length, capacity, state, flags, verdict, lease, earlier uint32
	timeNanos                                                     uint64
}

type batchArea struct {
	current, eventCount uint32
	packets             [batchPackets]entry
	events              [batchEvents][2]uint32
	data                [128 * 1024]byte
}

type descriptor struct {
	abi, stateBytes, batch, slots, config, configBytes, leases uint32
	name                                                       [36]byte
}

var (
	batch   batchArea
	slots   [batchPackets * stateMax]byte
	config  [configMax]byte
	self    = descriptor{abi: abi}
	process func(*Packet) bool
	read    func(config []byte) (complaint int32)
)

// Packet is one packet of a flow.
type Packet struct{ e *entry }

// Register sets the function: its name, the size of a flow's state, and its call per packet. That
// call returns whether the packet passes. A state has at most 4096 bytes. Call Register from init.
func Register(name string, stateBytes uint32, f func(*Packet) bool) {
	process = f
	self.stateBytes, self.batch, self.slots = stateBytes, at(unsafe.Pointer(&batch)),
		at(unsafe.Pointer(&slots))
	copy(self.name[:35], name)
}

// Configure sets the reader of the configuration. The configuration is "key=value" lines of at most
// 4096 bytes in total. The reader runs before the first packet; a result other than 0 refuses the
// configuration. Call Configure from init. Without it, the function takes no configuration.
func Configure(f func(config []byte) (complaint int32)) {
	read = f
	self.config, self.configBytes = at(unsafe.Pointer(&config)), configMax
}

// WantLeases requests a unique number for each new flow (Packet.Lease). Call it from init.
func WantLeases() { self.leases = 1 }

func at(p unsafe.Pointer) uint32 { return uint32(uintptr(p)) }

// Data returns the packet, from the Ethernet header on.
func (p *Packet) Data() []byte {
	return batch.data[p.e.data-at(unsafe.Pointer(&batch.data)):][:p.e.length]
}

// State returns the flow's state, to read and to change; zeroes for a flow without state. Call Put
// after a change.
func (p *Packet) State() []byte {
	return slots[p.e.state-at(unsafe.Pointer(&slots)):][:self.stateBytes]
}

// Put stores the contents of State as the flow's state.
func (p *Packet) Put() { p.e.flags |= statePut | stateValid }

// HasState reports whether an earlier packet of the flow put a state.
func (p *Packet) HasState() bool { return p.e.flags&stateValid != 0 }

// IsReply reports whether the packet's direction is opposite to the flow's first packet.
func (p *Packet) IsReply() bool { return p.e.flags&reply != 0 }

// IsTranslated reports whether the packet matched its flow by the addresses of an earlier output
// (Alias).
func (p *Packet) IsTranslated() bool { return p.e.flags&translated != 0 }

// IsOuter reports whether the packet came in at the device of --out. With one device, none did.
func (p *Packet) IsOuter() bool { return p.e.flags&outer != 0 }

// Lease takes a number that is unique among the function's flows, for example a port. Each new flow
// is offered one, and keeps it once taken.
func (p *Packet) Lease() (number uint32, ok bool) {
	if p.e.flags&leased == 0 {
		return 0, false
	}
	p.e.flags |= leaseTaken
	return p.e.lease, true
}

// Alias assigns packets that answer this packet's addresses and ports on return to this flow.
func (p *Packet) Alias() { p.e.flags |= alias }

// Resize sets the length of the packet. It reports whether there is room: 64 bytes more than the
// packet arrived with.
func (p *Packet) Resize(length uint32) bool {
	if length > p.e.capacity {
		return false
	}
	p.e.length = length
	return true
}

// Report sends an event to the function's owner, for example an alert; `pando fn logs` shows it. It
// reports whether the batch had room.
func (p *Packet) Report(code uint32) bool {
	if batch.eventCount >= batchEvents {
		return false
	}
	batch.events[batch.eventCount] = [2]uint32{batch.current, code}
	batch.eventCount++
	return true
}

// TimeNanos returns the arrival time of the packet.
func (p *Packet) TimeNanos() uint64 { return p.e.timeNanos }

//go:wasmexport pando_describe
func describe() uint32 { return at(unsafe.Pointer(&self)) }

//go:wasmexport pando_configure
func configure(length uint32) int32 {
	if read == nil {
		return 0
	}
	return read(config[:length])
}

//go:wasmexport pando_process
func processBatch(count uint32) {
	for i := range count {
		batch.current = i
		e := &batch.packets[i]
		if e.earlier != 0 {
			e.flags |= batch.packets[e.earlier-1].flags & stateValid
		}
		e.verdict = 0
		if process(&Packet{e}) {
			e.verdict = 1
		}
	}
}
