//! Random programs against the model.

use proptest::{collection::vec, prelude::*};

use super::{CHANNEL, CLIENT, GROUP, Handle, Kind, Placement, accounts, plain};
use crate::model::run;

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Whatever happens, the account says no less than the driver holds, exactly that once
    /// everything was reported, no more than the limit, and nothing at the end.
    #[test]
    fn any_program(bytes in vec(any::<u8>(), 0..1200)) {
        run(&bytes);
    }

    /// Freed piece by piece, all of a tree goes, and no free takes more than it may.
    #[test]
    fn a_tree_goes_in_pieces(
        objects in vec((any::<prop::sample::Index>(), 0_u8..6, any::<prop::sample::Index>()), 1..80),
        most in 1_usize..20,
        depends: bool,
    ) {
        let mut accounts = accounts();
        let handle = |at: usize| if at == 0 { CLIENT } else { Handle(u32::try_from(at).unwrap()) };
        for (at, (parent, kind, dependency)) in (1..).zip(&objects) {
            // Nothing hangs from memory.
            let kind = [Kind::Other, Kind::Other, Kind::Memory, Kind::Memory, GROUP, CHANNEL][usize::from(*kind)];
            let reservation = accounts.reserve(plain(kind)).unwrap();
            let dependencies = [handle(dependency.index(at))];
            let placement = Placement::under(handle(parent.index(at)), handle(at));
            let placement = if depends { placement.going_with(&dependencies) } else { placement };
            accounts.commit(reservation, placement, None).unwrap();
        }
        let total = accounts.counts().objects as usize + 1;
        let chunks = accounts.chunks_to_free(CLIENT, CLIENT, most);
        prop_assert_eq!(chunks.is_empty(), total <= most);
        let mut gone = 0;
        for piece in chunks {
            let freed = accounts.free(CLIENT, piece).unwrap().objects as usize;
            prop_assert!(depends || freed <= most, "{} at once", freed);
            gone += freed;
        }
        let rest = accounts.client_gone(CLIENT).objects as usize;
        prop_assert!(depends || rest <= most, "{} with the client", rest);
        prop_assert_eq!((gone + rest, accounts.counts().objects), (total, 0));
    }
}

/// A case that fuzzing found: fork copies managed memory (`MADV_DOFORK`), the copy is found and
/// charged, its process ends, and before anybody has looked again, a file is opened that several
/// processes share. Whose file the copy was of is not known, so it stays charged while that one is
/// open: more than there is, never less.
#[test]
fn a_copy_that_may_be_of_a_file_that_is_shared() {
    run(&[
        19, 0, 0, 0, 29, 0, 0, 0, 0, 0, 1, 30, 0, 1, 26, 0, 0, 26, 0, 0, 26, 0, 1, 26, 0, 0, 27, 0, 0, 0, 37, 27, 2, 0,
        0, 19, 0, 1, 0, 37,
    ]);
}

/// A case that fuzzing found: two threads ask for managed memory at the same addresses, and the one
/// that asked later is back first, with nothing. What the other may yet map is not released with
/// it.
#[test]
fn a_range_that_another_thread_may_yet_map() {
    run(&[
        2, 0, 19, 0, 0, 0, 29, 0, 0, 1, 5, 4, 1, 2, 0, 29, 0, 0, 0, 1, 4, 1, 20, 0, 0, 0, 2, 0, 2, 0, 30, 1, 0, 2, 0,
        0, 0, 0, 4, 0, 4, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 35, 1, 0, 0, 16, 0, 0, 1, 0, 0, 16, 0, 0, 1, 0, 0, 2, 0, 0,
        0, 0, 16, 0, 0, 1, 0, 0, 36, 0, 2, 0, 0, 0, 0, 30, 0, 1,
    ]);
}

/// Found by the fuzzer: many mappings far from each other leave no room for the tables of a small
/// one.
#[test]
fn a_small_mapping_where_the_room_for_tables_is_used_up() {
    run(include_bytes!("../../../../fuzz/seeds/account/room-for-tables-used-up"));
}

/// Found by the fuzzer: of two threads that map the same addresses, the one that another has
/// overtaken is back during a comparison that began before. What stands in its place is not
/// released by that comparison.
#[test]
fn an_overtaken_range_that_is_back_during_a_look() {
    run(include_bytes!("../../../../fuzz/seeds/account/overtaken-during-a-look"));
}
