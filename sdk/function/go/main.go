// A network function in Go. `pando fn new --lang go NAME` copies this directory; `pando fn build`
// and `pando fn test` build and test the copy.
package main

import "encoding/binary"

func init() {
	Register("function-go", 8, processPacket)
}

// processPacket passes the first hundred packets of a flow. The state is their number, in 8 bytes.
// It moves with the flow from unit to unit.
func processPacket(packet *Packet) bool {
	n := binary.LittleEndian.Uint64(packet.State()) + 1
	binary.LittleEndian.PutUint64(packet.State(), n)
	packet.Put()
	return n <= 100
}

func main() {}
