// Package herd simulates ingress hosts that choose instances by score, in virtual time. The scores
// are those of package balance. The choice is bpf/choose.h, compiled as a program (chooser/), so
// the simulation and the kernel cannot differ. It reads no clock.
package herd

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"pando.run/pando"
	"pando.run/pando/balance"
)

// The orders to the program, and the policies, as in chooser.c and bpf/pando.h.
const (
	setScore = iota
	setPolicy
	endFlow
	choose
)

const (
	byHash   = 0
	byScore  = 3
	excluded = 1 << 31
	one      = 1 << 20 // a score of 1 in the kernel's map
)

// Chooser is the choice of some ingress hosts. It has no lock.
type Chooser struct {
	cmd *exec.Cmd
	to  *bufio.Writer
	in  io.WriteCloser
	out *bufio.Reader
	err error
}

// Compile compiles the choice into a folder and returns the program. src is the root of the
// sources.
func Compile(src, folder string) (program string, err error) {
	program = filepath.Join(folder, "chooser")
	c := exec.Command("clang", "-O2", "-Wall", "-Wno-unused-function", "-Wno-unused-variable",
		"-I"+filepath.Join(src, "bpf"), "-o", program,
		filepath.Join(src, "bench/balance/herd/chooser/chooser.c"))
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the choice of an instance: %w: %s; install clang and libbpf-dev",
			err, out)
	}
	return program, nil
}

// NewChooser starts the program for instances of one weight. The caller closes it.
func NewChooser(program string, instances []pando.InstanceID, buckets int) (*Chooser, error) {
	names, weights := make([]string, len(instances)), make([]int, len(instances))
	for n, i := range instances {
		names[n], weights[n] = string(i), 100
	}
	c := &Chooser{cmd: exec.Command(program)}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	c.to, c.out = bufio.NewWriterSize(c.in, 1<<16), bufio.NewReaderSize(out, 1<<16)
	table := balance.Buckets(names, weights, buckets)
	c.words(uint32(len(table)))
	for _, at := range table {
		c.words(uint32(at))
	}
	return c, nil
}

func (c *Chooser) words(all ...uint32) {
	var text [16]byte
	out := text[:0]
	for _, w := range all {
		out = binary.NativeEndian.AppendUint32(out, w)
	}
	if _, err := c.to.Write(out); err != nil && c.err == nil {
		c.err = err
	}
}

// By sets the policy of all hosts.
func (c *Chooser) By(policy uint32) { c.words(setPolicy, 0, 0, policy) }

// Score writes a score into a host's map, in the units of the kernel.
func (c *Chooser) Score(host, instance int, s pando.Score) {
	v := uint32(min(s.Value, 1000) * one)
	if s.Excluded {
		v |= excluded
	}
	c.words(setScore, uint32(host), uint32(instance), v)
}

// End ends a flow of a host.
func (c *Chooser) End(host, instance int) { c.words(endFlow, uint32(host), uint32(instance), 0) }

// Choose returns the instances of new flows. Flow n enters by hosts[n] and has the hash hashed[n].
func (c *Chooser) Choose(hosts []int, hashed []uint32) ([]int, error) {
	for n, h := range hosts {
		last := uint32(0)
		if n == len(hosts)-1 {
			last = 1
		}
		c.words(choose, uint32(h), last, hashed[n])
	}
	if err := c.to.Flush(); err != nil && c.err == nil {
		c.err = err
	}
	out := make([]int, len(hosts))
	for n := range out {
		var text [4]byte
		if _, err := io.ReadFull(c.out, text[:]); err != nil && c.err == nil {
			c.err = err
		}
		out[n] = int(int32(binary.NativeEndian.Uint32(text[:])))
	}
	if c.err != nil {
		return nil, fmt.Errorf("choose an instance: %w", c.err)
	}
	return out, nil
}

// Close ends the program.
func (c *Chooser) Close() error {
	_ = c.in.Close()
	return c.cmd.Wait()
}

// root returns the root of the sources from a folder beneath bench/.
func root(dir string) string {
	at := strings.LastIndex(dir, string(filepath.Separator)+"bench"+string(filepath.Separator))
	return dir[:max(at, 0)]
}
