//! Over quota with `kill`: the OOM script, the end of the process, and what containerd hears of it.

use containerd_client::types::v1::Status as TaskStatus;
use integration::{Container, EgpuConfig, Node, Setup, eventually};

use super::{fill, granted, until_free, until_used};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("memory::kill_ends_init_and_is_reported", kills_init),
        Case::egpu("memory::kill_ends_the_process_that_asked_alone", kills_an_exec),
        Case::egpu("memory::the_oom_script_runs_first", oom_script),
        Case::egpu("memory::a_process_that_the_oom_script_ends_is_no_oom_kill", ended_by_script).on(very_patient),
        Case::egpu("memory::an_oom_script_that_hangs_is_not_waited_for", hanging_script),
        Case::egpu("memory::no_oom_script_delays_the_kill_after_drift", script_against_drift)
            .only_simulated("mappings of the real driver's do not grow"),
        Case::egpu("memory::alibabas_containers_have_their_script", alibabas_script),
        Case::egpu("memory::kill_ends_a_paused_init", kills_paused_init).on(patient),
        Case::egpu("memory::hami_containers_may_ask_to_be_killed", active_oom_killer),
    ]
}

fn kills_init(node: &Node) {
    let mut container = granted(node, "a", 256).env("EGPU_OOM", "kill").hostile(&["fill", "16"]).start().unwrap();
    assert_eq!(container.wait().unwrap(), 137);
    node.events().wait_for("a", "oom");
    assert!(container.oom_kills() >= 1, "Kubernetes decides OOMKilled by this, after the exit");
    assert!(!container.stdio.stdout_so_far().contains("got="), "it never saw an answer");
    container.delete().unwrap();
    until_free(node);
}

fn kills_an_exec(node: &Node) {
    let container = granted(node, "a", 256).env("EGPU_OOM", "kill").hostile(&["hold", "64"]).start().unwrap();
    assert_eq!(container.stdio.value("status"), 0);
    let (code, _) = container.sh("exec hostile fill 16");
    assert_eq!(code, 137);
    // init goes on and keeps its memory.
    until_used(node, "a", 64, 100);
    // What the killed one held is free again.
    let (code, output) = container.sh("hostile step 128");
    assert_eq!((code, output.value("status")), (0, 0));
    container.end();
}

/// Starts a container with an OOM script of these lines, as `printf` writes them.
fn with_oom_script<'node>(node: &'node Node, lines: &str) -> Container<'node> {
    let container = granted(node, "a", 256)
        .env("EGPU_OOM", "kill")
        .env("EGPU_OOM_SCRIPT", "/tmp/oom.sh")
        .script(&format!("printf '#!/bin/sh\\n{lines}' >/tmp/oom.sh; chmod 755 /tmp/oom.sh; sleep infinity"))
        .start()
        .unwrap();
    eventually("the script is there", || (container.sh("test -x /tmp/oom.sh").0 == 0).then_some(()));
    container
}

fn oom_script(node: &Node) {
    let container = with_oom_script(node, "echo ran >/tmp/ran\\n");
    let (code, _) = container.sh("exec hostile fill 16");
    assert_eq!(code, 137);
    assert_eq!(container.read("cat /tmp/ran"), "ran");
    container.end();
}

fn very_patient() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("oom_script_timeout = \"2m\"\n"), ..Setup::default() }
}

/// The first process that asks for too much is ended by the script, the second one by egpu.
fn ended_by_script(node: &Node) {
    let first_only = "mkdir /tmp/once || exit 0";
    let end = "pid=$(pidof hostile); kill -9 $pid; while kill -0 $pid; do sleep 0.05; done";
    let container = with_oom_script(node, &format!("{first_only}\\n{end}\\n"));
    assert!(fill_is_refused(&container), "by the script");
    assert!(fill_is_refused(&container), "by egpu");
    assert_eq!(container.oom_kills(), 1, "the script's own is none");
    container.end();
}

