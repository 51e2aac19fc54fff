//! Claims: pods whose containers use what the node's plugin has had granted. Here the test stands
//! for the plugin and for kubelet: it prepares, and gives containers the variables of their claims.

use std::{sync::atomic::AtomicBool, time::Duration};

use integration::{
    EgpuConfig, Node, Setup,
    cri::{PodContainer, PodContainerConfig, PodSecurity},
    eventually,
    hostile::PROGRAM,
    processes::Process,
};
use k8s_cri::v1::ContainerState;
use kubernetes_api::ClaimVariable;
use ledger::{
    Ledger, Limits, Patience,
    claims::{Claim, ClaimAdmission, ClaimPod},
    decision_log::DecisionLog,
};
use runtime_config::{
    Config,
    request::{ContainerRequest, GpuRequest, Source, parse},
};
use serde_json::Value;

use crate::{
    attacks::{pods::value, rm_client},
    case::Case,
};

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::egpu("claims::containers_share_one_account", one_account).needing(rm_client),
        Case::egpu("claims::the_mediators_end_ends_all_containers", mediator_killed).needing(rm_client),
        Case::egpu("claims::memory_left_by_a_killed_mediator", left_by_a_killed_mediator)
            .needing(rm_client)
            .also_needing(integration::hostile::available),
        Case::egpu("claims::a_killed_shim_leaves_the_claim_prepared", shim_killed),
        Case::egpu("claims::a_restart_finds_the_same_grant", restarts),
        Case::egpu("claims::requests_of_two_cards_are_used_together", two_cards).needing(rm_client),
        Case::egpu("claims::nothing_that_a_pod_says_widens_a_claim", nothing_widens).needing(rm_client),
        Case::egpu("claims::a_claim_is_of_one_pod", forged),
        Case::egpu("claims::at_each_level_of_pod_security", at_each_level).needing(rm_client),
    ];
    let cases = cases.into_iter().map(|case| case.on(Setup::cri));
    let required = Case::egpu("claims::where_they_are_required_nothing_else_gives_a_card", required).on(require_claim);
    cases.chain([required]).map(|case| case.only_simulated("sizes are those of the simulated cards")).collect()
}

fn require_claim() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("[kubernetes]\nrequire_claim = true\n"), ..Setup::cri() }
}

const UID: &str = "6918e837-0b5e-4a55-9d5e-2d3c0d4f0a11";
const SLEEP: &[&str] = &["sleep", "infinity"];

/// Requests of a claim: name, card and what is asked of it.
type Request<'a> = (&'a str, &'a [(&'a str, &'a str)]);

const GPU: &[Request<'static>] =
    &[("gpu", &[("egpu.io/devices", "0"), ("egpu.io/memory", "1GiB"), ("egpu.io/compute", "25%")])];

struct Plugin {
    config: Config,
    ledger: Ledger,
    log: DecisionLog,
}

impl Plugin {
    fn new(node: &Node) -> Self {
        let config = Config::load(Some(&node.directory().join("egpu.toml"))).unwrap();
        let ledger = Ledger::open(&config.state_dir).unwrap();
        let log = DecisionLog::new(&config.log_file, &config.state_dir);
        Self { config, ledger, log }
    }

    fn prepare(&self, uid: &str, pod: &str, requests: &[Request<'_>]) {
        let request = |(name, said): &Request<'_>| {
            let annotations = said.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let source = Source { annotations, ..Source::default() };
            ((*name).to_owned(), asked(&source, &self.config))
        };
        let pod = ClaimPod { name: pod.to_owned(), uid: format!("uid-{pod}") };
        let claim =
            Claim { uid: uid.to_owned(), namespace: "default".to_owned(), name: format!("{}-gpu", pod.name), pod };
        let admission = ClaimAdmission {
            inventory: &cards::cached(&self.config).unwrap(),
            limits: &Limits::from(&self.config),
            claim: &claim,
            requests: &requests.iter().map(request).collect::<Vec<_>>(),
            patience: Patience { most: Duration::ZERO, any_tenant: false, ended: &AtomicBool::new(false) },
            egpu_version: "test",
        };
        self.ledger.prepare_claim(&admission, &self.log).unwrap();
    }

    /// Unprepares the claim, after which nothing is left.
    #[track_caller]
    fn unprepare(&self, uid: &str) {
        eventually("the claim is unprepared", || self.ledger.unprepare_claim("default", uid, &self.log).ok());
        assert!(self.ledger.records().unwrap().is_empty());
    }
}

fn asked(source: &Source, config: &Config) -> GpuRequest {
    match parse(source, config).unwrap() {
        ContainerRequest::Gpu(request) => *request,
        other => panic!("{other:?}"),
    }
}

/// The variable of a request, as the plugin's CDI file has it.
fn variable(uid: &str, request: &str) -> (String, String) {
    let variable = ClaimVariable::new("default", uid, request).unwrap();
    (variable.name(), variable.value())
}

/// Starts a container whose environment ends as CDI makes it.
fn start<'pod>(
    pod: &'pod integration::cri::Pod<'_>,
    name: &str,
    own: &[(&str, &str)],
    requests: &[(&str, &str)],
) -> Result<PodContainer<'pod>, tonic::Status> {
    let variables: Vec<_> = requests.iter().map(|(uid, request)| variable(uid, request)).collect();
    let mut env = own.to_vec();
    env.extend(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    env.push(("NVIDIA_VISIBLE_DEVICES", "void"));
    pod.start(name, &PodContainerConfig { command: SLEEP, env: &env, ..PodContainerConfig::default() })
}

