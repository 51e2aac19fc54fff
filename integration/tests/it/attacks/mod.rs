//! Attacks of a hostile container: each is a test that fails without its defence, which its comment
//! names.
//!
//! A container with a quota of 512 MiB runs the attack; another holds 256 MiB beside it, and a
//! third allocates all the time. After each attack the card's own account says what was really
//! taken.

mod calls;
mod cgroups;
mod clients;
mod cost;
mod escapes;
mod files;
mod floods;
mod floors;
mod frames;
mod hidden;
pub(crate) mod pods;
mod races;
mod stalls;
mod users;
mod visible;

use integration::{
    Container, ContainerBuilder, Node,
    hostile::{MIB, value},
};

pub(crate) use self::clients::{assert_refused, rm_client};
use crate::{
    case::Case,
    memory::{granted, idle, until_free, until_used},
};

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    let all = [
        calls::cases(),
        cgroups::cases(),
        cost::cases(),
        escapes::cases(),
        files::cases(),
        floods::cases(),
        floors::cases(),
        frames::cases(),
        hidden::cases(),
        pods::cases(),
        races::cases(),
        stalls::cases(),
        users::cases(),
        visible::cases(),
    ];
    let armed = all.into_iter().flatten().map(|case| case.also_needing(integration::hostile::available));
    armed.chain(clients::cases()).map(Case::on_real_cards_too).collect()
}

/// Grant of every attacker, in MiB.
const QUOTA: u64 = 512;

/// A container that attacks with one of the test programs.
fn attacker<'node>(node: &'node Node, arguments: &[&str]) -> ContainerBuilder<'node> {
    granted(node, "attacker", QUOTA).hostile(arguments)
}

/// A container beside it: it holds memory, and must go on as if nothing were.
struct Neighbour<'node> {
    node: &'node Node,
    container: Container<'node>,
}

impl<'node> Neighbour<'node> {
    fn new(node: &'node Node) -> Self {
        let container = granted(node, "neighbour", 1024).hostile(&["hold", "256"]).start().unwrap();
        assert_eq!(container.stdio.value("status"), 0);
        Self { node, container }
    }

    /// It can still use its driver, and what it holds is what it held.
    #[track_caller]
    fn is_well(&self) {
        let (code, output) = self.container.sh("hostile step 512");
        assert_eq!((code, output.value("status")), (0, 0), "the neighbour's driver works");
        until_used(self.node, "neighbour", 256, 320);
    }

    /// The attacker has no more than its quota, by egpu's account and by the card's own.
    #[track_caller]
    fn and_quota_holds(&self) {
        self.is_well();
        let usage = self.node.usage("attacker");
        assert!(usage.used <= usage.limit, "{usage:?}");
        let all = self.node.card_used(0);
        assert!(all <= QUOTA * MIB + 320 * MIB, "{} MiB are taken of the card", all / MIB);
    }

    /// Nothing is left of anybody.
    #[track_caller]
    fn end(self, attacker: Container<'_>) {
        attacker.end();
        assert!(self.node.card_used(0) < 320 * MIB, "the attacker's memory is free again");
        self.container.end();
        until_free(self.node);
    }
}

/// Runs an attack that ends by itself: what it printed. The neighbour is well and the card is free
/// afterwards.
#[track_caller]
fn run(node: &Node, arguments: &[&str]) -> String {
    let neighbour = Neighbour::new(node);
    let mut container = attacker(node, arguments).start().unwrap();
    container.wait().unwrap();
    neighbour.is_well();
    container.delete().unwrap();
    let output = container.stdio.finish().stdout();
    neighbour.container.end();
    until_free(node);
    output
}

/// Checks that the attacker may afterwards still do all that its quota allows.
#[track_caller]
fn whole_quota(node: &Node) {
    let container = idle(node, "attacker", QUOTA);
    let (_, output) = container.sh("hostile fill 16");
    assert!(value(&output.stdout(), "got").cast_unsigned() + 48 * MIB >= QUOTA * MIB);
    container.end();
}
