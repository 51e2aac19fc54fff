//! The refusal that a pod reads: what it asked for and what is free, and nothing of who has the
//! rest.

use base::{CardPolicy, ComputeShare};
use cards::MigDevice;
use runtime_config::{
    config::HardCapsUnavailable,
    request::{CardRequest, DeviceSelector, GpuRequest, PodContainer, Share},
};

use crate::{
    AdmitError, Refusal,
    decision_log::chain,
    test_support::{Bench, cap, devices, key, mib, part, request, weight, with_policy},
};

/// Two neighbours on a card, of sizes that nothing else has.
const SECRETS: [&str; 9] = ["secret", "web", "5003", "3001", "4.9 GiB", "2.9 GiB", "17%", "23%", "weight=6"];

fn on(card: u32, memory_mib: u64, compute: ComputeShare) -> GpuRequest {
    request(devices(&[card]), part(memory_mib, compute))
}

fn one(memory_mib: u64, compute: ComputeShare) -> GpuRequest {
    request(CardRequest::Count(1), part(memory_mib, compute))
}

fn with_neighbours(requests: &[GpuRequest]) -> Bench {
    let bench = Bench::new(3);
    for (at, request) in requests.iter().enumerate() {
        let pod = PodContainer { namespace: "secret".into(), pod: format!("web-{at}"), container: "main".into() };
        bench.admit(&format!("secret-{at}"), &GpuRequest { pod: Some(pod), ..request.clone() }).unwrap();
    }
    bench
}

fn weighted(request: GpuRequest) -> GpuRequest {
    with_policy(CardPolicy::Weighted, request)
}

/// Whatever is refused, the log has who is in the way, and the pod's text has what is free.
#[test]
fn names_and_sizes_of_neighbours_are_for_the_log_alone() {
    let caps = || [on(0, 5003, cap(17)), on(0, 3001, cap(23))];
    let capped = || with_neighbours(&caps());
    let slices = || with_neighbours(&[weighted(on(0, 5003, weight(6))), weighted(on(0, 3001, weight(5)))]);
    let pair = |cards: &[u32]| request(devices(cards), part(1024, cap(50)));
    let whole = |card| request(devices(&[card]), Share::Exclusive);
    let room = "(free: 24764MiB of 32GiB of memory, 60% of its time, 8 of 10 places)";
    let mut full = capped();
    full.limits.device_split_count = 2;
    let mut soft = capped();
    soft.inventory.cards[0].hard_caps = false;
    soft.limits.hard_caps_unavailable = HardCapsUnavailable::Refuse;
    let free = || on(0, 1024, ComputeShare::Unlimited);
    for (bench, asked, expected) in [
        (capped(), on(0, 30000, cap(10)), "30000MiB of memory asked, 24764MiB of 32GiB free"),
        (capped(), on(0, 1024, cap(61)), "61% of compute asked, 60% free"),
        (with_neighbours(&[on(0, 5003, cap(17)), free()]), on(0, 1024, cap(80)), "caps would take 97%"),
        (slices(), weighted(on(0, 1024, weight(7))), "weight 7 asked, 5 of max_inst = 16 free"),
        (full, on(0, 1024, cap(10)), "(free: 24764MiB of 32GiB of memory, 60% of its time, 0 of 2 places)"),
        (capped(), whole(0), room),
        (with_neighbours(&[whole(0)]), on(0, 1024, cap(10)), "0B of 32GiB of memory, 0% of its time, 0 of 10 places"),
        (capped(), weighted(on(0, 1024, weight(1))), "policy weighted is needed, and the card has fixed"),
        (soft, on(0, 1024, cap(10)), "hard cap"),
        (with_neighbours(&[pair(&[0, 1]), pair(&[1, 2])]), pair(&[0, 2]), "50% of its time"),
        (
            capped(),
            one(65536, cap(10)),
            "card 1, 2: 64GiB of memory asked, 32GiB of 32GiB free; the card never has as much: ask for less (free: 32GiB",
        ),
    ] {
        let error = bench.admit("pod", &asked).unwrap_err();
        let (text, logged) = (error.for_pod(), chain(&error));
        for part in ["k8s.io/pod", expected] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(matches!(error, AdmitError::Card { .. } | AdmitError::NoRoom { .. }), "{logged}");
        let at = if logged.contains("k8s.io/secret-0") { 0 } else { 1 };
        assert!(logged.contains(&format!("secret/web-{at}/main [k8s.io/secret-{at}] (")), "{logged}");
        assert!(bench.take_log().iter().any(|line| line.contains("event=refuse") && line.contains("k8s.io/secret-")));
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}

#[test]
fn a_mig_device_that_is_taken_is_not_said_to_be_anybodys() {
    let mut bench = Bench::new(1);
    let device = MigDevice { index: 0, uuid: "MIG-0".into(), gpu_instance: 7, compute_instance: 0, memory: mib(4096) };
    bench.inventory.cards[0].mig_enabled = true;
    bench.inventory.cards[0].mig_devices = vec![device];
    let mig = request(CardRequest::Devices(vec![DeviceSelector::MigIndex { card: 0, mig: 0 }]), Share::Exclusive);
    bench.admit("secret", &mig).unwrap();
    let error = bench.admit("pod", &mig).unwrap_err();
    assert!(matches!(&error, AdmitError::Card { source, .. } if matches!(**source, Refusal::MigHeld { .. })));
    let text = error.for_pod();
    assert!(text.ends_with("MIG device MIG-0 is taken; name another one, or wait until it is free"), "{text}");
    assert!(!text.contains("secret") && !text.contains("container k8s.io/secret"), "{text}");
}

#[test]
fn what_the_ledgers_files_are_called_is_for_the_log_alone() {
    let bench = Bench::new(1);
    bench.admit("secret", &on(0, 5003, cap(17))).unwrap();
    let (name, _) = bench.files().into_iter().find(|(name, _)| name.contains("secret")).unwrap();
    let path = bench.directory.path().join("ledger").join(&name);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "{").unwrap();
    let error = bench.admit("pod", &on(0, 1024, cap(10))).unwrap_err();
    assert!(chain(&error).contains("secret"), "{error}");
    assert_eq!(error.for_pod(), "the grant of container k8s.io/pod cannot be written down; the node's log says why");
    let taken = AdmitError::AlreadyAdmitted { container: Box::new(key("pod")), shim_pid: 4711 };
    assert_eq!(taken.for_pod(), "container k8s.io/pod has a grant already");
}
