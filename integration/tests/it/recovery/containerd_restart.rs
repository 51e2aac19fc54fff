//! containerd ends and comes back while containers run.

use containerd_client::types::v1::Status as TaskStatus;
use integration::{Node, Setup, cri::PodContainerConfig, eventually, is_egpu};
use nix::sys::signal::Signal;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("restart::containers_go_on", containers_go_on),
        Case::plain("restart::an_end_during_the_downtime_is_reported", an_end_during_the_downtime_is_reported),
        Case::plain("restart::output_during_the_downtime_arrives", output_during_the_downtime_arrives),
        Case::plain("restart::pods_go_on", pods_go_on).on(Setup::cri),
        Case::egpu("restart::grants_stay", grants_stay),
    ]
}

fn containers_go_on(node: &Node) {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let id = format!("a{}", signal as i32);
        let mut container = node.container(&id).start().unwrap();
        container.read("true");
        let (shim, init) = (node.shim().pid, container.pid());
        node.stop_containerd(signal);
        node.start_containerd();
        assert_eq!(node.shim().pid, shim, "the shim is the same one");
        let state = container.state().unwrap();
        assert_eq!((state.status(), state.pid), (TaskStatus::Running, init));
        assert_eq!(container.read("echo still here"), "still here");
        container.kill(Signal::SIGKILL).unwrap();
        assert_eq!(container.wait().unwrap(), 137);
        container.delete().unwrap();
        eventually("the shim has ended", || node.shims().is_empty().then_some(()));
    }
}

fn an_end_during_the_downtime_is_reported(node: &Node) {
    let mut container = node.container("a").script("read line; exit 21").stdin().start().unwrap();
    node.stop_containerd(Signal::SIGKILL);
    container.stdio.write(b"go\n");
    let pid = container.pid().cast_signed();
    eventually("init has ended", || {
        integration::processes::Process::read(pid).is_none_or(|process| process.state == 'Z').then_some(())
    });
    node.start_containerd();
    // containerd may have cleaned the ended task up by itself, or left that to the client.
    match container.wait() {
        Ok(status) => {
            assert_eq!(status, 21);
            container.delete().unwrap();
        }
        Err(status) => {
            assert_eq!(status.code(), tonic::Code::NotFound, "{status:?}");
            container.forget();
        }
    }
}

fn output_during_the_downtime_arrives(node: &Node) {
    let script = "read a; head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end; read b";
    let mut container = node.container("a").script(script).stdin().start().unwrap();
    node.stop_containerd(Signal::SIGKILL);
    container.stdio.write(b"a\n");
    container.stdio.wait_for("end");
    node.start_containerd();
    container.stdio.write(b"b\n");
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
    assert_eq!(container.stdio.finish().stdout().len(), 1_000_005);
}

fn pods_go_on(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let config = PodContainerConfig { command: &["sleep", "infinity"], ..PodContainerConfig::default() };
    let container = pod.start("a", &config).unwrap();
    node.stop_containerd(Signal::SIGTERM);
    node.start_containerd();
    assert_eq!(container.exec(&["echo", "again"]).stdout, b"again\n");
    let second = pod.start("b", &config).unwrap();
    assert_eq!(second.exec(&["true"]).exit_code, 0);
    if is_egpu() {
        node.shim();
    }
    pod.remove();
}

fn grants_stay(node: &Node) {
    let container = node.container("a").env("EGPU_MEMORY", "31GiB").env("EGPU_DEVICES", "0").start().unwrap();
    let before = node.egpu_json(&["ps"]);
    node.stop_containerd(Signal::SIGKILL);
    assert_eq!(node.egpu_json(&["ps"]), before);
    node.start_containerd();
    assert_eq!(node.granted(), ["a"]);
    crate::gpu::refused(node.container("b").env("EGPU_MEMORY", "2GiB").env("EGPU_DEVICES", "0"));
    container.end();
    assert!(node.granted().is_empty());
}
