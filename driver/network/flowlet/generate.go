package flowlet

// The generated Go and the object are committed, so that users need no clang. CI generates them
// anew and compares.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" -type flowlet_key -type flowlet_flow -type flowlet_tally -type assign_config -type assign_units flowlet ../../../bpf/flowlet.bpf.c