/// The one grant in `egpu ps`.
#[track_caller]
fn grant(node: &Node) -> Value {
    let listing = node.egpu_json(&["ps"]);
    let [grant] = listing.as_array().unwrap().as_slice() else { panic!("{listing}") };
    grant.clone()
}

fn users(grant: &Value) -> Vec<&str> {
    grant["claim"]["containers"].as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap()).collect()
}

fn mediator(node: &Node) -> Process {
    Process::read(i32::try_from(grant(node)["mediator"].as_i64().unwrap()).unwrap()).unwrap()
}

#[track_caller]
fn ended(container: &PodContainer<'_>) {
    eventually("the container has ended", || {
        (container.status().state() == ContainerState::ContainerExited).then_some(())
    });
}

fn one_account(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let pod = node.pod("p", &[]).unwrap();
    let one = start(&pod, "one", &[], &[(UID, "gpu")]).unwrap();
    let two = start(&pod, "two", &[], &[(UID, "gpu")]).unwrap();
    let listed = grant(node);
    assert_eq!(users(&listed), ["one", "two"]);
    assert_eq!(
        (&listed["cards"][0]["memory_limit_bytes"], &listed["cards"][0]["compute_percent"]),
        (&(1 << 30).into(), &25.into())
    );
    let run = |container: &PodContainer<'_>, command: &str| {
        let answer = container.exec(&["sh", "-c", command]);
        (answer.exit_code, String::from_utf8([answer.stdout, answer.stderr].concat()).unwrap())
    };
    for container in [&one, &two] {
        let (code, text) = run(container, "rm-client memory");
        assert!(code == 0 && text.contains(&format!("total {}", 1 << 30)), "{code} {text}");
    }
    let hold = "rm-client alloc 600M --hold 1000 > /tmp/log 2>&1 < /dev/null &";
    run(&one, &format!("{hold} until grep -q holding /tmp/log; do sleep 0.1; done"));
    let (code, text) = run(&two, "rm-client alloc 600M");
    assert!(code == 2 && text.contains("out of memory"), "{code} {text}: what one holds, the other has not");
    let (_, text) = run(&two, "rm-client smi");
    assert!(text.contains("MiB / 1024MiB") && !text.contains(" 0MiB / "), "{text}");

    one.stop(0).unwrap();
    one.remove().unwrap();
    let (code, text) = run(&two, "rm-client alloc 600M");
    assert_eq!(code, 0, "what a container had is free at its end: {text}");
    assert_eq!(users(&grant(node)), ["two"]);
    let mediator = mediator(node);
    let three = start(&pod, "three", &[], &[(UID, "gpu")]).unwrap();
    assert_eq!(run(&three, "rm-client alloc 600M").0, 0);
    assert_eq!(mediator.pid, self::mediator(node).pid, "it is the same one");
    pod.remove();
    assert!(!mediator.alive());
    let listed = grant(node);
    assert!(users(&listed).is_empty() && listed["pid"].is_null() && listed["mediator"].is_null(), "{listed}");
    plugin.unprepare(UID);
}

