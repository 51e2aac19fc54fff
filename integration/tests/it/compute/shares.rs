//! Hard caps (policy `fixed`), alone and beside others.

use std::ops::RangeInclusive;

use integration::{EgpuConfig, Node, Setup, eventually};

use super::{SPIN, around, each_time, end, exec, granted, planned, spinning, until_shares, until_within};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::three_caps_on_one_card", three_caps),
        Case::egpu("compute::a_cap_alone_and_what_is_not_capped", cap_and_remainder),
        Case::egpu("compute::vendor_case_3", vendor_case_3),
        Case::egpu("compute::hamis_core_limits", hami),
        Case::egpu("compute::all_processes_of_a_container_share_its_window", processes),
        Case::egpu("compute::hundreds_of_channels", channels),
        Case::egpu("compute::hundreds_of_channels_in_one_group", channels_of_a_group),
        Case::egpu("compute::copies_are_throttled_too", copies),
        Case::egpu("compute::copies_are_left_alone_where_that_is_configured", free_copies).on(compute_only),
        Case::egpu("compute::video_engines_are_left_alone", free_videos),
        Case::egpu("compute::video_engines_are_throttled_where_that_is_configured", videos).on(all_engines),
        Case::egpu("compute::a_card_without_firmware_refuses_caps", without_firmware).on(no_firmware),
        Case::egpu("compute::a_card_without_firmware_may_share_by_weights", degraded).on(degrading),
        Case::egpu("compute::a_card_that_turns_out_not_to_hold_caps_refuses_them", found_out).on(unwilling),
        Case::egpu("compute::a_card_that_turns_out_not_to_hold_caps_may_share_by_weights", found_degraded)
            .on(unwilling_degrading),
    ]
}

const fn cap(percent: &'static str) -> [(&'static str, &'static str); 1] {
    [("EGPU_COMPUTE", percent)]
}

fn three_caps(node: &Node) {
    let containers = [("a", "10%"), ("b", "30%"), ("c", "60%")].map(|(id, percent)| spinning(node, id, &cap(percent)));
    let [a, b, c] = &containers;
    until_shares("10, 30, 60 %", &[(&a.stdio, 10.0), (&b.stdio, 30.0), (&c.stdio, 60.0)]);
    planned(node, &[("a", 10.0), ("b", 30.0), ("c", 60.0)]);
    end(containers);
}

/// A container with a cap gets no more alone; those without one share what is left.
fn cap_and_remainder(node: &Node) {
    let capped = spinning(node, "capped", &cap("30%"));
    until_shares("30 % alone", &[(&capped.stdio, 30.0)]);
    let one = spinning(node, "one", &[]);
    until_shares("30 % and the rest", &[(&capped.stdio, 30.0), (&one.stdio, 70.0)]);
    planned(node, &[("capped", 30.0), ("one", 70.0)]);
    let two = spinning(node, "two", &[]);
    until_shares("two share the rest", &[(&capped.stdio, 30.0), (&one.stdio, 35.0), (&two.stdio, 35.0)]);
    end([one, two]);
    until_shares("30 % alone again", &[(&capped.stdio, 30.0)]);
    end([capped]);
}

/// 10 GiB at 10, 50 and 100 % of the card: the vendor has 9.9, 50.6 and 100 % of the throughput.
fn vendor_case_3(node: &Node) {
    for percent in [10_u32, 50, 100] {
        let request = format!("POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=10240,WEIGHT={percent}");
        let builder = node.container("job").env("EGPU", &request).env("NVIDIA_VISIBLE_DEVICES", "0");
        let container = builder.args(SPIN).start().unwrap();
        until_shares(&request, &[(&container.stdio, f64::from(percent))]);
        planned(node, &[("job", f64::from(percent))]);
        container.end();
    }
}

