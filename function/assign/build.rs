//! Compiles the flowlet rule from the same header as the kernel program.

fn main() {
    println!("cargo::rerun-if-changed=../../bpf/assign.h");
    println!("cargo::rerun-if-changed=src/assign.c");
    cc::Build::new()
        .file("src/assign.c")
        .include("../../bpf")
        .opt_level(2)
        .warnings(true)
        .warnings_into_errors(true)
        .compile("pando_assign");
}