fn mediator_killed(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let pod = node.pod("p", &[]).unwrap();
    let both = ["one", "two"].map(|name| start(&pod, name, &[], &[(UID, "gpu")]).unwrap());
    let beside = pod.start("beside", &PodContainerConfig { command: SLEEP, ..PodContainerConfig::default() }).unwrap();
    mediator(node).kill();
    both.iter().for_each(ended);
    assert_eq!(beside.status().state(), ContainerState::ContainerRunning, "it has no part in it");
    let again = start(&pod, "again", &[], &[(UID, "gpu")]).unwrap();
    assert_eq!(again.exec(&["rm-client", "alloc", "600M"]).exit_code, 0);
    pod.remove();
    plugin.unprepare(UID);
}

/// Memory of the killed mediator is in a file that a sidecar has: the claim has no room beside it.
fn left_by_a_killed_mediator(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let pod = node.pod("p", &[]).unwrap();
    let (name, claimed) = variable(UID, "gpu");
    let env = [(name.as_str(), claimed.as_str())];
    let armed = |command| PodContainerConfig { command, armed: true, ..PodContainerConfig::default() };
    let lend = PodContainerConfig { env: &env, ..armed(&[PROGRAM, "lend", "@s", "384"]) };
    let owner = pod.start("owner", &lend).unwrap();
    assert_eq!((value(&owner, "status"), value(&owner, "listening")), (0, 1));
    let sidecar = pod.start("sidecar", &armed(&[PROGRAM, "keep", "@s"])).unwrap();
    assert_eq!(value(&sidecar, "kept"), 1);
    let init = Process::read(i32::try_from(grant(node)["pid"].as_i64().unwrap()).unwrap()).unwrap();
    mediator(node).kill();
    eventually("the owner is dead", || (!init.alive()).then_some(()));
    let kept = start(&pod, "early", &[], &[(UID, "gpu")]).unwrap_err();
    assert!(kept.message().contains("are in use that no container"), "{}", kept.message());
    sidecar.stop(0).unwrap();
    let next = start(&pod, "next", &[], &[(UID, "gpu")]).unwrap();
    assert_eq!(next.exec(&["rm-client", "alloc", "600M"]).exit_code, 0);
    pod.remove();
    plugin.unprepare(UID);
}

fn shim_killed(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let pod = node.pod("p", &[]).unwrap();
    let one = start(&pod, "one", &[], &[(UID, "gpu")]).unwrap();
    assert!(plugin.ledger.unprepare_claim("default", UID, &plugin.log).is_err(), "it runs");
    node.shim().kill();
    ended(&one);
    eventually("nobody uses the claim", || {
        plugin.ledger.reclaim(&plugin.log).unwrap();
        users(&grant(node)).is_empty().then_some(())
    });
    pod.remove();
    plugin.unprepare(UID);
}

fn restarts(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let id = |node: &Node| grant(node)["id"].clone();
    let pod = node.pod("p", &[]).unwrap();
    for attempt in ["one", "two", "three"] {
        let container = start(&pod, attempt, &[], &[(UID, "gpu")]).unwrap();
        assert_eq!(id(node), format!("claim-{UID}-gpu"));
        container.stop(0).unwrap();
        container.remove().unwrap();
        assert!(users(&grant(node)).is_empty());
    }
    // The next sandbox of the pod finds it, too.
    pod.remove();
    let pod = node.pod("p", &[]).unwrap();
    start(&pod, "four", &[], &[(UID, "gpu")]).unwrap();
    pod.remove();
    plugin.unprepare(UID);
}

fn two_cards(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(
        UID,
        "p",
        &[
            ("one", &[("egpu.io/devices", "1"), ("egpu.io/memory", "1GiB"), ("egpu.io/compute", "20%")]),
            ("two", &[("egpu.io/devices", "2"), ("egpu.io/memory", "2GiB"), ("egpu.io/compute", "30%")]),
        ],
    );
    let pod = node.pod("p", &[]).unwrap();
    let both = start(&pod, "both", &[], &[(UID, "one"), (UID, "two")]).unwrap();
    let table = String::from_utf8(both.exec(&["rm-client", "smi"]).stdout).unwrap();
    assert!(table.contains("/ 1024MiB") && table.contains("/ 2048MiB"), "{table}");
    let message = start(&pod, "part", &[], &[(UID, "one")]).unwrap_err().message().to_owned();
    assert!(message.contains("must name the same requests"), "{message}");
    both.stop(0).unwrap();
    both.remove().unwrap();
    let [one, two] = ["one", "two"].map(|request| start(&pod, request, &[], &[(UID, request)]).unwrap());
    for (container, limit) in [(one, "/ 1024MiB"), (two, "/ 2048MiB")] {
        let table = String::from_utf8(container.exec(&["rm-client", "smi"]).stdout).unwrap();
        assert!(table.contains(limit) && table.matches("Tesla V100").count() == 1, "{table}");
    }
    pod.remove();
    plugin.unprepare(UID);
}

