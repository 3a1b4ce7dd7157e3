package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"pando.run/pando"
)

// devicesController is the hierarchy of v1 that holds devices back. It neither limits nor counts,
// and the groups of an earlier build are not in it. So it is apart from the controllers.
const devicesController = "devices"

// anyMinor is the minor number of a rule for all devices of a major number.
const anyMinor = ^uint32(0)

// usual are the devices of every instance: null, zero, full, random, urandom, tty, ptmx, and the
// terminals of its own.
var usual = []pando.Device{
	{Major: 1, Minor: 3}, {Major: 1, Minor: 5}, {Major: 1, Minor: 7}, {Major: 1, Minor: 8},
	{Major: 1, Minor: 9}, {Major: 5, Minor: 0}, {Major: 5, Minor: 2}, {Major: 136, Minor: anyMinor},
}

// Devices implements pando.Cgroup. A group of v2 gets a program, and one of v1 a list. A machine
// that can do neither is an error only for a group with granted devices: the others have no file of
// any.
func (g *Group) Devices(granted []pando.Device) error {
	var err error
	switch {
	case g.v2 != "":
		err = g.attach(granted)
	case g.devices != "":
		err = g.list(granted)
	default:
		err = fmt.Errorf("%w: this machine has no devices controller here; `pando doctor` explains it",
			pando.ErrNotFound)
	}
	if err == nil || len(granted) == 0 && errors.Is(err, pando.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("bound the devices of an instance: %w", err)
}

// list replaces the devices of a v1 group. Granted ones are added to those of a new group.
func (g *Group) list(granted []pando.Device) error {
	all := granted
	if granted == nil {
		if err := put(filepath.Join(g.devices, "devices.deny"), "a"); err != nil {
			return err
		}
		all = usual
	}
	for _, d := range all {
		kind, minor := "c", fmt.Sprint(d.Minor)
		if d.Block {
			kind = "b"
		}
		if d.Minor == anyMinor {
			minor = "*"
		}
		rule := fmt.Sprintf("%s %d:%s rw", kind, d.Major, minor)
		if err := put(filepath.Join(g.devices, "devices.allow"), rule); err != nil {
			return fmt.Errorf("allow %s: %w", rule, err)
		}
	}
	return nil
}

// attach replaces the program of a v2 group in one step. It outlives the agent.
func (g *Group) attach(granted []pando.Device) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pando_devices", Type: ebpf.CGroupDevice, License: "GPL",
		Instructions: deviceRules(append(append([]pando.Device{}, usual...), granted...)),
	})
	if err != nil {
		return fmt.Errorf("%w: the kernel takes no program for devices: %w", pando.ErrNotFound, err)
	}
	defer p.Close()
	dir, err := os.Open(g.v2)
	if err != nil {
		return err
	}
	defer dir.Close()
	return link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice,
	})
}

// Offsets in struct bpf_cgroup_dev_ctx, and a kind of device there.
const (
	ctxAccess, ctxMajor, ctxMinor = 0, 4, 8
	devBlock, devChar             = 1, 2
	accessMknod                   = 1
)

// deviceRules returns a program that allows to read and write the listed devices, and nothing else.
func deviceRules(all []pando.Device) asm.Instructions {
	code := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, ctxAccess, asm.Word), // the kind, and above it the access
		asm.LoadMem(asm.R4, asm.R1, ctxMajor, asm.Word),
		asm.LoadMem(asm.R5, asm.R1, ctxMinor, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R2, 0xffff),
		asm.RSh.Imm(asm.R3, 16),
		asm.And.Imm(asm.R3, accessMknod),
		asm.JNE.Imm(asm.R3, 0, "refuse"),
	}
	for n, d := range all {
		kind, next := int32(devChar), fmt.Sprintf("next%d", n)
		if d.Block {
			kind = devBlock
		}
		code = append(code, asm.JNE.Imm(asm.R2, kind, next), asm.JNE.Imm(asm.R4, int32(d.Major), next))
		if d.Minor != anyMinor {
			code = append(code, asm.JNE.Imm(asm.R5, int32(d.Minor), next))
		}
		code = append(code, asm.Ja.Label("allow"), asm.Mov.Reg(asm.R0, asm.R2).WithSymbol(next))
	}
	return append(code,
		asm.Mov.Imm(asm.R0, 0).WithSymbol("refuse"), asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"), asm.Return(),
	)
}