/// `default`: capped only beside others. `force`: always. `disable`: never.
fn hami(node: &Node) {
    let limited = |id: &str, policy: &str| {
        let builder = node.container(id).env("NVIDIA_VISIBLE_DEVICES", "0").env("CUDA_DEVICE_MEMORY_LIMIT", "1024m");
        let builder = builder.env("CUDA_DEVICE_SM_LIMIT", "30").env("GPU_CORE_UTILIZATION_POLICY", policy);
        builder.args(SPIN).start().unwrap()
    };
    let default = limited("default", "default");
    until_shares("alone", &[(&default.stdio, 100.0)]);
    let force = limited("force", "force");
    until_shares("beside another", &[(&default.stdio, 30.0), (&force.stdio, 30.0)]);
    planned(node, &[("default", 30.0), ("force", 30.0)]);
    default.end();
    until_shares("forced", &[(&force.stdio, 30.0)]);
    let disable = limited("disable", "disable");
    until_shares("not limited", &[(&force.stdio, 30.0), (&disable.stdio, 70.0)]);
    planned(node, &[("force", 30.0), ("disable", 70.0)]);
    end([force, disable]);
}

fn processes(node: &Node) {
    let container = spinning(node, "a", &cap("40%"));
    let more = [exec(&container, "b", SPIN), exec(&container, "c", SPIN)];
    let third = 40.0 / 3.0;
    let all = [&container.stdio, &more[0].stdio, &more[1].stdio];
    until_shares("a third of 40 % each", &all.map(|stdio| (stdio, third)));
    for process in more {
        process.end();
    }
    until_shares("40 % again", &[(&container.stdio, 40.0)]);
    end([container]);
}

/// More than one call to the driver names.
fn channels(node: &Node) {
    let spin = [SPIN, &["--groups", "10", "--channels", "15"]].concat();
    let many = granted(node, "many", &cap("30%")).args(&spin).start().unwrap();
    let few = spinning(node, "few", &cap("50%"));
    // An edge takes three calls, one after the other, and what that moves is some points.
    until_within("150 channels", &[(&many.stdio, 22.0..=32.0), (&few.stdio, 44.0..=53.0)]);
    end([many, few]);
}

/// Two calls to the driver, and three: a channel that is left on has its whole group's work to
/// itself.
fn channels_of_a_group(node: &Node) {
    // Each edge takes several calls, one after the other, and what that moves is some points.
    for (channels, percent, range) in [("80", "30%", 22.0..=32.0), ("160", "50%", 40.0..=53.0)] {
        let spin = [SPIN, &["--channels", channels]].concat();
        let container = granted(node, channels, &cap(percent)).args(&spin).start().unwrap();
        until_within(&format!("{channels} channels"), &[(&container.stdio, range)]);
        end([container]);
    }
}

/// Returns the percent of an engine that a program got which has copied, or decoded, for some
/// seconds.
fn had_of(node: &Node, engine: &str) -> f64 {
    let spin = ["rm-client", "spin", "4", &format!("--{engine}")];
    let (code, output) = granted(node, "a", &cap("30%")).args(&spin).run().unwrap();
    assert_eq!(code, 0, "{}", output.stderr());
    #[allow(clippy::cast_precision_loss, reason = "a share in percent")]
    let percent = output.value(&format!("{engine}_us")) as f64 * 100.0 / output.value("wall_us") as f64;
    percent
}

/// Returns the share that such a program gets of its engine, as text, if it is never in `range`.
fn had_beyond(node: &Node, engine: &str, range: &RangeInclusive<f64>) -> Option<String> {
    each_time(|| {
        let percent = had_of(node, engine);
        (!range.contains(&percent)).then(|| format!("{percent} % of the {engine} engine, not {range:?}"))
    })
}

fn copies(node: &Node) {
    assert_eq!(had_beyond(node, "copy", &around(30.0)), None);
}

fn compute_only() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("throttle = \"compute\"\n"), ..Setup::default() }
}

fn free_copies(node: &Node) {
    assert_eq!(had_beyond(node, "copy", &around(100.0)), None);
}

fn free_videos(node: &Node) {
    assert_eq!(had_beyond(node, "video", &around(100.0)), None);
}