fn hanging_script(node: &Node) {
    let container = with_oom_script(node, "sleep 100000\\n");
    assert_eq!(container.sh("exec hostile fill 16").0, 137);
    eventually("the script is ended, too", || (container.sh("pgrep -f oom.sh").0 != 0).then_some(()));
    assert!(fill_is_refused(&container));
    container.end();
}

fn script_against_drift(node: &Node) {
    let container = with_oom_script(node, "echo ran >/tmp/ran\\nsleep 100000\\n");
    assert_eq!(container.sh("exec hostile grow 1024").0, 137);
    assert_eq!(container.read("cat /tmp/ran 2>/dev/null || echo nothing"), "nothing");
    container.end();
}

fn patient() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("oom_script_timeout = \"8s\"\n"), ..Setup::default() }
}

/// It is paused while its script has its time, and so is the script: a process that is killed while
/// it is frozen has to be thawed to die.
fn kills_paused_init(node: &Node) {
    let kills = |number: u32| {
        let mut container = granted(node, &format!("a{number}"), 256)
            .env("EGPU_OOM", "kill")
            .env("EGPU_OOM_SCRIPT", "/tmp/oom.sh")
            .script(
                "printf '#!/bin/sh\\ntouch /tmp/begun; sleep 100000\\n' >/tmp/oom.sh; chmod 755 /tmp/oom.sh; exec hostile fill 16",
            )
            .start()
            .unwrap();
        let mut looks = 0_u32;
        eventually("the script has begun", || {
            looks += 1;
            let look = container.exec(&format!("look{looks}"), &["test", "-e", "/tmp/begun"]).run();
            let is_over = container.status() == TaskStatus::Stopped;
            (is_over || look.is_ok_and(|(code, _)| code == 0)).then_some(())
        });
        // On a busy machine, its time may be over.
        let is_paused = container.pause().is_ok();
        eventually("it has died", || (container.status() == TaskStatus::Stopped).then_some(()));
        assert_eq!(container.wait().unwrap(), 137);
        container.delete().unwrap();
        until_free(node);
        is_paused
    };
    assert!((0..5).any(kills), "it was never paused in time");
}

fn fill_is_refused(container: &Container<'_>) -> bool {
    container.sh("exec hostile fill 16").0 == 137
}

fn alibabas_script(node: &Node) {
    let container = node
        .container("a")
        .armed()
        .env("NVIDIA_VISIBLE_DEVICES", "0")
        .env("AMP_VGPU_ENABLE", "1")
        .env("ALIYUN_COM_GPU_MEM_CONTAINER", "1")
        .env("ALIYUN_COM_GPU_MEM_DEV", "32")
        .env("ALIYUN_COM_GPU_OOM_SCRIPT", "/tmp/oom.sh")
        .script("printf '#!/bin/sh\\necho ran >/tmp/ran\\n' >/tmp/oom.sh; chmod 755 /tmp/oom.sh; sleep infinity")
        .start()
        .unwrap();
    eventually("the script is there", || (container.sh("test -x /tmp/oom.sh").0 == 0).then_some(()));
    assert_eq!(container.sh("exec hostile fill 64").0, 137);
    assert_eq!(container.read("cat /tmp/ran"), "ran");
    container.end();
}

fn active_oom_killer(node: &Node) {
    for (wanted, code) in [("true", 137), ("false", 0)] {
        let container = node
            .container(&format!("a-{wanted}"))
            .armed()
            .env("NVIDIA_VISIBLE_DEVICES", "0")
            .env("CUDA_DEVICE_MEMORY_LIMIT", "256m")
            .env("ACTIVE_OOM_KILLER", wanted)
            .start()
            .unwrap();
        assert_eq!(container.sh("exec hostile fill 16").0, code, "ACTIVE_OOM_KILLER={wanted}");
        if wanted == "false" {
            super::assert_full(fill(&container).0, 256);
        }
        container.end();
    }
}
