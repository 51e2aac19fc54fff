//! Golden tests: a made-up host, an image and a spec in; a spec and an image out.
//!
//! `golden/<case>.json` is the spec that comes out, with the host's directories named `HOST`,
//! `STATE`. `UPDATE_GOLDEN=1` writes them anew; read the difference before it is committed.

use std::{fs, os::unix::fs::symlink};

use base::{
    Bytes, CardGrant, CardPolicy, ComputeEnforcement, ComputeShare, ContainerKey, Enforcement, OverMemory, PciBusId,
    Priority, ProcessId, Roots,
};
use cards::{
    Card, Health, Inventory, MigDevice, Source,
    driver_files::{
        self,
        ld_cache::{self, Entry, Hwcap},
    },
};
use ledger::{GrantState, Record};
use runtime_config::request::{
    CardRequest, Dialect, DriverCapabilities as Caps, GpuRequest, Isolation, MemoryLimit, NvidiaExtras, PerCard,
    Placement, Share,
};
use serde_json::{Value, json};
use testing::{EM_386, fake_host, fake_library, put};

use super::*;

const VERSION: &str = "580.159.04";

/// A host with two cards and a container on it.
pub(super) struct Case {
    directory: tempfile::TempDir,
    record: Record,
    inventory: Inventory,
    host_memory_limit: Option<Bytes>,
    pub(super) spec: Value,
}

impl Case {
    pub(super) fn new() -> Self {
        let case = Self {
            directory: tempfile::tempdir().unwrap(),
            record: record(Share::Exclusive),
            inventory: inventory(Source::Nvidia),
            host_memory_limit: None,
            spec: spec(),
        };
        let host = case.path("host");
        fake_host(&host, VERSION, "/usr/lib/x86_64-linux-gnu");
        put(
            &host,
            "/proc/devices",
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n508 nvidia-uvm\n509 nvidia-caps\n\
             510 nvidia-caps-imex-channels\n\nBlock devices:\n195 nvidia-uvm\n",
        );
        put(
            &host,
            "/proc/driver/nvidia/params",
            "DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n",
        );
        put(&host, "/proc/driver/nvidia/version", "NVRM version: 580.159.04\n");
        put(&host, "/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: one\n");
        put(&host, "/proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: two\n");
        put(
            &host,
            "/proc/driver/nvidia-caps/mig-minors",
            "config 1\nmonitor 2\ngpu3/gi1/access 417\ngpu3/gi1/ci0/access 418\n",
        );
        let rootfs = case.path("rootfs");
        put(&rootfs, "/etc/debian_version", "12\n");
        put(&rootfs, "/usr/bin/true", "");
        base::grant_files::make_directory(&case.path("state"), "grant-1").unwrap();
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub(super) fn host(&self) -> PathBuf {
        self.path("host")
    }

    pub(super) fn rootfs(&self) -> PathBuf {
        self.path("rootfs")
    }

    fn share(&mut self) {
        self.record.request.share = Share::Part {
            memory: PerCard::same(vec![MemoryLimit::Bytes { amount: Bytes(1 << 30), reserved: Bytes(0) }]),
            compute: PerCard::same(ComputeShare::Unlimited),
            isolation: Isolation::Full,
        };
    }

    fn plan(&self) -> Result<Injection, InjectError> {
        let settings = Settings {
            roots: Roots::under(self.host()),
            state_dir: self.path("state"),
            host_memory_limit: self.host_memory_limit,
            hami_compat: true,
        };
        let driver_files = driver_files::find(&self.host(), VERSION);
        let input = PlanInput {
            record: &self.record,
            inventory: &self.inventory,
            driver_files: &driver_files,
            settings: &settings,
        };
        let plan = Injection::plan(&input)?;
        // It travels as JSON.
        let travelled = serde_json::from_value(serde_json::to_value(&plan).unwrap()).unwrap();
        assert_eq!(plan, travelled);
        Ok(plan)
    }

    /// Applies the plan twice, which must be the same as once, and returns the warnings of plan and
    /// application.
    pub(super) fn apply(&mut self) -> Vec<String> {
        let plan = self.plan().unwrap();
        let warnings = plan.complete(&self.rootfs(), &mut self.spec).unwrap();
        let (once, files) = (self.spec.clone(), tree(&self.rootfs()));
        let again = plan.complete(&self.rootfs(), &mut self.spec).unwrap();
        assert_eq!(self.spec, once, "applying twice changes the spec");
        assert_eq!(tree(&self.rootfs()), files, "applying twice changes the image");
        // What gave way is no longer there the second time.
        let kept = |warning: &&String| !warning.ends_with("have places of their own");
        assert_eq!(again, warnings.iter().filter(kept).cloned().collect::<Vec<_>>());
        plan.warnings.into_iter().chain(warnings).collect()
    }

    /// The spec with the host's paths by name.
    fn outcome(&self) -> Value {
        let text = serde_json::to_string_pretty(&self.spec).unwrap();
        let directory = self.directory.path().canonicalize().unwrap();
        let text = text.replace(&directory.join("host").display().to_string(), "HOST");
        let text = text.replace(&directory.join("state").display().to_string(), "STATE");
        serde_json::from_str(&text).unwrap()
    }

    fn golden(&mut self, name: &str) -> Vec<String> {
        let warnings = self.apply();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/inject/golden").join(format!("{name}.json"));
        let outcome = serde_json::to_string_pretty(&self.outcome()).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &outcome).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        assert!(outcome == expected, "{name}: differs from {}; the outcome is\n{outcome}", path.display());
        warnings
    }

