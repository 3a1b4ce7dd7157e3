//! An invalid function is refused with the reason before it receives a packet.

mod modules;

use std::path::Path;

use pando_wasm::{Limits, MODULE_BYTES_MAX, Runtime};

use modules::{build, scratch};

fn refusal(path: &Path, configuration: &[u8]) -> String {
    let limits = Limits { memory_bytes: 8 << 20, ..Limits::default() };
    match Runtime::new(limits, 2).load(path, configuration) {
        Ok(_) => panic!("{} was taken for a function", path.display()),
        Err(e) => e.to_string(),
    }
}

const GOOD: &str = r#"
#include <pando_nf.h>
struct state { uint32_t n; };
static enum pando_verdict process_packet(struct pando_ctx *ctx, struct pando_packet *packet) {
    (void)ctx; (void)packet; return PANDO_PASS;
}
"#;

/// Files that are not modules, truncated modules, and modules that are too large.
#[test]
fn not_wasm() {
    let whole =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm")).unwrap();
    let mut broken = whole.clone();
    broken[whole.len() / 2..].fill(0xff);
    let directory = scratch("not-wasm");
    let path = directory.join("some.wasm");
    let shapes = [
        &b"#!/bin/sh\n"[..],
        b"",
        &whole[..7],
        &whole[..whole.len() / 2],
        &whole[..whole.len() - 1],
        &broken,
    ];
    for bytes in shapes {
        std::fs::write(&path, bytes).unwrap();
        let reason = refusal(&path, b"");
        assert!(
            reason.contains("is not a WebAssembly module") && reason.contains("pando fn build"),
            "{} bytes: {reason}",
            bytes.len()
        );
    }
    std::fs::File::create(&path).unwrap().set_len(MODULE_BYTES_MAX + 1).unwrap();
    let huge = refusal(&path, b"");
    std::fs::remove_dir_all(directory).unwrap();
    assert!(huge.contains("more than 64 MiB") && huge.contains("debug information"), "{huge}");
    let endless = refusal(Path::new("/dev/zero"), b"");
    assert!(endless.contains("more than 64 MiB"), "{endless}");
}

#[test]
fn no_file() {
    let reason = refusal(Path::new("/nowhere/nat.wasm"), b"");
    assert!(reason.contains("/nowhere/nat.wasm: No such file"), "{reason}");
}

#[test]
fn no_export() {
    let module =
        build("no-export", "__attribute__((export_name(\"other\"))) int other(void) { return 0; }");
    let reason = refusal(&module.wasm, b"");
    assert!(reason.contains("does not export pando_describe"), "{reason}");
}

/// An export must have the right type.
#[test]
fn an_export_of_another_type() {
    let source = format!(
        "{GOOD}PANDO_EXPORT(pando_describe) float describe(void) {{ return 1; }} \
         PANDO_EXPORT(pando_process) void process(uint32_t n) {{ (void)n; (void)process_packet; }}"
    );
    let module = build("type", &source);
    let reason = refusal(&module.wasm, b"");
    assert!(reason.contains("does not export pando_describe() -> i32"), "{reason}");
}

#[test]
fn another_abi_version() {
    let source = format!("{GOOD}PANDO_FUNCTION(\"future\", struct state, process_packet);")
        .replace(
            "#include <pando_nf.h>",
            "#include <pando_nf.h>\n#undef PANDO_ABI\n#define PANDO_ABI 9",
        );
    let module = build("version", &source);
    let reason = refusal(&module.wasm, b"");
    assert!(reason.contains("ABI version 9, this unit runs version 1"), "{reason}");
}

#[test]
fn a_descriptor_that_points_outside() {
    let source = format!(
        "{GOOD}static struct pando_descriptor d = {{1, 4, 0x7fffff00, 0, 0, 0, 0, \"liar\"}};
        PANDO_EXPORT(pando_describe) uint32_t describe(void) {{ return (uint32_t)&d; }}
        PANDO_EXPORT(pando_process) void process(uint32_t n) {{ (void)n; (void)process_packet; }}"
    );
    let module = build("outside", &source);
    let reason = refusal(&module.wasm, b"");
    assert!(reason.contains("the batch") && reason.contains("outside of its"), "{reason}");
}

#[test]
fn an_import_that_units_do_not_offer() {
    let source = format!(
        "{GOOD}__attribute__((import_module(\"env\"), import_name(\"open_socket\"))) int \
         open_socket(void);
        PANDO_EXPORT(keep) int keep(void) {{ return open_socket(); }}
        PANDO_FUNCTION(\"asks\", struct state, process_packet);"
    );
    let module = build("import", &source);
    let reason = refusal(&module.wasm, b"");
    assert!(
        reason.contains("imports what a unit does not offer") && reason.contains("open_socket"),
        "{reason}"
    );
}

#[test]
fn a_configuration_that_is_wrong() {
    let nat = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/nat/nat.wasm"));
    for wrong in [
        "",
        "address=1.2.3\n",
        "address=1.2.3.4\ninside=10.0.0.0/33\n",
        "address=1.2.3.4\ninside=10.0.0.0\n",
    ] {
        let reason = refusal(nat, wrong.as_bytes());
        assert!(reason.contains("refuses its configuration"), "{wrong:?}: {reason}");
    }
    let reason = refusal(nat, &[b'x'; 5000]);
    assert!(reason.contains("room for 4096 bytes of configuration, 5000 are given"), "{reason}");
}

#[test]
fn more_memory_than_allowed() {
    let source = format!(
        "static unsigned char big[9 << 20];\n{GOOD}PANDO_EXPORT(keep) void *keep(void) {{ return \
         big; }}\nPANDO_FUNCTION(\"big\", struct state, process_packet);"
    );
    let module = build("memory", &source);
    let reason = refusal(&module.wasm, b"");
    assert!(reason.contains("memory"), "{reason}");
}

#[test]
fn a_start_that_never_ends() {
    let source = format!(
        "{GOOD}static int forever(const uint8_t *c, uint32_t n) {{ (void)c; for (volatile uint32_t \
         i = 0;;) i += n; return 0; }}
        PANDO_FUNCTION_WITH(\"forever\", struct state, process_packet, forever, 0);"
    );
    let module = build("forever", &source);
    let reason = refusal(&module.wasm, b"");
    assert!(reason.contains("pando_configure: ran for longer than its limit"), "{reason}");
}
