package spec

import (
	"pando.run/pando"
)

var vmFields = []field{
	{name: "kernel", doc: "File of the kernel, relative to the spec file. Each host has it.",
		example: "./vmlinuz", kind: pathKind,
		set: func(s *pando.Spec, v any) { s.VM.Kernel = v.(string) },
		get: func(s pando.Spec) any { return s.VM.Kernel }},
	{name: "initrd", doc: "File of the initial file system.", def: "none", example: "./initrd",
		kind: pathKind,
		set:  func(s *pando.Spec, v any) { s.VM.Initrd = v.(string) },
		get:  func(s pando.Spec) any { return s.VM.Initrd }},
	{name: "disk", doc: "File of a raw disk, /dev/vda inside. Writes end with the instance.",
		def: "none", example: "./root.img", kind: pathKind,
		set: func(s *pando.Spec, v any) { s.VM.Disk = v.(string) },
		get: func(s pando.Spec) any { return s.VM.Disk }},
	{name: "memory", doc: "Memory of the machine, in bytes or with b, k, m or g (of 1024).",
		def: "256M", example: "512M", kind: bytesKind,
		set: func(s *pando.Spec, v any) { s.VM.MemoryBytes = v.(int64) },
		get: func(s pando.Spec) any { return s.VM.MemoryBytes }},
	{name: "cpus", doc: "Processors of the machine.", def: "1", example: "2",
		kind: integerKind(1, pando.VMCPUsMax),
		set:  func(s *pando.Spec, v any) { s.VM.CPUs = v.(int) },
		get:  func(s pando.Spec) any { return s.VM.CPUs }},
	{name: "append", doc: "Further words of the kernel's command line.", def: "none",
		example: "root=/dev/vda rw", kind: textKind("^[^\n\x00]+$", "one line of text", stringOnly,
			func(s string) (any, error) { return s, nil }),
		set: func(s *pando.Spec, v any) { s.VM.Append = v.(string) },
		get: func(s pando.Spec) any { return s.VM.Append }},
}

// vmConflicts returns the keys of a spec that contradict its kind.
func vmConflicts(s pando.Spec) (out []conflict) {
	add := func(is bool, path, text string) {
		if is {
			out = append(out, conflict{path, text})
		}
	}
	if !s.IsVM() {
		return out
	}
	if err := s.WithDefaults().VM.Check(); err != nil {
		add(true, "vm", plainly(err)[len("vm."):])
	}
	add(s.HostNet(), "grants", "netns: host has no effect in a virtual machine: put it into the "+
		"machine, or drop it")
	add(s.Health.Startup.Probe.Kind == pando.ProbeReported, "health.startup.probe",
		"a machine has no socket to report by: use tcp or http")
	add(s.Health.Ready.Kind == pando.ProbeExplicit, "health",
		"add ready, such as tcp or http GET /: a machine has no socket to report by")
	return out
}
