//! The helper without containerd: zygote, client, libcontainer and a busybox.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, unreachable_pub)]

mod bundle;
mod probe;

use std::future::Future;
use std::pin::Pin;

use bundle::{Bench, process, wait};
use egpu_shim::helper::{HelperClient, spawn};
use serde_json::json;

type Case = for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), (|bench| Box::pin($name(bench))) as Case)),*]
    };
}

fn main() {
    // Cargo's runners ask harnesses for a list.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "ioctl") {
        probe::ioctl();
        return;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let cases = cases![
        // Each is one line of its own.
        a_program_runs_and_its_exit_code_and_output_arrive,
        exec_joins_the_container,
        a_program_that_cannot_be_executed_is_told_in_runcs_words,
        the_fence_holds_for_init_and_exec_only_where_asked,
    ];
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in cases {
            println!("{name}: test");
        }
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: making containers needs root");
        return;
    }
    let zygote = spawn().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new(HelperClient::new(zygote).unwrap());
        for (name, case) in cases {
            if filter.is_none_or(|filter| name.contains(filter.as_str())) {
                println!("test {name} ...");
                case(&bench).await;
                println!("test {name} ... ok");
            }
        }
    });
}

async fn a_program_runs_and_its_exit_code_and_output_arrive(bench: &Bench) {
    let container = bench.container(&["sh", "-c", "echo hello $HOME; exit 7"], |_| {});
    assert_eq!(container.run().await.unwrap(), (7, "hello /root\n".into()));
}

async fn exec_joins_the_container(bench: &Bench) {
    let mut container = bench.container(&["sleep", "1000"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let (code, output) = container.sh("cat /proc/1/cmdline | tr '\\0' ' '; exit 3").await;
    assert_eq!((code, output.as_str()), (3, "sleep 1000 "));
    container.delete().await.unwrap();
    assert_eq!(wait(&init), 137);
    container.assert_gone();
    let _ = (process(&[]), json!({}));
}

async fn a_program_that_cannot_be_executed_is_told_in_runcs_words(bench: &Bench) {
    std::fs::write(bench.image().join("plain"), "x").unwrap();
    let script = bench.image().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let garbage = bench.image().join("garbage");
    std::fs::write(&garbage, "\u{1}\u{2}").unwrap();
    for path in [&script, &garbage] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }
    let mut running = bench.container(&["sleep", "1000"], |_| {});
    let init = running.create().await.unwrap();
    running.start().await.unwrap();
    for (program, message) in [
        ("nonesuch", "exec: \"nonesuch\": executable file not found in $PATH"),
        ("/no/such", "exec: \"/no/such\": stat /no/such: no such file or directory"),
        ("/plain", "exec: \"/plain\": permission denied"),
        ("/script", "exec /script: no such file or directory"),
        ("/garbage", "exec /garbage: exec format error"),
    ] {
        let error = bench.container(&[program], |_| {}).run().await.unwrap_err();
        assert_eq!(error.to_string(), message, "create and start");
        let error = running.exec(process(&[program]), false).await.unwrap_err();
        assert_eq!(error.to_string(), message, "exec");
    }
    running.delete().await.unwrap();
    wait(&init);
}

async fn the_fence_holds_for_init_and_exec_only_where_asked(bench: &Bench) {
    for (fence, answer) in [(false, "EBADF"), (true, "ENOTTY")] {
        let container = bench.container(&["/probe", "ioctl"], Bench::add_probe).with(|create| create.fence = fence);
        assert_eq!(container.run().await.unwrap(), (0, format!("{answer}\n")), "init, fence: {fence}");
    }
    let mut container = bench.container(&["sleep", "1000"], Bench::add_probe);
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    for (fence, answer) in [(false, "EBADF"), (true, "ENOTTY")] {
        let (probe, output) = container.exec(process(&["/probe", "ioctl"]), fence).await.unwrap();
        assert_eq!((wait(&probe), bundle::read(output)), (0, format!("{answer}\n")), "exec, fence: {fence}");
    }
    container.delete().await.unwrap();
    wait(&init);
}
