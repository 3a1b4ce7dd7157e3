//! What cannot work is refused with its cause and the next step, before the program starts.

mod far;

use far::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn bad_input() {
    let dir = std::env::temp_dir().join(format!("pando-refused-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let (token, other, short) = (file("token", "correct horse"), file("other", "wrong battery"), file("short", "abc"));
    let setuid = dir.join("setuid");
    std::fs::copy("/bin/true", &setuid).unwrap();
    std::fs::set_permissions(&setuid, PermissionsExt::from_mode(0o4755)).unwrap();
    let h = host(&["--size", "64MiB", "--token-file", &token]);
    let at = h.address.as_str();
    let setuid = setuid.to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["--local", "32MiB", "--from", "127.0.0.1:9", "--", "true"], "does not answer"),
        (&["--local", "32MiB", "--from", at, "--", "true"], "refuses the token"),
        (&["--local", "32MiB", "--from", at, "--token-file", &other, "--", "true"], "refuses the token"),
        (&["--local", "32MiB", "--from", at, "--token-file", &short, "--", "true"], "wants 8 to 32"),
        (&["--local", "32MiB", "--from", at, "--token-file", &token, "--far", "65MiB", "--", "true"], "has only 64.0 MiB free"),
        (&["--local", "1MiB", "--from", at, "--token-file", &token, "--", "true"], "give at least 16.0 MiB"),
        (&["--local", "10%", "--from", at, "--token-file", &token, "--", "true"], "give at least 16.0 MiB"),
        (&["--local", "32MiB", "--from", at, "--token-file", &token, "--", setuid], "setuid"),
        (&["--local", "32MiB", "--from", at, "--token-file", &token, "--", "no-such-program"], "there is no program"),
        (&["--local", "32MiB", "--from", "nowhere", "--", "true"], "neither HOST:PORT nor unix:PATH"),
        (&["--local", "32MiB", "--from", at, "--copies", "2", "--", "true"], "2 copies want at least 2"),
        (&["--local", "lots", "--from", at, "--", "true"], "is no size"),
    ];
    for (args, why) in cases {
        let out = run(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(why), "{args:?} said {said:?}, not {why:?}");
    }
    // A lease that a refused start took is free again for the next one, and a right start works.
    until("the lease runs out", || {
        run(&["--local", "32MiB", "--from", at, "--token-file", &token, "--far", "60MiB", "--", "true"]).status.success()
    });
    std::fs::remove_dir_all(dir).unwrap();
}
