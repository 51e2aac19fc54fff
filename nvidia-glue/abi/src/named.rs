//! Constants by NVIDIA's names. The number itself stands once, in the row of its table.

/// Defines a constant for each name: the number in the row of that name.
///
/// A name that no row of the tables has, or that two have, does not compile.
macro_rules! named {
    ($rows:expr, $number:ident: $type:ty; $($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub const $name: $type = {
            let rows = $rows;
            let (mut at, mut found) = (0, None);
            while at < rows.len() {
                if $crate::packed::same(rows[at].name, stringify!($name)) {
                    assert!(found.is_none(), "two rows have this name");
                    found = Some(rows[at].$number);
                }
                at += 1;
            }
            match found {
                Some(number) => number,
                None => panic!("no row has this name"),
            }
        };
    )*};
}
pub(crate) use named;
