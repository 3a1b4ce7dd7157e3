package ebpf

// The generated Go and the objects are committed, so that users need no clang. CI generates them
// anew and compares. The second object has the trial layout (layout_next.go).
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags !layoutnext -cc clang -cflags "-O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu" -type service_key -type port_key -type flow_key -type flow_key6 -type flow -type endpoint -type service -type counters -type instance_link -type name -type hash_key -type order -type place -type peer -type policy -type rank_key -type turn -type door_key -type door -type straight -type met steer ../../bpf/steer.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags layoutnext -output-stem steernext -cc clang -cflags "-O2 -g -Wall -Werror -DLAYOUT_NEXT -I/usr/include/x86_64-linux-gnu" -type service_key -type port_key -type flow_key -type flow_key6 -type flow -type endpoint -type service -type counters -type instance_link -type name -type hash_key -type order -type place -type peer -type policy -type rank_key -type turn -type door_key -type door -type straight -type met steer ../../bpf/steer.bpf.c
