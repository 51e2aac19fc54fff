//! Creates that wait for room: for whom, until when, and who goes first.

use std::{fs, process::Command, thread};

use containerd_shim_protos::{
    Client, TaskClient,
    api::{DeleteRequest, KillRequest},
    ttrpc::context,
};
use integration::{
    ContainerBuilder, Node, Setup, cri::PodContainerConfig, egpu::EgpuConfig, eventually, rootfs::IMAGE,
};
use nix::sys::signal::Signal;

use crate::{
    case::Case,
    gpu::{refused, steps},
};

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::egpu("waiting::the_room_of_a_container_that_leaves", the_room_of_a_container_that_leaves),
        Case::egpu(
            "waiting::a_container_that_stays_is_waited_for_where_that_is_set",
            a_container_that_stays_is_waited_for_where_that_is_set,
        ),
        Case::egpu("waiting::nobody_waits_where_that_is_set", nobody_waits_where_that_is_set),
        Case::egpu("waiting::the_earliest_goes_first", the_earliest_goes_first).on(for_anybody),
        Case::egpu("waiting::a_full_queue_denies_its_own_owner_nothing", a_full_queue_denies_its_own_owner_nothing)
            .on(for_anybody),
        Case::egpu("waiting::kill_and_delete_end_a_wait", kill_and_delete_end_a_wait).on(for_anybody),
        Case::egpu("waiting::a_killed_containerd_ends_a_wait", a_killed_containerd_ends_a_wait).on(for_anybody),
        Case::egpu("waiting::a_killed_shim_ends_a_wait", a_killed_shim_ends_a_wait).on(for_anybody),
        Case::egpu("waiting::a_client_that_goes_ends_a_wait", a_client_that_goes_ends_a_wait).on(images_for_anybody),
        Case::egpu("waiting::a_pod_takes_the_place_of_another", a_pod_takes_the_place_of_another).on(Setup::cri),
    ];
    cases.into_iter().map(|case| case.only_simulated("it counts on V100 of 32 GiB")).collect()
}

const LONG: &str = "admission_wait = \"100s\"\n";

fn for_anybody() -> Setup {
    Setup { egpu: EgpuConfig::with_keys(LONG), ..Setup::default() }
}

fn images_for_anybody() -> Setup {
    Setup { images: true, ..for_anybody() }
}

const ASK: [(&str, &str); 2] = [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "20GiB")];

/// There is room for one of these.
fn large<'node>(node: &'node Node, id: &str) -> ContainerBuilder<'node> {
    node.container(id).envs(&ASK)
}

fn until_it_waits(node: &Node, id: &str) {
    eventually("it waits", || steps(node, id).contains(&"wait".to_owned()).then_some(()));
}

/// From the next create on.
fn set_wait(node: &Node, keys: &str) {
    fs::write(node.directory().join("egpu.toml"), EgpuConfig::with_keys(keys).text(node.directory())).unwrap();
}

fn the_room_of_a_container_that_leaves(node: &Node) {
    // As init it does not end by a signal that it has no handler for.
    let first = large(node, "first").start().unwrap();
    let text = refused(large(node, "second"));
    assert!(text.contains("held by") && !text.contains("waited"), "{text}");
    assert!(!steps(node, "second").contains(&"wait".to_owned()));
    first.kill(Signal::SIGTERM).unwrap();
    thread::scope(|scope| {
        let third = scope.spawn(|| large(node, "third").start().map(integration::Container::end));
        until_it_waits(node, "third");
        first.kill(Signal::SIGKILL).unwrap();
        third.join().unwrap().expect("it got the room");
    });
    assert_eq!(steps(node, "third")[..2], ["ask", "wait"]);
    let granted = node.decisions("third").into_iter().find(|decision| decision.event == "grant").expect("a grant");
    assert!(granted.line.contains(" waited="), "{}", granted.line);
    assert_eq!(node.egpu_json(&["events", "--kind", "waiting"]).as_array().map(Vec::len), Some(1));
    first.end();
    assert!(node.granted().is_empty() && node.waiting().is_empty());
}

