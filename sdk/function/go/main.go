// A network function in Go. `pando fn new --lang go NAME` makes a copy of this directory; `pando fn build` and `pando fn test`
// build and try it.
package main

import "encoding/binary"

func init() {
	Register("function-go", 8, processPacket)
}

// processPacket lets the first hundred packets of a flow pass. The state is the number of them, in 8 bytes; it moves
// with the flow from unit to unit.
func processPacket(packet *Packet) bool {
	n := binary.LittleEndian.Uint64(packet.State()) + 1
	binary.LittleEndian.PutUint64(packet.State(), n)
	packet.Put()
	return n <= 100
}

func main() {}
