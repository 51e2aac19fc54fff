//! Plans of grants: fenced containers, mediated ones, and the limits of their execs.

use runtime_config::request::OverMemory;
use serde_json::json;

use super::*;

const SHARE: &[&str] = &["EGPU_DEVICES=0", "EGPU_MEMORY=1GiB", "EGPU_COMPUTE=30%"];
const WHOLE: &[&str] = &["NVIDIA_VISIBLE_DEVICES=1"];
const MONITOR: &[&str] = &["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility", "EGPU_OOM=kill"];
/// The driver's files, and no card.
const NO_CARD: &[&str] = &["NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_DRIVER_CAPABILITIES=utility"];
const NOTHING: &[&str] = &["PATH=/bin"];

/// Plans a container, alone on a node with two simulated cards.
fn prepared(environment: &[&str], edit: impl FnOnce(&mut Value)) -> Result<PreparedGrant, GpuError> {
    prepared_by("", environment, edit)
}

/// Plans a container with more of a configuration.
fn prepared_by(settings: &str, environment: &[&str], edit: impl FnOnce(&mut Value)) -> Result<PreparedGrant, GpuError> {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "state_dir = '{0}/state'\nlog_file = '{0}/log'\n{settings}\n[driver]\nkind = 'simulated'\n\
         [[driver.simulated]]\nmodel = 'NVIDIA H200'\nmemory = '8GiB'\ncount = 2\n",
        directory.path().display()
    );
    let config = Config::from_toml(&text, "test").unwrap();
    let bundle = directory.path().join("bundle");
    std::fs::create_dir_all(&bundle).unwrap();
    let mut spec = json!({
        "ociVersion": "1.1.0",
        "process": { "env": environment, "capabilities": { "bounding": ["CAP_KILL"] } },
        "linux": { "namespaces": [{ "type": "pid" }] },
    });
    edit(&mut spec);
    let read = spec::read(&spec);
    let container = NewContainer {
        key: ContainerKey { containerd: "c".into(), namespace: "n".into(), id: "id".into() },
        cgroups: vec![directory.path().join("cgroup")],
        zygote_pid: std::process::id().cast_signed(),
        config,
        privileges: read.source.privileges,
    };
    match understand(&container, read)? {
        Asked::Nothing(prepared) => Ok(*prepared),
        Asked::Cards(request) => {
            let (inventory, note) = (cards::cached(&container.config).unwrap(), GrantNote::new(&container.config));
            container.admit(&request, &inventory, note, &AdmissionWait::default())
        }
        Asked::Claims(claims) => panic!("{claims:?}"),
    }
}

fn administrator(spec: &mut Value) {
    spec["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]);
}

fn own_administrator(spec: &mut Value) {
    administrator(spec);
    spec["linux"]["namespaces"] = json!([{ "type": "pid" }, { "type": "user" }]);
}

fn listens(spec: &mut Value) {
    spec["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_NOTIFY", "listenerPath": "/run/agent.sock" });
}

#[test]
fn who_has_no_card_is_fenced() {
    for environment in [NOTHING, NO_CARD] {
        let is_fenced = |edit: fn(&mut Value)| prepared(environment, edit).unwrap().fence;
        assert!(is_fenced(|_| ()) && is_fenced(own_administrator) && !is_fenced(administrator), "{environment:?}");
    }
    for environment in [SHARE, WHOLE, MONITOR] {
        assert!(!prepared(environment, |_| ()).unwrap().fence, "{environment:?}");
    }
    for environment in [NOTHING, NO_CARD] {
        let unfenced = prepared_by("fence_other_containers = false", environment, |_| ()).unwrap();
        assert!(!unfenced.fence, "{environment:?}");
    }
}

