//! Compiles each function's C for the host, with its name in front of every symbol.

fn main() {
    println!("cargo::rerun-if-changed=../../sdk/function/c");
    for name in ["nat", "policer", "ids", "balancer", "whitelister"] {
        let source = format!("../functions/{name}/{name}.c");
        println!("cargo::rerun-if-changed=../functions/{name}");
        cc::Build::new()
            .file(source)
            .include("../../sdk/function/c")
            .define("PANDO_TWIN", name)
            .flag("-std=c11")
            .flag("-Wno-unused-function")
            .flag("-fno-strict-aliasing")
            .opt_level(3)
            .warnings(true)
            .compile(&format!("pando_twin_{name}"));
    }
}