    fn link(&self, path: &str) -> String {
        fs::read_link(self.rootfs().join(path)).unwrap_or_default().display().to_string()
    }

    fn mount(&self, destination: &str) -> Option<&Value> {
        crate::spec::items(self.spec.get("mounts")).iter().find(|mount| mount["destination"] == destination)
    }

    fn node_paths(&self) -> Vec<&str> {
        self.spec["linux"]["devices"].as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap()).collect()
    }

    /// Paths that the image's cache has for a name.
    fn cached(&self, name: &str) -> Vec<String> {
        let file = fs::read(self.rootfs().join("etc/ld.so.cache")).unwrap();
        let entries = ld_cache::parse(&file).unwrap();
        let found = entries.iter().filter(|entry| entry.name == name.as_bytes());
        found.map(|entry| String::from_utf8(entry.path.to_vec()).unwrap()).collect()
    }
}

/// Every file and link below a directory with its content.
fn tree(root: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap().flatten() {
        let path = entry.path();
        if path.is_symlink() {
            found.push((path.clone(), fs::read_link(&path).unwrap().display().to_string()));
        } else if path.is_dir() {
            found.extend(tree(&path));
        } else {
            found.push((path.clone(), format!("{:?}", fs::read(&path).unwrap())));
        }
    }
    found.sort();
    found
}

pub(super) fn card(index: u32, minor: u32, uuid: &str) -> Card {
    Card {
        index,
        uuid: uuid.into(),
        model: "Tesla V100".into(),
        brand: "Tesla".into(),
        compute_capability: (7, 0),
        memory: Bytes(32 << 30),
        minor,
        pci: PciBusId { domain: 0, bus: u8::try_from(index + 1).unwrap(), device: 0, function: 0 },
        numa_node: None,
        links: Vec::new(),
        mig_enabled: false,
        mig_devices: Vec::new(),
        hard_caps: true,
        simulated: None,
        health: Health::Ok,
    }
}

/// Minor numbers are not indices.
fn inventory(source: Source) -> Inventory {
    let mut cards = vec![card(0, 3, "GPU-a"), card(1, 5, "GPU-b")];
    let memory = Bytes(1 << 30);
    let mig = MigDevice { index: 0, uuid: "MIG-a".into(), gpu_instance: 1, compute_instance: 0, memory };
    cards[0].mig_devices.push(mig);
    Inventory { source, driver_version: VERSION.into(), cuda_version: "13.0".into(), cards }
}

pub(super) fn grant(uuid: &str) -> CardGrant {
    CardGrant {
        index: 0,
        uuid: uuid.into(),
        mig_uuid: None,
        memory: Bytes(1 << 30),
        compute: ComputeShare::Unlimited,
        policy: CardPolicy::Fixed,
        exclusive: true,
        enforcement: Enforcement::WholeCard,
        compute_by: ComputeEnforcement::None,
        window_loss_us: 0,
        channels: None,
        pinned_memory: None,
    }
}

