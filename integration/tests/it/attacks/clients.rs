//! Attacks of `rm-client` (`integration/rm-client/src/attacks.rs`): each prints what it came to
//! hold.

use containerd_client::types::v1::Status as TaskStatus;
use integration::{Node, egpu::on_real_cards, eventually, hostile::MIB, rootfs};

use super::{Neighbour, QUOTA};
use crate::{
    case::Case,
    memory::{granted, idle, until_free},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::everything_that_rm_client_tries", all).needing(rm_client),
        Case::egpu("attacks::random_honest_programs", random).needing(rm_client),
        Case::egpu("attacks::controls_that_decide_about_a_card", controls).needing(rm_client),
    ]
}

pub(crate) fn rm_client() -> Result<(), String> {
    integration::hostile::available()?;
    match rootfs::rm_client() {
        Some(_) => Ok(()),
        None => Err("EGPU_TEST_RM_CLIENT names no program: make rm-client".to_owned()),
    }
}

/// Among them (each with the defence that stops it): references that outlive a freed handle, in UVM
/// and in exports (they are charged until they end); channel groups (limited, and charged); pages
/// of 512 MiB for a little memory (what the driver says that a piece takes is charged); numbers
/// that no driver has (the filter passes none of the driver's type); commands without a direction
/// (the filter goes by number); the older calls for memory.
fn all(node: &Node) {
    let neighbour = Neighbour::new(node);
    let listing = idle(node, "attacker", QUOTA);
    let list = listing.read("rm-client attack list");
    listing.end();
    assert!(list.lines().count() >= 14, "{list}");
    for name in list.lines() {
        let attack = &["rm-client", "attack", name, "64M", "--hold", "stdin"];
        let mut container = granted(node, "attacker", QUOTA).args(attack).stdin().start().unwrap();
        // A program that gets an errno ends.
        eventually(&format!("{name} has done its worst"), || {
            let holds = container.stdio.stdout_so_far().contains("holding");
            (holds || container.status() == TaskStatus::Stopped).then_some(())
        });
        let output = container.stdio.stdout_so_far();
        reaches_what_it_may(node, name, &output);
        let used = node.usage("attacker");
        assert!(used.used <= used.limit, "{name}: {used:?} {output}");
        let card = node.card_used(0);
        assert!(card <= (QUOTA + 320) * MIB, "{name}: {} MiB of the card are taken; {output}", card / MIB);
        if !on_real_cards() {
            eventually(&format!("all that {name} has taken of the card is charged"), || {
                let charged = node.usage("attacker").used + node.usage("neighbour").used;
                (node.card_used(0) <= charged + UNCHARGED).then_some(())
            });
        }
        if name == "garbage" {
            eventually("calls that no release has are counted", || unknown_are_refused(node).then_some(()));
        }
        neighbour.is_well();
        let _ = container.close_stdin();
        container.end();
        assert!(node.card_used(0) < 320 * MIB, "what {name} held is free");
    }
    neighbour.container.end();
    until_free(node);
}

/// Attacks that are refused outright, as calls that nobody needs: by the filter, or by the
/// mediator. `garbage` asks for nothing in particular.
const REFUSED: [&str; 4] = ["foreign-type", "xfer", "fixed-alignment", "garbage"];

/// An attack that does not even get what is its own would get no more without a defence either.
/// Those that are memory by another way have to come as far as the quota itself, which refuses the
/// last of it.
#[track_caller]
fn reaches_what_it_may(node: &Node, name: &str, output: &str) {
    if REFUSED.contains(&name) {
        assert!(output.contains(&format!("{name}: holds 0 bytes")), "{output}");
        return;
    }
    if name == "groups" && on_real_cards() {
        // A real driver wants more of a channel's parameters than it says.
        return;
    }
    assert!(output.contains("holding"), "{name} was stopped by something else than its quota: {output}");
    let piece = if name == "huge-pages" { 512 } else { 64 };
    eventually(&format!("{name} gets all of its quota but a last piece: {output}"), || {
        let usage = node.usage("attacker");
        (usage.denials > 0 && usage.used > 0 && usage.used + piece * MIB >= usage.limit).then_some(())
    });
}

/// Memory that the simulated driver may keep for itself for two programs; less than a few contexts.
const UNCHARGED: u64 = 48 * MIB;

/// More than eight in ten of its ten thousand calls have numbers that no release of the driver has:
/// they are refused before the driver sees them, which would write a line into the kernel's log for
/// each.
fn unknown_are_refused(node: &Node) -> bool {
    let refused = node.egpu_json(&["inspect", "attacker"])["usage"]["unknown_refused"].as_u64();
    refused.is_some_and(|refused| refused > 8000)
}

/// Programs that allocate, free, map, export and import at random: what they give back is given
/// back, and no sum of theirs is above the quota.
fn random(node: &Node) {
    for seed in ["1", "2", "3", "4", "5", "6"] {
        let program = &["rm-client", "random", seed, "300", "--max", "128M"];
        let (code, output) = granted(node, "a", QUOTA).args(program).run().unwrap();
        assert_eq!(code, 0, "seed {seed}: {}{}", output.stdout(), output.stderr());
        let most = output.stdout().split(' ').nth_back(3).and_then(|bytes| bytes.parse::<u64>().ok());
        assert!(most.is_some_and(|most| most > 0 && most <= QUOTA * MIB), "{}", output.stdout());
        until_free(node);
    }
}

/// Defence: controls by which a card's sharing could be decided are refused before there is a call
/// to the driver.
fn controls(node: &Node) {
    let neighbour = Neighbour::new(node);
    let attacker = idle(node, "attacker", QUOTA);
    let tried = assert_refused(&attacker.read("rm-client controls"));
    assert!(tried >= 31, "{tried} were tried");
    neighbour.end(attacker);
}

/// Checks that each call of `rm-client controls` was refused, by the driver's status or by an
/// errno, and returns their number.
#[track_caller]
pub(crate) fn assert_refused(output: &str) -> usize {
    let answers = output.lines().filter_map(|line| line.split_once('='));
    let answers: Vec<(&str, i64)> = answers.map(|(name, status)| (name, status.parse().expect("a status"))).collect();
    let let_through: Vec<_> = answers.iter().filter(|(_, status)| *status == 0).map(|(name, _)| *name).collect();
    assert!(let_through.is_empty(), "{let_through:?} were let through");
    answers.len()
}