#[test]
fn sharers_and_monitors_are_mediated() {
    let mediated = |environment, edit: fn(&mut Value)| prepared(environment, edit).unwrap().mediation;
    let shared = mediated(SHARE, |_| ()).unwrap().setup;
    assert!(shared.cards.len() == 1 && shared.cards[0].is_capped && !shared.cards[0].monitored);
    // It sees its grant, also where that is the card's size or more.
    for (memory, limit) in [("EGPU_MEMORY=8GiB", 8 << 30), ("EGPU_MEMORY=16GiB", 16 << 30)] {
        let large = prepared_by("memory_scaling = 2.0", &["EGPU_DEVICES=0", memory], |_| ()).unwrap();
        let card = &large.mediation.unwrap().setup.cards[0];
        assert_eq!((card.whole, card.memory_limit.0), (false, limit));
    }
    let unlimited = ["EGPU_DEVICES=0", "EGPU_MEMORY=1GiB", "EGPU_ISOLATION=none"];
    let unlimited = prepared_by("allow_isolation_none = true", &unlimited, |_| ()).unwrap();
    let card = &unlimited.mediation.unwrap().setup.cards[0];
    assert_eq!((card.whole, card.memory_limit.0), (true, 8 << 30), "it has no quota, and sees the card");
    for edit in [|_: &mut Value| (), own_administrator as fn(&mut Value)] {
        let monitor = mediated(MONITOR, edit).unwrap().setup;
        assert!(
            monitor.cards.len() == 2 && monitor.cards.iter().all(|card| card.monitored && card.memory_limit.0 == 0)
        );
        assert_eq!(monitor.over_memory, OverMemory::Deny, "it has asked for no limit that it could be killed at");
    }
    assert!(mediated(MONITOR, administrator).is_none(), "with these rights no mediator holds it");
    assert!([WHOLE, NO_CARD, NOTHING].iter().all(|environment| mediated(environment, |_| ()).is_none()));
}

#[test]
fn a_profile_with_a_listener_is_refused_where_calls_are_mediated() {
    for environment in [SHARE, MONITOR] {
        let refused = prepared(environment, listens);
        assert!(matches!(refused, Err(GpuError::SeccompListener)), "{environment:?}: {refused:?}");
    }
    for environment in [WHOLE, NO_CARD, NOTHING] {
        assert!(prepared(environment, listens).is_ok(), "{environment:?}");
    }
    let unmediated = prepared(MONITOR, |spec| {
        listens(spec);
        administrator(spec);
    });
    assert!(unmediated.is_ok(), "{unmediated:?}");
}

#[test]
fn an_exec_may_have_no_more_than_the_container() {
    let executed = |environment, capability: &str| {
        let process = json!({ "args": ["sh"], "capabilities": { "bounding": [capability] } });
        prepared(environment, |_| ()).unwrap().exec_rules.apply(&process)
    };
    for environment in [SHARE, MONITOR] {
        assert!(matches!(executed(environment, "CAP_SYS_ADMIN"), Err(GpuError::PrivilegedExec { .. })));
    }
    for environment in [WHOLE, NO_CARD, NOTHING] {
        assert!(executed(environment, "CAP_SYS_ADMIN").is_ok(), "{environment:?}");
    }
    let left = executed(SHARE, "CAP_SYS_NICE").unwrap();
    assert_eq!(left["capabilities"]["bounding"], json!([]), "the driver gives priority for it");
}

#[test]
fn an_exec_beside_a_quota_may_not_get_around_it() {
    let process =
        |capability: &str| json!({ "args": ["sh"], "capabilities": { "bounding": ["CAP_KILL", capability] } });
    let rules = ExecRules { shares_card: true, refuses_privileges: true, ..ExecRules::default() };
    for capability in ["CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO"] {
        let error = rules.apply(&process(capability)).unwrap_err();
        assert_eq!(error.code(), ttrpc::Code::PERMISSION_DENIED);
        assert!(error.to_string().contains(capability), "{error}");
        // In a user namespace, unless that has the host's root in it.
        let mut in_namespace = ExecRules { user_namespace: true, ..rules };
        assert!(in_namespace.apply(&process(capability)).is_ok(), "{capability}");
        in_namespace.maps_host_root = true;
        assert_eq!(in_namespace.apply(&process(capability)).is_err(), capability == "CAP_SYS_ADMIN", "{capability}");
        // Advice only, or no quota: as runc would run it.
        assert_eq!(ExecRules::default().apply(&process(capability)).unwrap(), process(capability));
    }
    for capability in ["CAP_SYS_NICE", "CAP_PERFMON"] {
        let kept = json!({ "args": ["sh"], "capabilities": { "bounding": ["CAP_KILL"] } });
        assert_eq!(rules.apply(&process(capability)).unwrap(), kept);
    }
    // The container's own, and none at all.
    for process in [json!({ "args": ["sh"] }), json!({ "args": ["sh"], "capabilities": {} })] {
        assert_eq!(rules.apply(&process).unwrap(), process);
    }
    assert_eq!(rules.apply(&process("CAP_CHOWN")).unwrap(), process("CAP_CHOWN"));
}
