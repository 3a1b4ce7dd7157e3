package reach

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" -no-global-types -type walled -type owner reach ../../bpf/reach.bpf.c
