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
                if $crate::named::same(rows[at].name, stringify!($name)) {
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

/// Returns whether two strings are equal: `==` is not for constants.
pub(crate) const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
