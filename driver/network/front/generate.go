package front

// The generated Go and the object are committed, so that users need no clang.
//go:generate -command bpf2go go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags -Wall
//go:generate bpf2go front ../../../bpf/front.bpf.c -- -O2 -g -Werror -I/usr/include/x86_64-linux-gnu
