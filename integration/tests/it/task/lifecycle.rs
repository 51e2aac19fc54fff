//! Create, start, state, wait, kill, pause, resume, pids, delete, checkpoint; the order of events.

use containerd_client::types::v1::Status as TaskStatus;
use integration::{Node, events::Event, eventually, is_egpu, processes::Process};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("task::output_and_exit_code", output_and_exit_code),
        Case::plain("task::states", states),
        Case::plain("task::state_waits_for_the_creation", state_waits_for_the_creation),
        Case::plain("task::signals_reach_init", signals_reach_init),
        Case::plain("task::a_signal_ends_with_128_and_its_number", a_signal_ends_with_128_and_its_number),
        Case::plain("task::kill_before_start", kill_before_start),
        Case::plain("task::delete_without_start", delete_without_start),
        Case::plain("task::kill_all_takes_children", kill_all_takes_children),
        Case::plain("task::children_die_with_init", children_die_with_init),
        Case::plain("task::pause_and_resume", pause_and_resume),
        Case::plain("task::kill_while_paused", kill_while_paused),
        Case::plain("task::a_killed_exec_does_not_resume_its_container", a_killed_exec_does_not_resume_its_container),
        Case::plain("task::pids_names_execs", pids_names_execs),
        Case::plain("task::zombies_are_reaped", zombies_are_reaped),
        Case::plain("task::events_of_a_short_life_are_in_order", events_of_a_short_life_are_in_order),
        Case::plain("task::exits_of_execs_precede_inits", exits_of_execs_precede_inits),
        Case::plain("task::events_of_pause_and_resume", events_of_pause_and_resume),
        Case::plain("task::codes_of_wrong_calls", codes_of_wrong_calls),
        Case::egpu("task::checkpoint_is_refused_honestly", checkpoint_is_refused_honestly),
        Case::plain("task::an_id_can_be_used_again", an_id_can_be_used_again),
        Case::plain("task::many_at_once", many_at_once),
    ]
}

fn output_and_exit_code(node: &Node) {
    let (status, output) = node.container("a").script("echo out; echo err >&2; exit 7").run().unwrap();
    assert_eq!((status, output.stdout().as_str(), output.stderr().as_str()), (7, "out\n", "err\n"));
}

fn states(node: &Node) {
    let mut container = node.container("a").create().unwrap();
    assert_eq!(container.status(), TaskStatus::Created);
    let state = container.state().unwrap();
    assert_eq!(state.pid, container.pid());
    assert_eq!(container.start().unwrap(), container.pid());
    assert_eq!(container.status(), TaskStatus::Running);
    container.kill(Signal::SIGKILL).unwrap();
    assert_eq!(container.wait().unwrap(), 137);
    let state = container.state().unwrap();
    assert_eq!((state.status(), state.exit_status), (TaskStatus::Stopped, 137));
    assert!(state.exited_at.is_some_and(|instant| instant.seconds > 0));
    assert_eq!(container.delete().unwrap(), 137);
}

/// nerdctl asks for the task in order to close its stdin as soon as all of it is written, which may
/// be before Create answers.
fn state_waits_for_the_creation(node: &Node) {
    let marker = node.directory().join("creating");
    let hook = format!("touch {}; sleep 0.5", marker.display());
    std::thread::scope(|scope| {
        let creation = scope.spawn(|| node.container("a").hook("createRuntime", &hook).create().unwrap());
        eventually("the creation is under way", || marker.exists().then_some(()));
        let state = node.task_state("a").expect("an answer in the middle of the creation");
        let mut container = creation.join().unwrap();
        assert_eq!((state.pid, state.status()), (container.pid(), TaskStatus::Created));
        container.kill(Signal::SIGKILL).unwrap();
        container.wait().unwrap();
        container.delete().unwrap();
    });
}

fn signals_reach_init(node: &Node) {
    let script = "trap 'echo got usr1; exit 5' USR1; echo ready; while :; do sleep 0.05; done";
    let mut container = node.container("a").script(script).start().unwrap();
    container.stdio.wait_for("ready");
    container.kill(Signal::SIGUSR1).unwrap();
    assert_eq!(container.wait().unwrap(), 5);
    container.delete().unwrap();
    assert!(container.stdio.finish().stdout().ends_with("got usr1\n"));
}

fn a_signal_ends_with_128_and_its_number(node: &Node) {
    for (signal, expected) in [(Signal::SIGTERM, 143), (Signal::SIGSEGV, 139)] {
        let id = format!("a{expected}");
        // Init of a pid namespace ignores what it has no handler for: the shell's child is
        // signalled instead.
        let mut container =
            node.container(&id).script(&format!("sh -c 'kill -{} $$'; exit $?", signal as i32)).start().unwrap();
        assert_eq!(container.wait().unwrap(), expected);
        container.delete().unwrap();
    }
}

fn kill_before_start(node: &Node) {
    let mut container = node.container("a").create().unwrap();
    container.kill(Signal::SIGKILL).unwrap();
    assert_eq!(container.wait().unwrap(), 137);
    container.delete().unwrap();
}

