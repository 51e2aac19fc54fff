//! Standard streams and terminals.

use integration::{Node, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("io::stdin_reaches_the_program", stdin_reaches_the_program),
        Case::plain("io::closing_stdin_is_seen", closing_stdin_is_seen),
        Case::plain("io::large_output_arrives_whole", large_output_arrives_whole),
        Case::plain("io::terminal", terminal),
        Case::plain("io::terminal_resize", terminal_resize),
        Case::plain("io::large_output_on_a_terminal", large_output_on_a_terminal),
        Case::plain("io::output_of_a_child_that_outlives_init", output_of_a_child_that_outlives_init),
        Case::plain("io::a_user_can_reopen_its_streams", a_user_can_reopen_its_streams),
        Case::plain("io::sigpipe_is_default", sigpipe_is_default),
        Case::plain("io::absent_streams_are_open_to_write", absent_streams_are_open_to_write),
        Case::egpu("io::no_signal_is_ignored", no_signal_is_ignored),
    ]
}

fn stdin_reaches_the_program(node: &Node) {
    let mut container = node.container("a").script("read line; echo \"got $line\"").stdin().start().unwrap();
    container.stdio.write(b"hello\n");
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
    assert_eq!(container.stdio.finish().stdout(), "got hello\n");
}

fn closing_stdin_is_seen(node: &Node) {
    let mut container = node.container("a").args(&["wc", "-c"]).stdin().start().unwrap();
    container.stdio.write(&[b'x'; 100_000]);
    container.close_stdin().unwrap();
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
    assert_eq!(container.stdio.finish().stdout().trim(), "100000");
}

fn absent_streams_are_open_to_write(node: &Node) {
    for uid in [0, 1000] {
        let script = "echo x && echo x >&2 && read x; test $? = 1 && exec sleep infinity";
        let user = move |spec: &mut serde_json::Value| spec["process"]["user"] = json!({ "uid": uid, "gid": uid });
        let container = node.container("a").script(script).without_streams().edit(user).start().unwrap();
        let of_init = |name: &str| std::path::PathBuf::from(format!("/proc/{}/{name}", container.pid()));
        eventually("it sleeps", || {
            std::fs::read_to_string(of_init("cmdline")).ok().filter(|line| line.contains("sleep"))
        });
        for stream in 0..3 {
            assert_eq!(std::fs::read_link(of_init(&format!("fd/{stream}"))).unwrap().to_str(), Some("/dev/null"));
            let facts = std::fs::read_to_string(of_init(&format!("fdinfo/{stream}"))).unwrap();
            let flags = facts.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            assert!(flags.ends_with('2'), "{stream} is not open to read and write: {flags}");
        }
        container.end();
    }
}

fn large_output_arrives_whole(node: &Node) {
    let (status, output) =
        node.container("a").script("head -c 8000000 /dev/zero | tr '\\0' x; echo end >&2").run().unwrap();
    assert_eq!((status, output.stdout().len(), output.stderr().as_str()), (0, 8_000_000, "end\n"));
}

fn terminal(node: &Node) {
    let mut container = node
        .container("a")
        .script("tty; test -t 0 && test -t 1 && test -t 2 && echo all; read x; echo $x")
        .terminal()
        .start()
        .unwrap();
    container.stdio.wait_for("all");
    container.stdio.write(b"typed\n");
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
    let text = container.stdio.finish().stdout();
    assert!(text.contains("/dev/") && text.contains("typed\r\n"), "{text:?}");
}

fn terminal_resize(node: &Node) {
    let mut container = node
        .container("a")
        .script("trap 'stty size' WINCH; echo ready; while :; do sleep 0.1; done")
        .terminal()
        .start()
        .unwrap();
    container.stdio.wait_for("ready");
    container.resize(123, 45).unwrap();
    container.stdio.wait_for("45 123");
    container.kill(Signal::SIGKILL).unwrap();
    container.wait().unwrap();
    container.delete().unwrap();
    container.stdio.finish();
}

fn large_output_on_a_terminal(node: &Node) {
    let mut container =
        node.container("a").script("head -c 1000000 /dev/zero | tr '\\0' x").terminal().start().unwrap();
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
    assert_eq!(container.stdio.finish().stdout().len(), 1_000_000);
}

fn output_of_a_child_that_outlives_init(node: &Node) {
    // The child keeps the pipe open for ever; delete must not wait for it.
    let mut container = node.container("a").script("echo early; (sleep 1000 &) ; exit 4").start().unwrap();
    assert_eq!(container.wait().unwrap(), 4);
    assert_eq!(container.delete().unwrap(), 4);
    assert_eq!(container.stdio.finish().stdout(), "early\n");
}

fn a_user_can_reopen_its_streams(node: &Node) {
    let as_user = |spec: &mut serde_json::Value| {
        spec["process"]["user"] = serde_json::json!({ "uid": 1000, "gid": 1000 });
    };
    let (status, output) = node
        .container("a")
        .script("echo again > /proc/self/fd/1 && echo error > /proc/self/fd/2")
        .edit(as_user)
        .run()
        .unwrap();
    assert_eq!((status, output.stdout().as_str(), output.stderr().as_str()), (0, "again\n", "error\n"));
}

fn sigpipe_is_default(node: &Node) {
    for (process, ignored) in ignored_signals(node) {
        assert_eq!(ignored & (1 << (Signal::SIGPIPE as u64 - 1)), 0, "{process}: {ignored:#x}");
    }
}

/// glibc's own signals, 32 and 33, included: some of its releases have `posix_spawn` ignore them,
/// and no program of glibc's can set them back.
fn no_signal_is_ignored(node: &Node) {
    assert_eq!(ignored_signals(node), [("init", 0), ("exec", 0)]);
}

/// The masks of the signals that a container's programs begin with as ignored. Without a shell,
/// which may ignore some itself.
fn ignored_signals(node: &Node) -> [(&'static str, u64); 2] {
    let program = ["grep", "SigIgn:", "/proc/self/status"];
    let mask = |status: &str| u64::from_str_radix(status.trim().trim_start_matches("SigIgn:").trim(), 16).unwrap();
    let (_, init) = node.container("a").args(&program).run().unwrap();
    let container = node.container("b").start().unwrap();
    let (_, exec) = container.exec("e", &program).run().unwrap();
    container.end();
    [("init", mask(&init.stdout())), ("exec", mask(&exec.stdout()))]
}
