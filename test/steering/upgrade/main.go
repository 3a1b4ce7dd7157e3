// Command upgrade is a new agent's first moment, for tests. It adopts the steering that another
// build has pinned, publishes a table and prints the flows. Built with the tag layoutnext, it moves
// the pinned tables to the next layout.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"pando.run/pando"
	"pando.run/pando/balance"
	"pando.run/pando/driver/network/ebpf"
)

// Order is the input that it reads from standard input.
type Order struct {
	PinDir   string
	Uplinks  []string
	FlowsMax int
	Table    pando.SteeringTable
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var o Order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	d, err := ebpf.Open(ebpf.Config{
		PinDir: o.PinDir, Uplinks: o.Uplinks, FlowsMax: o.FlowsMax, Buckets: balance.Buckets,
	})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Publish(context.Background(), o.Table); err != nil {
		return err
	}
	r, err := d.Sweep(context.Background())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