pub(super) fn record(share: Share) -> Record {
    Record {
        version: 1,
        format: 1,
        egpu_version: Some("0.1.0".to_owned()),
        boot_id: "boot".into(),
        grant_id: "grant-1".into(),
        container: ContainerKey { containerd: "/run/c".into(), namespace: "default".into(), id: "one".into() },
        state: GrantState::Pending,
        pid_namespace: 1,
        shim: ProcessId { pid: 1, start_time: 1 },
        creators: Vec::new(),
        init: None,
        mediator: None,
        cgroups: Vec::new(),
        order: 0,
        priority: None,
        present: false,
        leaving: false,
        leaving_since_us: None,
        claim: None,
        request: GpuRequest {
            dialect: Dialect::Nvidia.into(),
            cards: CardRequest::All,
            whole_cards: CardRequest::None,
            within: None,
            share,
            policy: None,
            placement: Placement::Binpack,
            group: None,
            pod: None,
            priority: Priority::High,
            pinned_memory: None,
            over_memory: OverMemory::Deny,
            oom_script: None,
            live_update: true,
            driver_capabilities: Caps::COMPUTE | Caps::UTILITY,
            requirements: Vec::new(),
            extras: NvidiaExtras::default(),
            asked: Vec::new(),
            visible_devices_alone: Vec::new(),
            warnings: Vec::new(),
        },
        cards: vec![grant("GPU-b")],
        exclusive: true,
        admitted_at: "2026-01-01T00:00:00Z".into(),
    }
}

/// As containerd writes it, shortened, and with fields that nobody knows.
pub(super) fn spec() -> Value {
    json!({
        "ociVersion": "1.2.0",
        "x-vendor": {"kept": [1, 2.5, null]},
        "process": {
            "user": {"uid": 1000, "gid": 1000, "additionalGids": [10], "x-user": true},
            "args": ["sh"],
            "env": ["PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=1"],
            "capabilities": {
                "bounding": ["CAP_CHOWN", "CAP_SYS_NICE"], "effective": ["CAP_PERFMON", "CAP_CHOWN"],
                "permitted": ["CAP_CHOWN"]
            }
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/run", "type": "tmpfs", "source": "tmpfs"}
        ],
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"}], "x-resource": 1},
            "namespaces": [{"type": "pid"}, {"type": "mount"}]
        }
    })
}