fn delete_without_start(node: &Node) {
    let mut container = node.container("a").create().unwrap();
    // containerd 1.6 asks the shim, newer ones answer by themselves: the pid must be gone either
    // way.
    if container.delete().is_err() {
        container.kill(Signal::SIGKILL).unwrap();
        container.wait().unwrap();
        container.delete().unwrap();
    }
    let pid = container.pid().cast_signed();
    eventually("init is gone", || Process::read(pid).is_none().then_some(()));
}

fn kill_all_takes_children(node: &Node) {
    let script =
        "trap '' TERM; for i in 1 2 3; do sh -c \"trap '' TERM; while :; do sleep 1; done\" & done; echo ready; wait";
    let mut container = node.container("a").script(script).start().unwrap();
    container.stdio.wait_for("ready");
    let pids: Vec<i32> = container.pids().unwrap().iter().map(|process| process.pid.cast_signed()).collect();
    assert!(pids.len() >= 4, "{pids:?}");
    container.kill_all(Signal::SIGKILL).unwrap();
    assert_eq!(container.wait().unwrap(), 137);
    container.delete().unwrap();
    for pid in pids {
        eventually("a child is gone", || Process::read(pid).is_none().then_some(()));
    }
}

fn children_die_with_init(node: &Node) {
    // Without a pid namespace of its own nothing but the shim ends what init leaves behind.
    let share_pids = |spec: &mut serde_json::Value| {
        let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "pid");
    };
    let script = "sleep 1000 & echo $!; exit 3";
    let mut container = node.container("a").script(script).edit(share_pids).start().unwrap();
    assert_eq!(container.wait().unwrap(), 3);
    let child: i32 = {
        container.stdio.wait_for("\n");
        container.stdio.stdout_so_far().trim().parse().unwrap()
    };
    assert_eq!(container.delete().unwrap(), 3);
    eventually("the child of an ended init is gone", || {
        Process::read(child).is_none_or(|process| process.name != "sleep").then_some(())
    });
}

fn pause_and_resume(node: &Node) {
    let script = "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; done";
    let container = node.container("a").script(script).start().unwrap();
    let count = || std::fs::read_to_string(format!("/proc/{}/root/tmp/n", container.pid())).unwrap_or_default();
    eventually("it counts", || (!count().is_empty()).then_some(()));
    container.pause().unwrap();
    assert_eq!(container.status(), TaskStatus::Paused);
    // Frozen processes change nothing, however long one looks.
    let (before, ()) = (count(), std::thread::sleep(std::time::Duration::from_millis(200)));
    assert_eq!(before, count());
    let refused = container.exec("e", &["true"]).run().unwrap_err();
    assert_ne!(refused.code(), Code::Ok);
    container.resume().unwrap();
    assert_eq!(container.status(), TaskStatus::Running);
    eventually("it counts on", || (!count().is_empty() && count() != before).then_some(()));
    assert_eq!(container.end(), 137);
}

fn kill_while_paused(node: &Node) {
    let mut container = node.container("a").start().unwrap();
    container.pause().unwrap();
    container.kill(Signal::SIGKILL).unwrap();
    // On cgroup v1 the signal takes effect when the container is thawed; the shim may do that or
    // leave it to the caller.
    let _ = container.resume();
    assert_eq!(container.wait().unwrap(), 137);
    container.delete().unwrap();
}

/// A health check that hangs is ended by its client while the container is being copied, say.
fn a_killed_exec_does_not_resume_its_container(node: &Node) {
    let container = node.container("a").start().unwrap();
    let exec = container.exec("check", &["sleep", "1002"]).start().unwrap();
    container.pause().unwrap();
    exec.kill(Signal::SIGKILL).unwrap();
    assert_eq!(container.status(), TaskStatus::Paused);
    container.resume().unwrap();
    assert_eq!(exec.wait().unwrap(), 137);
    exec.delete().unwrap();
}

fn pids_names_execs(node: &Node) {
    let container = node.container("a").script("sleep 1000 & exec sleep 1001").start().unwrap();
    let exec = container.exec("worker", &["sleep", "1002"]).start().unwrap();
    let exec_pid = exec.state().unwrap().pid;
    let listed = eventually("three processes", || {
        let processes = container.pids().unwrap();
        (processes.len() == 3).then_some(processes)
    });
    assert!(listed.iter().any(|process| process.pid == container.pid()));
    let worker = listed.iter().find(|process| process.pid == exec_pid).expect("the exec is listed");
    let info = worker.info.as_ref().expect("the exec has details");
    let needle = b"worker";
    assert!(info.value.windows(needle.len()).any(|part| part == needle), "{info:?}");
    exec.kill(Signal::SIGKILL).unwrap();
    assert_eq!(exec.wait().unwrap(), 137);
    exec.delete().unwrap();
    container.end();
}