fn a_container_that_stays_is_waited_for_where_that_is_set(node: &Node) {
    let first = large(node, "first").start().unwrap();
    set_wait(node, "admission_wait = \"1s\"\n");
    let text = refused(large(node, "second"));
    assert!(text.contains("still no room") && text.contains("held by"), "{text}");
    assert_eq!(steps(node, "second"), ["ask", "wait", "refuse", "destroy"]);
    // What no card has is not waited for.
    let text = refused(node.container("third").env("EGPU_MEMORY", "33GiB"));
    assert!(!text.contains("waited"), "{text}");
    first.end();
}

fn nobody_waits_where_that_is_set(node: &Node) {
    let first = large(node, "first").start().unwrap();
    first.kill(Signal::SIGTERM).unwrap();
    set_wait(node, "admission_wait = \"0s\"\n");
    let text = refused(large(node, "second"));
    assert!(!text.contains("waited"), "{text}");
    assert!(!steps(node, "second").contains(&"wait".to_owned()));
    first.end();
}

fn the_earliest_goes_first(node: &Node) {
    let first = large(node, "first").start().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| large(node, "second").start().unwrap());
        until_it_waits(node, "second");
        let third = scope.spawn(|| large(node, "third").start().unwrap());
        until_it_waits(node, "third");
        assert_eq!(node.waiting(), ["second", "third"]);
        let listing = String::from_utf8(node.egpu(&["ps"]).stdout).unwrap();
        assert!(listing.lines().any(|line| line.contains("second") && line.contains("waiting")), "{listing}");
        first.end();
        let second = second.join().unwrap();
        assert_eq!((node.granted(), node.waiting()), (vec!["second".to_owned()], vec!["third".to_owned()]));
        second.end();
        third.join().unwrap().end();
    });
    assert!(node.granted().is_empty() && node.waiting().is_empty());
}

/// One that was asked to end, and ignores that; as many as may wait for the whole card; and 31 GiB
/// that are free.
fn a_full_queue_denies_its_own_owner_nothing(node: &Node) {
    let on = |id: &str, memory| node.container(id).envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", memory)]);
    let ignores = on("ignores", "1GiB").start().unwrap();
    ignores.kill(Signal::SIGTERM).unwrap();
    let ids: Vec<String> = (0..8).map(|index| format!("waits-{index}")).collect();
    thread::scope(|scope| {
        let waiters: Vec<_> = ids
            .iter()
            .map(|id| scope.spawn(|| on(id, "32GiB").start().map(integration::Container::end).map(drop)))
            .collect();
        eventually("all of them wait", || (node.waiting().len() == 8).then_some(()));
        let text = refused(on("ninth", "32GiB"));
        assert!(text.contains("8 containers of this namespace wait for room already"), "{text}");
        on("small", "8GiB").start().expect("room that is free").end();
        ignores.end();
        for waiter in waiters {
            waiter.join().unwrap().expect("the card, in its turn");
        }
    });
    assert!(node.granted().is_empty() && node.waiting().is_empty());
}

/// As containerd asks the shim; its own clients hear of no task as long as there is none.
fn kill_and_delete_end_a_wait(node: &Node) {
    let first = large(node, "first").start().unwrap();
    for id in ["killed", "deleted"] {
        thread::scope(|scope| {
            let create = scope.spawn(|| large(node, id).create().map(drop));
            until_it_waits(node, id);
            let address = fs::read_to_string(node.bundle(id).join("address")).unwrap();
            let shim = TaskClient::new(Client::connect(&address).unwrap());
            let context = || context::with_duration(integration::wait::DEADLINE);
            let (id, signal) = (id.to_owned(), Signal::SIGTERM as u32);
            let answer = match id.as_str() {
                "killed" => shim.kill(context(), &KillRequest { id, signal, ..KillRequest::default() }).map(drop),
                _ => shim.delete(context(), &DeleteRequest { id, ..DeleteRequest::default() }).map(drop),
            };
            answer.expect_err("there is no container");
            let refusal = create.join().unwrap().expect_err("nobody wants it any more");
            assert!(refusal.message().contains("until it was killed or deleted"), "{refusal}");
        });
    }
    assert_eq!((node.granted(), node.waiting()), (vec!["first".to_owned()], Vec::new()));
    first.end();
}

