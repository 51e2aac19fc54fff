//! Tests of the account, path by path.

mod frames;
mod managed;
mod objects;
mod page_tables;
mod properties;
mod quota;
mod sharing;

use abi::{Handle, Status, memory::Layout};
use base::{Pid, units::Bytes};

use super::{
    Accounts, AllocRequest, Bound, Card, CommitError, Counted, ExportFile, Freed, Kind, ManagedDrift, MappedFile,
    Mapping, Mm, ObjectLimits, ObjectName, OverQuota, Placement, ProcessEnd, Refusal, UvmFile,
};

/// The card of most tests.
const CARD: Card = Card(0);
/// A channel group, and a channel that is in one.
const GROUP: Kind = Kind::ChannelGroup(CARD);
const CHANNEL: Kind = Kind::Channel { card: CARD, is_bare: false };
/// The process of most tests.
const PROCESS: Pid = Pid(100);
/// The client of most tests.
const CLIENT: Handle = Handle(0xc1d0_0001);

const fn mib(count: u64) -> Bytes {
    Bytes(count << 20)
}

/// Two cards of 100 MiB, one client.
fn accounts() -> Accounts {
    accounts_with(ObjectLimits::default())
}

fn accounts_with(limits: ObjectLimits) -> Accounts {
    let mut accounts = Accounts::new(&[mib(100), mib(100)], limits);
    add_client(&mut accounts, CLIENT, PROCESS);
    accounts
}

fn add_client(accounts: &mut Accounts, client: Handle, process: Pid) {
    let reservation = accounts.reserve_client(process).unwrap();
    assert!(!accounts.commit_client(reservation, client).conflict);
}

const fn memory(size: Bytes) -> AllocRequest {
    AllocRequest {
        client: CLIENT,
        kind: Kind::Memory,
        memory: Some((CARD, size)),
        layout: Layout::OwnFrames,
        process: PROCESS,
    }
}

const fn plain(kind: Kind) -> AllocRequest {
    AllocRequest { client: CLIENT, kind, memory: None, layout: Layout::OwnFrames, process: PROCESS }
}

const fn name(object: u32) -> ObjectName {
    ObjectName::new(CLIENT, Handle(object))
}

/// Allocates memory below the client.
fn allocate(accounts: &mut Accounts, object: u32, size: Bytes) -> Result<(), Refusal> {
    allocate_under(accounts, CLIENT, object, size)
}

fn allocate_under(accounts: &mut Accounts, parent: Handle, object: u32, size: Bytes) -> Result<(), Refusal> {
    let reservation = accounts.reserve(memory(size))?;
    let placed = accounts.commit(reservation, Placement::under(parent, Handle(object)), Some(size)).unwrap();
    assert!(!placed.conflict);
    Ok(())
}

/// Creates an object that is charged for nothing.
fn make(accounts: &mut Accounts, parent: Handle, object: u32, kind: Kind) {
    let reservation = accounts.reserve(plain(kind)).unwrap();
    accounts.commit(reservation, Placement::under(parent, Handle(object)), None).unwrap();
}

fn used(accounts: &Accounts) -> Bytes {
    accounts.card(CARD).unwrap().used
}