fn zombies_are_reaped(node: &Node) {
    // In the host's pid namespace orphans come to the shim, the nearest subreaper.
    let share_pids = |spec: &mut serde_json::Value| {
        let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "pid");
    };
    let script = "for i in 1 2 3 4 5; do (sh -c 'sleep 0.05' &); done; echo done; exec sleep infinity";
    let container = node.container("a").script(script).edit(share_pids).start().unwrap();
    container.stdio.wait_for("done");
    let shim = node.shim().pid;
    eventually("no zombies below the shim", || {
        let own = integration::processes::in_cgroup(&node.cgroup_parent());
        let waiting = own.iter().any(|process| process.command.contains("sleep 0.05"));
        let zombies =
            integration::processes::all().iter().any(|process| process.parent == shim && process.state == 'Z');
        (!waiting && !zombies).then_some(())
    });
    container.end();
}

fn events_of_a_short_life_are_in_order(node: &Node) {
    for round in 0..10 {
        let id = format!("a{round}");
        let (status, _) = node.container(&id).args(&["true"]).run().unwrap();
        assert_eq!(status, 0);
        assert_eq!(summaries_to_the_end(node, &id), ["create", "start", "exit"]);
        let pids: Vec<u32> = node
            .events()
            .of(&id)
            .iter()
            .filter_map(|event| match event {
                Event::Create { pid, .. } | Event::Start { pid, .. } | Event::Exit { pid, .. } => Some(*pid),
                _ => None,
            })
            .collect();
        assert!(pids.windows(2).all(|pair| pair[0] == pair[1] && pair[0] > 0), "{pids:?}");
    }
}

/// Everything up to init's exit. The delete event, which must be the last, is taken off: runc's
/// shim sometimes ends before it has published it.
fn summaries_to_the_end(node: &Node, id: &str) -> Vec<String> {
    node.events().wait_for(id, if is_egpu() { "delete" } else { "exit" });
    let mut summaries = node.events().summaries(id);
    summaries.pop_if(|last| last == "delete");
    summaries
}

fn exits_of_execs_precede_inits(node: &Node) {
    let mut container = node.container("a").start().unwrap();
    let execs: Vec<_> =
        (0..3).map(|index| container.exec(&format!("e{index}"), &["sleep", "1000"]).start().unwrap()).collect();
    container.kill(Signal::SIGKILL).unwrap();
    container.wait().unwrap();
    for exec in &execs {
        assert_eq!(exec.wait().unwrap(), 137);
    }
    for exec in execs {
        exec.delete().unwrap();
    }
    container.delete().unwrap();
    let order = summaries_to_the_end(node, "a");
    let init = order.iter().position(|summary| summary == "exit").unwrap();
    for index in 0..3 {
        let added = order.iter().position(|summary| *summary == format!("exec-added e{index}")).unwrap();
        let started = order.iter().position(|summary| *summary == format!("exec-started e{index}")).unwrap();
        let exited = order.iter().position(|summary| *summary == format!("exit e{index}")).unwrap();
        assert!(added < started && started < exited && exited < init, "{order:?}");
    }
}

fn events_of_pause_and_resume(node: &Node) {
    let container = node.container("a").start().unwrap();
    container.pause().unwrap();
    container.resume().unwrap();
    container.end();
    assert_eq!(summaries_to_the_end(node, "a"), ["create", "start", "paused", "resumed", "exit"]);
}

fn codes_of_wrong_calls(node: &Node) {
    let mut container = node.container("a").start().unwrap();
    container.start().expect_err("start twice");
    container.delete().expect_err("delete while running");
    let first = container.exec("e", &["sleep", "1000"]).create().unwrap();
    assert_eq!(container.exec("e", &["true"]).create().unwrap_err().code(), Code::AlreadyExists, "exec id taken");
    first.delete().unwrap();
    container.kill(Signal::SIGKILL).unwrap();
    container.wait().unwrap();
    assert_eq!(container.kill(Signal::SIGKILL).unwrap_err().code(), Code::NotFound, "kill after the end");
    container.delete().unwrap();
    assert_eq!(container.state().unwrap_err().code(), Code::NotFound, "state after delete");
}

fn checkpoint_is_refused_honestly(node: &Node) {
    let container = node.container("a").start().unwrap();
    let refused = container.checkpoint().unwrap_err();
    assert!(refused.message().to_lowercase().contains("checkpoint"), "{refused:?}");
    assert_eq!(container.status(), TaskStatus::Running);
    container.end();
}

fn an_id_can_be_used_again(node: &Node) {
    for round in 0..3 {
        let (status, _) = node.container("again").script(&format!("exit {round}")).run().unwrap();
        assert_eq!(status, round);
    }
}

fn many_at_once(node: &Node) {
    let containers: Vec<_> = (0..8).map(|index| node.container(&format!("m{index}")).start().unwrap()).collect();
    let mut pids: Vec<u32> = containers.iter().map(integration::Container::pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 8);
    for container in containers {
        assert_eq!(container.end(), 137);
    }
}