fn all_engines() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("throttle = \"all\"\n"), ..Setup::default() }
}

fn videos(node: &Node) {
    assert_eq!(had_beyond(node, "video", &around(30.0)), None);
}

/// Two cards that cannot take channels off.
const WITHOUT_FIRMWARE: &str = "[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"Tesla V100-PCIE-32GB\"\n\
                                memory = \"32768MiB\"\ncount = 2\ngsp = false\n";

fn no_firmware() -> Setup {
    Setup { egpu: EgpuConfig::with_cards(WITHOUT_FIRMWARE), ..Setup::default() }
}

fn degrading() -> Setup {
    let keys = "hard_caps_unavailable = \"degrade\"\n".to_owned();
    Setup { egpu: EgpuConfig { driver: WITHOUT_FIRMWARE.to_owned(), keys }, ..Setup::default() }
}

fn without_firmware(node: &Node) {
    let refused = granted(node, "a", &cap("30%")).start().expect_err("a cap that nobody could hold");
    assert!(refused.message().contains("hard_caps_unavailable"), "{}", refused.message());
    let free = spinning(node, "b", &[]);
    until_shares("no cap", &[(&free.stdio, 100.0)]);
    end([free]);
}

/// A share that was asked for is a weight among those who have work.
fn degraded(node: &Node) {
    let less = spinning(node, "less", &cap("20%"));
    until_shares("alone", &[(&less.stdio, 100.0)]);
    let more = spinning(node, "more", &cap("60%"));
    until_within("1 to 3", &[(&less.stdio, around(25.0)), (&more.stdio, around(75.0))]);
    end([less, more]);
}

/// Two cards that are said to have firmware, and whose driver takes nobody off all the same.
const UNWILLING: &str = "[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"Tesla T4\"\n\
                         memory = \"16384MiB\"\ncount = 2\ntakes_off = false\n";

fn unwilling() -> Setup {
    Setup { egpu: EgpuConfig::with_cards(UNWILLING), ..Setup::default() }
}

fn unwilling_degrading() -> Setup {
    let keys = "hard_caps_unavailable = \"degrade\"\n".to_owned();
    Setup { egpu: EgpuConfig { driver: UNWILLING.to_owned(), keys }, ..Setup::default() }
}

/// Nobody knows before the first container's mediator has asked the driver.
fn found_out(node: &Node) {
    assert_eq!(node.egpu_json(&["cards"])[0]["hard_caps"], true);
    let refused = granted(node, "a", &cap("30%")).start().expect_err("a cap that nobody could hold");
    assert!(refused.message().contains("hard_caps_unavailable"), "{}", refused.message());
    assert!(node.granted().is_empty(), "what was reserved has gone back");
    // A window that is no cap of anybody's is a weight.
    let free = spinning(node, "b", &[("EGPU_POLICY", "weighted"), ("EGPU_WEIGHT", "2")]);
    until_shares("no cap", &[(&free.stdio, 100.0)]);
    end([free]);
}

fn found_degraded(node: &Node) {
    let less = spinning(node, "less", &cap("20%"));
    until_shares("alone", &[(&less.stdio, 100.0)]);
    let more = spinning(node, "more", &cap("60%"));
    until_within("1 to 3", &[(&less.stdio, around(25.0)), (&more.stdio, around(75.0))]);
    let said = |arguments: &[&str]| String::from_utf8(node.egpu(arguments).stdout).unwrap();
    for container in ["less", "more"] {
        eventually("its grant says so", || said(&["inspect", container]).contains("weights only").then_some(()));
    }
    let report = said(&["doctor"]);
    assert!(report.contains("  priority "), "{report}");
    for container in ["less", "more"] {
        let priority = node.egpu_json(&["inspect", container])["schedule"]["priority"].take();
        assert!(["real-time", "nice", "none"].iter().any(|known| priority == *known), "{priority}");
    }
    assert!(report.contains("cannot be taken off their cards: their shares are weights only"), "{report}");
    end([less, more]);
}
