//! Random programs against the model.

use proptest::{collection::vec, prelude::*};

use super::model::run;

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Whatever happens, the account says no less than the driver holds, exactly that once it was told everything, no more than the
    /// limit, and nothing at the end.
    #[test]
    fn any_program(bytes in vec(any::<u8>(), 0..1200)) {
        run(&bytes);
    }
}
