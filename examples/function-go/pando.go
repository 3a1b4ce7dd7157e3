package main

import "unsafe"

// The batch interface of Pando's units, ABI version 1 (sdk/c/pando_nf.h is its contract).

const (
	abi          = 1
	batchPackets = 32
	stateMax     = 4096

	stateValid = 1
	reply      = 2
	statePut   = 16
)

type entry struct {
	data, length, capacity, state, flags, verdict, lease, earlier uint32
	timeNanos                                                     uint64
}

type batchArea struct {
	current, eventCount uint32
	packets             [batchPackets]entry
	events              [1024][2]uint32
	data                [128 * 1024]byte
}

type descriptor struct {
	abi, stateBytes, batch, slots, config, configBytes, leases uint32
	name                                                       [36]byte
}

var (
	batch   batchArea
	slots   [batchPackets * stateMax]byte
	self    descriptor
	process func(*Packet) bool
)

// Packet is one packet of a flow.
type Packet struct{ e *entry }

// Register says what the function is: its name, the size of a flow's state, and what it does with a packet. It returns
// whether the packet passes. Call it from init.
func Register(name string, stateBytes uint32, f func(*Packet) bool) {
	process = f
	self = descriptor{abi: abi, stateBytes: stateBytes, batch: at(unsafe.Pointer(&batch)), slots: at(unsafe.Pointer(&slots))}
	copy(self.name[:35], name)
}

func at(p unsafe.Pointer) uint32 { return uint32(uintptr(p)) }

// Data is the packet, from the Ethernet header on.
func (p *Packet) Data() []byte {
	return batch.data[p.e.data-at(unsafe.Pointer(&batch.data)):][:p.e.length]
}

// State is the flow's state, to read and to change; zeroes for a flow without. Call Put after a change.
func (p *Packet) State() []byte {
	return slots[p.e.state-at(unsafe.Pointer(&slots)):][:self.stateBytes]
}

// Put makes what State holds the flow's state.
func (p *Packet) Put() { p.e.flags |= statePut | stateValid }

// HasState says whether an earlier packet of the flow put a state.
func (p *Packet) HasState() bool { return p.e.flags&stateValid != 0 }

// IsReply says whether the packet goes against the direction of the flow's first.
func (p *Packet) IsReply() bool { return p.e.flags&reply != 0 }

// TimeNanos is when the packet came.
func (p *Packet) TimeNanos() uint64 { return p.e.timeNanos }

//go:wasmexport pando_describe
func describe() uint32 { return at(unsafe.Pointer(&self)) }

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