fn a_killed_containerd_ends_a_wait(node: &Node) {
    let first = large(node, "first").start().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| large(node, "second").create().map(drop));
        until_it_waits(node, "second");
        node.stop_containerd(Signal::SIGKILL);
        second.join().unwrap().expect_err("nobody answers");
    });
    eventually("nobody waits", || node.waiting().is_empty().then_some(()));
    eventually("the create is undone", || (steps(node, "second").last()? == "destroy").then_some(()));
    let why = node.decisions("second").into_iter().find(|decision| decision.event == "refuse").expect("a refusal");
    assert!(why.line.contains("nobody was there any more"), "{}", why.line);
    node.start_containerd();
    assert_eq!(node.granted(), ["first"]);
    node.ctr(&["containers", "delete", "second"]);
    first.end();
    eventually("no shim is left", || node.shims().is_empty().then_some(()));
}

fn a_killed_shim_ends_a_wait(node: &Node) {
    let first = large(node, "first").start().unwrap();
    let shim = node.shim().pid;
    thread::scope(|scope| {
        let second = scope.spawn(|| large(node, "second").create().map(drop));
        until_it_waits(node, "second");
        node.shims().iter().filter(|process| process.pid != shim).for_each(integration::processes::Process::kill);
        second.join().unwrap().expect_err("nobody answers");
    });
    eventually("nobody waits", || node.waiting().is_empty().then_some(()));
    first.end();
    let mut third = large(node, "third").start().unwrap();
    third.kill(Signal::SIGKILL).unwrap();
    third.wait().unwrap();
    third.delete().unwrap();
}

/// As when a person ends `ctr`, or a kubelet has waited long enough: containerd asks the shim to
/// delete what it was asked to create.
fn a_client_that_goes_ends_a_wait(node: &Node) {
    let first = large(node, "first").start().unwrap();
    node.track("second");
    let mut ctr = Command::new(node.release().bin.join("ctr"));
    ctr.arg("--address").arg(node.socket()).args(["--namespace", node.namespace(), "run", "--runtime", node.runtime()]);
    ctr.args(ASK.iter().flat_map(|(name, value)| ["--env".to_owned(), format!("{name}={value}")]));
    let mut ctr = ctr.args([IMAGE, "second", "true"]).spawn().unwrap();
    until_it_waits(node, "second");
    ctr.kill().unwrap();
    ctr.wait().unwrap();
    eventually("nobody waits", || node.waiting().is_empty().then_some(()));
    eventually("the create is undone", || (steps(node, "second").last()? == "destroy").then_some(()));
    assert_eq!(node.granted(), ["first"]);
    eventually("the container can be deleted", || {
        node.ctr(&["containers", "delete", "second"]).status.success().then_some(())
    });
    first.end();
}

/// A rolling update on a full card: the new pod's container comes while the old one's has its time
/// to end.
fn a_pod_takes_the_place_of_another(node: &Node) {
    let config = PodContainerConfig { command: &["sleep", "infinity"], env: &ASK, ..PodContainerConfig::default() };
    let (old, new) = (node.pod("old", &[]).unwrap(), node.pod("new", &[]).unwrap());
    let first = old.start("first", &config).unwrap();
    thread::scope(|scope| {
        // SIGTERM, which it does not heed, and SIGKILL three seconds later.
        let stop = scope.spawn(|| first.stop(3).unwrap());
        eventually("it is asked to end", || {
            let records = fs::read_dir(node.directory().join("egpu/ledger")).unwrap();
            let mut texts = records.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
            (node.granted().is_empty() || texts.any(|text| text.contains("\"leaving\": true"))).then_some(())
        });
        let second = new.start("second", &config).expect("room was waited for");
        assert_eq!(node.granted(), std::slice::from_ref(&second.id));
        stop.join().unwrap();
    });
    old.remove();
    new.remove();
}