#[test]
fn a_whole_card() {
    let mut case = Case::new();
    assert_eq!(case.golden("whole_card"), Vec::<String>::new());
    assert_eq!(case.link("usr/lib/x86_64-linux-gnu/libcuda.so.1"), "libcuda.so.580.159.04");
    assert_eq!(case.link("usr/lib/x86_64-linux-gnu/libcuda.so"), "libcuda.so.1");
    assert_eq!(case.link("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), "libnvidia-ml.so.580.159.04");
    assert_eq!(case.cached("libcuda.so.1"), ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]);
    let shown = case.path("state").join("inject/grant-1/proc-driver-nvidia");
    assert!(fs::read_to_string(shown.join("params")).unwrap().contains("ModifyDeviceFiles: 0"));
    assert!(shown.join("gpus/0000:02:00.0/information").exists());
    assert!(!shown.join("gpus/0000:01:00.0").exists(), "the other card is not shown");
}

#[test]
fn a_share_withholds_what_cannot_be_accounted() {
    let mut case = Case::new();
    case.share();
    case.record.request.driver_capabilities = Caps::all();
    case.record.request.extras.gdrcopy = true;
    put(&case.host(), "/sys/bus/pci/devices/0000:02:00.0/drm/renderD128/dev", "226:128\n");
    let warnings = case.golden("share");
    for withheld in ["/dev/nvidia-modeset", "/dev/dri", "NVIDIA_GDRCOPY"] {
        assert!(warnings.iter().any(|warning| warning.starts_with(withheld)), "{withheld}: {warnings:?}");
    }
}

#[test]
fn a_share_without_a_memory_limit_gets_the_nodes_and_keeps_its_own() {
    let memory = |is_share: bool, memory: Value| {
        let mut case = Case { host_memory_limit: Some(Bytes(1 << 30)), ..Case::new() };
        if is_share {
            case.share();
        }
        case.spec["linux"]["resources"]["memory"] = memory;
        case.apply();
        case.spec["linux"]["resources"]["memory"].clone()
    };
    for none in [Value::Null, json!({}), json!({ "limit": null }), json!({ "limit": -1 }), json!({ "limit": 0 })] {
        assert_eq!(memory(true, none.clone()), json!({ "limit": 1 << 30 }), "{none}");
        assert_eq!(memory(false, none.clone()), none, "a whole card");
    }
    let own = json!({ "limit": 2_u64 << 30, "swap": 7 });
    assert_eq!(memory(true, own.clone()), own);
}

#[test]
fn a_mig_device() {
    let mut case = Case::new();
    case.record.cards = vec![CardGrant { mig_uuid: Some("MIG-a".into()), ..grant("GPU-a") }];
    case.apply();
    assert_eq!(
        case.node_paths(),
        [
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia3",
            "/dev/nvidia-caps/nvidia-cap417",
            "/dev/nvidia-caps/nvidia-cap418",
        ]
    );
    case.inventory.cards[0].mig_devices[0].gpu_instance = 7;
    let error = case.plan().unwrap_err().to_string();
    assert!(error.starts_with("the MIG capability gpu3/gi7/access is not there"), "{error}");
}

#[test]
fn simulated_cards() {
    let mut case = Case::new();
    case.inventory = inventory(Source::Simulated);
    case.share();
    assert_eq!(case.golden("simulated"), Vec::<String>::new());
}

#[test]
fn no_card_at_all_still_gets_the_driver() {
    let mut case = Case::new();
    case.record.cards.clear();
    case.record.request.driver_capabilities = Caps::UTILITY;
    case.apply();
    assert_eq!(case.node_paths(), ["/dev/nvidiactl"]);
    assert!(case.mount("/usr/bin/nvidia-smi").is_some());
    assert!(case.mount("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04").is_none());
}

#[test]
fn imex_channels() {
    let mut case = Case::new();
    case.record.request.extras.imex_channels = vec![0, 7];
    case.apply();
    assert!(case.node_paths().contains(&"/dev/nvidia-caps-imex-channels/channel7"));
    case.record.request.extras.imex_channels = vec![1 << 20];
    assert!(case.plan().unwrap_err().to_string().contains("channel numbers are 0 to 1048575"));
}

#[test]
fn missing_modules_are_named_with_the_remedy() {
    let case = Case::new();
    put(&case.host(), "/proc/devices", "Character devices:\n195 nvidia-frontend\n\n");
    let error = case.plan().unwrap_err().to_string();
    assert!(error.contains("nvidia-uvm") && error.contains("nvidia-modprobe -u -c 0"), "{error}");
    put(&case.host(), "/proc/devices", "Character devices:\n1 mem\n\nBlock devices:\n195 nvidia\n");
    assert!(case.plan().unwrap_err().to_string().contains("modprobe nvidia"));
    fs::remove_file(case.host().join("proc/devices")).unwrap();
    assert!(matches!(case.plan(), Err(InjectError::Host { .. })));
}

#[test]
fn a_card_that_is_gone_is_an_error() {
    let mut case = Case::new();
    case.record.cards = vec![grant("GPU-gone")];
    assert!(matches!(case.plan(), Err(InjectError::UnknownCard { uuid }) if uuid == "GPU-gone"));
}

/// Earlier injections by CDI, NVIDIA's runtime and HAMi's device plugin.
#[test]
fn what_others_have_injected_is_replaced() {
    let mut case = Case::new();
    case.share();
    let library = "usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04";
    let source = case.host().join(library).canonicalize().unwrap().display().to_string();
    let smi = case.host().join("usr/bin/nvidia-smi").display().to_string();
    symlink("nvidia-smi", case.host().join("usr/bin/link")).unwrap();
    case.spec["hooks"] = json!({
        "prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}, {"path": "/bin/other"}],
        "createContainer": [{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"]}]
    });
    case.spec["linux"]["devices"] = json!([
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
        {"path": "/dev/nvidia5", "type": "c", "major": 195, "minor": 5, "fileMode": 438},
        {"path": "/dev/nvidia-uvm-tools", "type": "c", "major": 508, "minor": 1},
        {"path": "/dev/dri/card0", "type": "c", "major": 226, "minor": 0},
        {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "x-device": 1}
    ]);
    let rules = case.spec["linux"]["resources"]["devices"].as_array_mut().unwrap();
    rules.push(json!({"allow": true, "type": "c", "major": 195, "access": "rw"}));
    rules.push(json!({"allow": true, "type": "c", "major": 195, "minor": 5, "access": "rwm"}));
    rules.push(json!({"allow": true, "type": "c", "major": 226, "minor": 0, "access": "rwm"}));
    let mounts = case.spec["mounts"].as_array_mut().unwrap();
    mounts.push(
        json!({"destination": format!("/{library}"), "source": source, "type": "bind", "options": ["ro", "rbind"]}),
    );
    mounts
        .push(json!({"destination": "/usr/lib64/libcuda.so.580.159.04", "source": source, "options": ["ro", "rbind"]}));
    mounts.push(json!({"destination": "/usr/bin/nvidia-smi", "source": smi, "options": ["ro", "rbind"]}));
    mounts.push(json!({"destination": "/usr/local/vgpu/libvgpu.so", "source": "/usr/local/vgpu/libvgpu.so", "options": ["rbind"]}));
    mounts.push(
        json!({"destination": "/etc/ld.so.preload", "source": "/usr/local/vgpu/ld.so.preload", "options": ["rbind"]}),
    );
    mounts.push(json!({"destination": "/data", "source": "/srv/data", "options": ["rbind"], "x-mount": 1}));
    case.golden("replaced");
}

#[test]
fn a_driver_file_that_the_user_mounts_elsewhere_gives_way_with_a_warning() {
    let mut case = Case::new();
    let library = case.host().join("usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04").canonicalize().unwrap();
    let mount =
        json!({"destination": "/opt/cuda/libcuda.so", "source": library.display().to_string(), "options": ["rbind"]});
    case.spec["mounts"].as_array_mut().unwrap().push(mount);
    let warnings = case.apply();
    assert!(case.mount("/opt/cuda/libcuda.so").is_none());
    let expected = format!("{} is not mounted at /opt/cuda/libcuda.so", library.display());
    assert!(warnings.iter().any(|warning| warning.starts_with(&expected)), "{warnings:?}");
    assert_eq!(warnings.iter().filter(|warning| warning.contains("places of their own")).count(), 1);
}

#[test]
fn another_preload_file_stays() {
    let mut case = Case::new();
    let mount = json!({"destination": "/etc/ld.so.preload", "source": "/opt/ours", "options": ["rbind"]});
    case.spec["mounts"].as_array_mut().unwrap().push(mount);
    case.apply();
    assert!(case.mount("/etc/ld.so.preload").is_some());
}

#[test]
fn old_leftovers_give_way() {
    let mut case = Case::new();
    let rootfs = case.rootfs();
    let dir = "/usr/lib/x86_64-linux-gnu";
    put(&rootfs, &format!("{dir}/libcuda.so.470.1"), "");
    put(&rootfs, &format!("{dir}/libcuda.so.580.159.04"), "");
    put(&rootfs, &format!("{dir}/libnvidia-ml.so.1"), "an old library itself");
    symlink("libcuda.so.470.1", rootfs.join(format!("{dir}/libcuda.so.1").trim_start_matches('/'))).unwrap();
    let entry = |name: &str, path: &str, abi: Abi| Entry {
        name: name.as_bytes().to_vec().into(),
        path: path.as_bytes().to_vec().into(),
        flags: abi.flags(),
        os_version: 0,
        hwcap: Hwcap::Bits(0),
    };
    let cache = vec![
        entry("libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1", Abi::X86_64),
        entry("libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1", Abi::I386),
        entry("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6", Abi::X86_64),
    ];
    put(&rootfs, "/etc/ld.so.cache", ld_cache::write(cache).unwrap());
    case.apply();
    assert_eq!(case.link("usr/lib/x86_64-linux-gnu/libcuda.so.1"), "libcuda.so.580.159.04");
    assert_eq!(case.link("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), "libnvidia-ml.so.580.159.04");
    assert_eq!(
        case.cached("libcuda.so.1"),
        ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1"]
    );
    assert_eq!(case.cached("libc.so.6"), ["/lib/x86_64-linux-gnu/libc.so.6"]);
}

#[test]
fn images_that_are_not_debian() {
    for musl in [false, true] {
        let mut case = Case::new();
        fs::remove_file(case.rootfs().join("etc/debian_version")).unwrap();
        if musl {
            put(&case.rootfs(), "/lib/ld-musl-x86_64.so.1", "musl");
        }
        case.apply();
        assert!(case.mount("/usr/lib64/libcuda.so.580.159.04").is_some());
        assert_eq!(case.link("usr/lib64/libcuda.so.1"), "libcuda.so.580.159.04");
        assert_eq!(case.rootfs().join("etc/ld.so.cache").exists(), !musl);
        let path_file = fs::read_to_string(case.rootfs().join("etc/ld-musl-x86_64.path")).unwrap_or_default();
        assert_eq!(path_file, if musl { "/lib\n/usr/local/lib\n/usr/lib\n/usr/lib64\n" } else { "" });
    }
}

#[test]
fn libraries_for_32_bit_programs_come_when_asked_for() {
    for asked in [false, true] {
        let mut case = Case::new();
        put(&case.host(), "/usr/lib/i386-linux-gnu/libcuda.so.580.159.04", fake_library("libcuda.so.1", EM_386));
        if asked {
            case.record.request.driver_capabilities |= Caps::COMPAT32;
        }
        case.apply();
        assert_eq!(case.mount("/usr/lib/i386-linux-gnu/libcuda.so.580.159.04").is_some(), asked);
    }
}

/// An image whose every directory is a link to the host's.
#[test]
fn hostile_links_stay_inside() {
    let mut case = Case::new();
    let outside = case.path("outside");
    for dir in ["etc", "lib", "bin"] {
        fs::create_dir_all(outside.join(dir)).unwrap();
        fs::write(outside.join(dir).join("file"), "host").unwrap();
    }
    fs::write(outside.join("etc/debian_version"), "host").unwrap();
    let before = tree(&outside);
    let rootfs = case.rootfs();
    fs::remove_dir_all(&rootfs).unwrap();
    fs::create_dir_all(rootfs.join("usr")).unwrap();
    symlink(outside.join("etc"), rootfs.join("etc")).unwrap();
    symlink(outside.join("lib"), rootfs.join("usr/lib64")).unwrap();
    symlink("../../../outside/bin", rootfs.join("usr/bin")).unwrap();
    symlink("../../../../../../../../../../..", rootfs.join("lib")).unwrap();
    // Links into nothing inside of the image; the runtime would not follow them either.
    let plan = case.plan().unwrap();
    let warnings = plan.complete(&rootfs, &mut case.spec).unwrap();
    assert_eq!(tree(&outside), before, "{warnings:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 3);
    let sources: Vec<&str> =
        case.spec["mounts"].as_array().unwrap().iter().filter_map(|mount| mount["source"].as_str()).collect();
    assert!(!sources.iter().any(|source| source.contains("rootfs") || source.contains("outside")), "{sources:?}");
}

/// A volume over a directory hides what is written into the image below it.
#[test]
fn volumes_over_our_places() {
    let mut case = Case::new();
    let mounts = case.spec["mounts"].as_array_mut().unwrap();
    mounts.push(json!({"destination": "/usr/lib/x86_64-linux-gnu", "source": "/srv/lib", "options": ["rbind"]}));
    mounts.push(json!({"destination": "/etc", "source": "/srv/etc", "options": ["rbind", "ro"]}));
    mounts.push(json!({"destination": "/usr/bin/nvidia-smi", "source": "/srv/smi", "options": ["rbind", "ro"]}));
    let warnings = case.golden("volumes");
    assert!(
        warnings.iter().any(|warning| warning.starts_with("the driver's libraries are in /run/egpu/lib64")),
        "{warnings:?}"
    );
    assert!(warnings.iter().any(|warning| warning.starts_with("/etc/OpenCL/vendors/nvidia.icd is left out")));
    assert!(warnings.iter().any(|warning| warning.starts_with("/usr/bin/nvidia-smi is left out")));
    let lib = case.path("state").join("inject/grant-1/lib64");
    assert_eq!(fs::read_link(lib.join("libcuda.so.1")).unwrap(), Path::new("libcuda.so.580.159.04"));
    base::grant_files::remove_files(&case.path("state"), "grant-1").unwrap();
    assert!(!lib.exists());
}

/// Not the spec's `root.readonly`, which the runtime makes so later, but a root that is mounted
/// read-only.
#[test]
fn a_root_that_cannot_be_written() {
    use nix::mount::{MsFlags, mount};
    if !nix::unistd::geteuid().is_root() {
        testing::skipped("needs root, to mount");
        return;
    }
    let mut case = Case::new();
    let root = case.rootfs();
    // The mounts are this thread's own and go with it.
    let in_a_namespace = move || {
        let flags = |flags: MsFlags, source: &Path, target: &Path| {
            mount(Some(source), target, None::<&str>, flags, None::<&str>).unwrap();
        };
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        flags(MsFlags::MS_REC | MsFlags::MS_PRIVATE, Path::new("none"), Path::new("/"));
        flags(MsFlags::MS_BIND, &root, &root);
        flags(MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY, Path::new("none"), &root);
        let before = tree(&root);
        let warnings = case.apply();
        assert_eq!(tree(&root), before);
        assert!(warnings.iter().any(|warning| warning.starts_with("the driver's libraries are in /run/egpu/lib64")));
        assert!(warnings.iter().any(|warning| warning.starts_with("/usr/bin/nvidia-smi is left out")), "{warnings:?}");
        assert!(case.mount("/run/egpu/lib64/libcuda.so.580.159.04").is_some());
        assert!(case.mount("/usr/bin/nvidia-smi").is_none());
    };
    if let Err(panic) = std::thread::spawn(in_a_namespace).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn without_a_place_for_libcuda_the_create_fails() {
    let mut case = Case::new();
    case.spec["mounts"] = json!([{"destination": "/usr/lib", "source": "/srv/lib", "options": ["rbind"]}]);
    let error = case.plan().unwrap().complete(&case.rootfs(), &mut case.spec).unwrap_err();
    assert!(matches!(error, InjectError::LibrariesUnreachable { .. }), "{error}");
}

#[test]
fn a_spec_without_device_rules_denies_the_rest() {
    let mut case = Case::new();
    case.spec["linux"] = json!({});
    case.spec["process"] = json!({});
    case.apply();
    let rules = case.spec["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!(rules[0], json!({"allow": false, "access": "rwm"}));
    assert_eq!(rules.len(), 5);
}

#[test]
fn with_the_hosts_dev_no_node_is_made() {
    let mut case = Case::new();
    case.spec["mounts"][1] = json!({"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]});
    case.apply();
    assert_eq!(case.node_paths(), Vec::<&str>::new());
    assert_eq!(case.spec["linux"]["resources"]["devices"].as_array().unwrap().len(), 6);
}

/// The group is the host's; in the container's own user namespace its number means another.
#[test]
fn groups_are_not_added_in_a_user_namespace() {
    for (namespaces, expected) in
        [(json!([{"type": "mount"}]), json!([10, 44])), (json!([{"type": "user"}]), json!([10]))]
    {
        let mut case = Case::new();
        case.spec["linux"]["namespaces"] = namespaces;
        case.apply();
        assert_eq!(case.spec["process"]["user"]["additionalGids"], expected);
    }
}

#[test]
fn specs_that_are_none_are_errors() {
    for spec in [json!(null), json!([]), json!({"linux": 1}), json!({"linux": {"devices": {}}}), json!({"mounts": "x"})]
    {
        let mut case = Case::new();
        case.spec = spec.clone();
        let result = case.plan().unwrap().complete(&case.rootfs(), &mut case.spec);
        assert!(matches!(result, Err(InjectError::Spec { .. })), "{spec}: {result:?}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]
    #[test]
    fn any_spec_is_edited_or_refused(spec in crate::spec::any_json()) {
        let case = Case::new();
        let plan = case.plan().unwrap();
        let mut edited = spec;
        if plan.complete(&case.rootfs(), &mut edited).is_ok() {
            let once = edited.clone();
            plan.complete(&case.rootfs(), &mut edited).unwrap();
            proptest::prop_assert_eq!(once, edited);
        }
    }
}
