//! A container that lives on without its shim keeps its memory until it is gone.

use integration::{Node, Setup, eventually, processes::Process};
use nix::sys::signal::Signal;

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("orphans::memory_is_not_granted_twice", memory_is_not_granted_twice),
        Case::egpu("orphans::a_listing_shows_them", a_listing_shows_them),
        Case::egpu("orphans::who_is_in_another_time_namespace_is_none", who_is_in_another_time_namespace_is_none)
            .needing(time_namespaces),
    ]
}

fn whole_memory<'node>(node: &'node Node, id: &str) -> integration::ContainerBuilder<'node> {
    node.container(id).env("EGPU_MEMORY", "32GiB").env("EGPU_DEVICES", "0")
}

/// Another containerd of the same machine: it shares the state directory.
fn second_node(node: &Node, time_namespace: bool) -> Node {
    let egpu_config = Some(node.directory().join("egpu.toml"));
    Node::start(node.release(), &Setup { egpu_config, time_namespace, ..Setup::default() })
}

fn time_namespaces() -> Skip {
    let is_there = std::path::Path::new("/proc/self/ns/time").exists();
    is_there.then_some(()).ok_or_else(|| "the kernel has no time namespaces".to_owned())
}

fn memory_is_not_granted_twice(node: &Node) {
    let other = second_node(node, false);
    let container = whole_memory(node, "first").start().unwrap();
    let init = container.pid().cast_signed();
    crate::gpu::refused(whole_memory(&other, "early"));
    // Nobody is there to call `delete`: the container lives on alone.
    node.stop_containerd(Signal::SIGKILL);
    node.shim().kill();
    assert!(Process::read(init).is_some_and(|process| process.state != 'Z'), "the container outlives its shim");
    // Whoever wants the memory either does not get it, or finds the container gone. It goes: there
    // is nobody else to take the grant back.
    let second = eventually("it is granted once the container is gone", || whole_memory(&other, "second").start().ok());
    let state = Process::read(init).map(|process| process.state);
    assert!(matches!(state, None | Some('Z')), "granted while the first container is {state:?}");
    second.end();
    node.start_containerd();
    container.forget();
    other.finish();
}

fn a_listing_shows_them(node: &Node) {
    let container = whole_memory(node, "first").start().unwrap();
    let shim = node.shim();
    node.stop_containerd(Signal::SIGKILL);
    shim.kill();
    assert_eq!(node.granted(), ["first"], "it still holds its memory");
    node.start_containerd();
    container.forget();
    eventually("containerd has cleaned up", || node.granted().is_empty().then_some(()));
}

/// A reader in another time namespace sees another start of each process.
fn who_is_in_another_time_namespace_is_none(node: &Node) {
    let share = |node, card| Node::container(node, "first").envs(&[("EGPU_MEMORY", "20GiB"), ("EGPU_DEVICES", card)]);
    let other = second_node(node, true);
    let container = share(node, "0").start().unwrap();
    // Who finds no room looks for orphans on all cards.
    crate::gpu::refused(share(&other, "0"));
    let beside = share(&other, "1").start().unwrap();
    crate::gpu::refused(whole_memory(node, "second"));
    for container in [&container, &beside] {
        let state = Process::read(container.pid().cast_signed()).map(|process| process.state);
        assert!(state.is_some_and(|state| state != 'Z'), "{}: {state:?}", container.id());
    }
    beside.end();
    container.end();
    other.finish();
}