fn nothing_widens(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let pod = node.pod("p", &[("egpu.io/memory", "30GiB"), ("egpu.io/compute", "100%")]).unwrap();
    let own = [
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("EGPU_MEMORY", "30GiB"),
        ("EGPU_DEVICES", "0,1,2,3"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "30g"),
        ("EGPU_ISOLATION", "none"),
    ];
    let container = start(&pod, "one", &own, &[(UID, "gpu")]).unwrap();
    let table = String::from_utf8(container.exec(&["rm-client", "smi"]).stdout).unwrap();
    assert!(table.contains("/ 1024MiB") && table.matches("Tesla V100").count() == 1, "{table}");
    let privileged = PodContainerConfig { all_capabilities: true, command: SLEEP, ..PodContainerConfig::default() };
    let (name, value) = variable(UID, "gpu");
    let env = [(name.as_str(), value.as_str())];
    let refused = pod.start("root", &PodContainerConfig { env: &env, ..privileged }).unwrap_err();
    assert!(refused.message().contains("the quota of the claim cannot hold"), "{}", refused.message());
    pod.remove();
    plugin.unprepare(UID);
}

fn at_each_level(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let pod = node.privileged_pod("p", &[]).unwrap();
    let (name, value) = variable(UID, "gpu");
    let env = [(name.as_str(), value.as_str())];
    let at = |security| PodContainerConfig { security, command: SLEEP, env: &env, ..PodContainerConfig::default() };
    for (name, security) in [("restricted", PodSecurity::Restricted), ("baseline", PodSecurity::Baseline)] {
        let container = pod.start(name, &at(security)).unwrap();
        let text = String::from_utf8(container.exec(&["rm-client", "memory"]).stdout).unwrap();
        assert!(text.contains(&format!("total {}", 1 << 30)), "{name}: {text}");
    }
    let refused = pod.start("privileged", &at(PodSecurity::Privileged)).unwrap_err();
    assert!(refused.message().contains("the quota of the claim cannot hold"), "{}", refused.message());
    pod.remove();
    plugin.unprepare(UID);
}

fn forged(node: &Node) {
    let plugin = Plugin::new(node);
    plugin.prepare(UID, "p", GPU);
    let other = node.pod("q", &[]).unwrap();
    let message = start(&other, "thief", &[], &[(UID, "gpu")]).unwrap_err().message().to_owned();
    assert!(message.contains("is another pod's"), "{message}");
    let unknown = UID.replace('6', "7");
    let message = start(&other, "guess", &[], &[(&unknown, "gpu")]).unwrap_err().message().to_owned();
    assert!(message.contains("not prepared on this node"), "{message}");
    let made_up = [("EGPU_CLAIM_X", "1")];
    let message = start(&other, "made-up", &made_up, &[]).unwrap_err().message().to_owned();
    assert!(message.contains("only egpu-kubelet-plugin sets variables of claims"), "{message}");
    let (name, value) = variable(UID, "gpu");
    let error = node.container("outside").env(&name, &value).create().unwrap_err().to_string();
    assert!(error.contains("is another pod's"), "{error}");
    assert!(users(&grant(node)).is_empty());
    other.remove();
    plugin.unprepare(UID);
}

fn required(node: &Node) {
    let plugin = Plugin::new(node);
    let pod = node.pod("p", &[("egpu.io/memory", "1GiB")]).unwrap();
    let env = [("EGPU_DEVICES", "0")];
    let config = PodContainerConfig { command: SLEEP, env: &env, ..PodContainerConfig::default() };
    let without = pod.start("without", &config).unwrap();
    assert_ne!(without.exec(&["ls", "/dev/nvidiactl"]).exit_code, 0);
    assert!(plugin.ledger.records().unwrap().is_empty());
    let events = node.egpu_json(&["events", "--kind", "ignored"]).to_string();
    assert!(events.contains("kubernetes.require_claim"), "{events}");
    plugin.prepare(UID, "p", GPU);
    let with = start(&pod, "with", &[], &[(UID, "gpu")]).unwrap();
    assert_eq!(with.exec(&["ls", "/dev/nvidiactl"]).exit_code, 0);
    // What is no pod's is the administrator's own.
    node.container("plain").env("EGPU_DEVICES", "1").env("EGPU_MEMORY", "1GiB").start().unwrap().end();
    pod.remove();
    plugin.unprepare(UID);
}
