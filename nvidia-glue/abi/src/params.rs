//! Structs that programs and the driver exchange, as typed fields over bytes.
//!
//! Each struct has NVIDIA's name and NVIDIA's names of its fields, so that a search finds both
//! sides: `NVOS54_PARAMETERS::cmd.get(bytes)`. A field lies wherever its bytes do: nothing is
//! aligned, copied as a whole or allocated. Listed is what some code uses, with its layouts in
//! every release: code that uses one of two layouts relies on fields that are the same in both.
//! [`all`] describes the same structs to `header-check`, which compares them with the headers of
//! each release.

mod classes;
mod controls;
mod escapes;
mod uvm;

pub use classes::*;
pub use controls::*;
pub use escapes::*;
pub use uvm::*;

use std::marker::PhantomData;

use super::{DriverRelease, Handle, layout::Releases};

/// A field of a struct: its place, and the type of what is there.
pub struct Field<T> {
    at: u16,
    kind: PhantomData<fn() -> T>,
}

/// A value of a fixed number of bytes in a struct.
pub trait Layout {
    /// Bytes.
    const SIZE: usize;
}

/// A number, a handle, or an array of them.
pub trait Value: Layout + Copy {
    /// Reads it, little-endian; `None` unless there are [`Layout::SIZE`] bytes.
    fn read(bytes: &[u8]) -> Option<Self>;
    /// Writes it to the same number of bytes; `false`, and nothing written, if there are others.
    #[must_use]
    fn write(self, bytes: &mut [u8]) -> bool;
}

/// A pointer of the caller's: an address, or 0.
#[allow(non_camel_case_types, reason = "a word of the table, like u64")]
pub type ptr = u64;

impl<T: Layout> Field<T> {
    const fn new(at: u16) -> Self {
        Self { at, kind: PhantomData }
    }

    /// Offset in the struct.
    pub const fn at(self) -> usize {
        self.at as usize
    }

    /// Offset in the struct, as the tables of calls have it.
    pub const fn offset(self) -> u16 {
        self.at
    }

    /// Number of its bytes.
    pub const fn size(self) -> usize {
        T::SIZE
    }

    /// Bytes of the field; `None` when `bytes` ends before it does.
    pub fn bytes(self, bytes: &[u8]) -> Option<&[u8]> {
        bytes.get(self.at()..self.at().checked_add(T::SIZE)?)
    }

    /// Bytes of the field, to be written.
    pub fn bytes_mut(self, bytes: &mut [u8]) -> Option<&mut [u8]> {
        bytes.get_mut(self.at()..self.at().checked_add(T::SIZE)?)
    }
}

impl<T: Value> Field<T> {
    /// Returns the value; `None` when `bytes` ends before it does.
    pub fn get(self, bytes: &[u8]) -> Option<T> {
        T::read(self.bytes(bytes)?)
    }

    /// Writes the value; `false`, and nothing written, when `bytes` ends before it does.
    #[must_use]
    pub fn set(self, bytes: &mut [u8], value: T) -> bool {
        self.bytes_mut(bytes).is_some_and(|field| value.write(field))
    }
}

impl<T: Layout, const COUNT: usize> Field<[T; COUNT]> {
    /// Number of elements.
    pub const COUNT: usize = COUNT;

    /// Field of one element; `None` beyond the last.
    pub fn element(self, index: usize) -> Option<Field<T>> {
        let within = (index < COUNT).then(|| index.checked_mul(T::SIZE))??;
        Some(Field::new(self.at.checked_add(u16::try_from(within).ok()?)?))
    }
}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Field<T> {}

impl<T> std::fmt::Debug for Field<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Field at {}", self.at)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Layout for $number {
            const SIZE: usize = size_of::<$number>();
        }

        impl Value for $number {
            fn read(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }

            fn write(self, bytes: &mut [u8]) -> bool {
                let fits = bytes.len() == Self::SIZE;
                if fits {
                    bytes.copy_from_slice(&self.to_le_bytes());
                }
                fits
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i32);

impl Layout for Handle {
    const SIZE: usize = u32::SIZE;
}

impl Value for Handle {
    fn read(bytes: &[u8]) -> Option<Self> {
        u32::read(bytes).map(Self)
    }

    fn write(self, bytes: &mut [u8]) -> bool {
        self.0.write(bytes)
    }
}

impl<T: Layout, const COUNT: usize> Layout for [T; COUNT] {
    const SIZE: usize = COUNT * T::SIZE;
}

impl<T: Value + Default, const COUNT: usize> Value for [T; COUNT] {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut array = [T::default(); COUNT];
        if bytes.len() != Self::SIZE {
            return None;
        }
        for (element, bytes) in array.iter_mut().zip(bytes.chunks_exact(T::SIZE)) {
            *element = T::read(bytes)?;
        }
        Some(array)
    }

    fn write(self, bytes: &mut [u8]) -> bool {
        bytes.len() == Self::SIZE
            && self.into_iter().zip(bytes.chunks_exact_mut(T::SIZE)).all(|(element, bytes)| element.write(bytes))
    }
}

/// Description of a struct, for `header-check`.
#[derive(Debug, Clone, Copy)]
pub struct Struct {
    /// NVIDIA's name. The layouts of different releases share it.
    pub name: &'static str,
    /// Releases that have this layout.
    pub releases: Releases,
    /// Bytes in the newest of them.
    pub size: usize,
    /// Bytes in others of them: only the struct's tail has grown since.
    pub other_sizes: &'static [usize],
    /// Fields that some code uses.
    pub fields: &'static [FieldInfo],
}

/// Description of a field.
#[derive(Debug, Clone, Copy)]
pub struct FieldInfo {
    /// Name in C, from the struct down: `data.AllocSize.hMemory`.
    pub path: &'static str,
    /// Offset in the struct.
    pub at: usize,
    /// Bytes.
    pub size: usize,
    /// True for a pointer.
    pub pointer: bool,
}

/// Descriptions of all structs.
pub fn all() -> impl Iterator<Item = &'static Struct> {
    [escapes::STRUCTS, classes::STRUCTS, controls::STRUCTS, uvm::STRUCTS].into_iter().flatten()
}

const R535: DriverRelease = DriverRelease::new(535, 0, 0);
const R545: DriverRelease = DriverRelease::new(545, 0, 0);
const R550: DriverRelease = DriverRelease::new(550, 0, 0);
/// The first of 550's releases in which `UVM_MAX_GPUS` counts partitions.
const R550_40_53: DriverRelease = DriverRelease::new(550, 40, 53);
const R555: DriverRelease = DriverRelease::new(555, 0, 0);
const R565: DriverRelease = DriverRelease::new(565, 0, 0);
const R570: DriverRelease = DriverRelease::new(570, 0, 0);
const R580: DriverRelease = DriverRelease::new(580, 0, 0);
const R590: DriverRelease = DriverRelease::new(590, 0, 0);
const R595: DriverRelease = DriverRelease::new(595, 0, 0);

/// Defines structs: `NAME [bytes] { field: type @offset, ... }`.
///
/// - `NAME [368 or 304]`: bytes in other releases, too, where only the tail differs.
/// - `NAME [56] before R580`, `since R580`: the releases that have it.
/// - `NAME_525 = "NAME" [...]`: another layout of a struct of that name.
/// - `hMemory = "data.AllocSize.hMemory": Handle @44`: a field within a nested struct.
/// - Types: `u8`, `u16`, `u32`, `u64`, `i32`, `Handle`, `ptr`, structs of the table, `[type;
///   count]`.
///
/// A field that does not lie within its struct does not compile.
macro_rules! params {
    ($($name:ident $(= $c:literal)? [$size:literal $(or $other:literal)*]
        $(since $since:ident)? $(before $before:ident)?
        { $($field:ident $(= $path:literal)? : $type:tt @ $at:literal),* $(,)? })*) => {
        $(
            #[doc = concat!("`", params!(@or stringify!($name) $(, $c)?), "`, ", $size, " bytes.")]
            #[allow(non_camel_case_types, reason = "NVIDIA's name")]
            #[derive(Debug, Clone, Copy)]
            pub enum $name {}

            #[allow(non_upper_case_globals, reason = "NVIDIA's names")]
            impl $name {
                /// Bytes in the newest release that has it.
                pub const SIZE: usize = $size;
                /// Releases that have this layout.
                pub const RELEASES: Releases = Releases {
                    since: params!(@some $($since)?),
                    before: params!(@some $($before)?),
                };
                $(
                    #[doc = concat!("`", params!(@or stringify!($field) $(, $path)?), "`.")]
                    #[allow(clippy::int_plus_one, reason = "a field at 0 of one byte")]
                    pub const $field: Field<$type> = {
                        assert!($at + <$type as Layout>::SIZE <= $size, "beyond the end of its struct");
                        Field::new($at)
                    };
                )*
            }

            impl Layout for $name {
                const SIZE: usize = $size;
            }
        )*

        pub(super) const STRUCTS: &[Struct] = &[$(
            Struct {
                name: params!(@or stringify!($name) $(, $c)?),
                releases: $name::RELEASES,
                size: $size,
                other_sizes: &[$($other),*],
                fields: &[$(FieldInfo {
                    path: params!(@or stringify!($field) $(, $path)?),
                    at: $name::$field.at(),
                    size: <$type as Layout>::SIZE,
                    pointer: params!(@pointer $type),
                }),*],
            }
        ),*];
    };
    (@or $own:expr) => { $own };
    (@or $own:expr, $other:literal) => { $other };
    (@some) => { None };
    (@some $release:ident) => { Some($release) };
    (@pointer ptr) => { true };
    (@pointer $other:tt) => { false };
}
use params;

/// Builds the bytes of a struct from the given fields, with zeros elsewhere.
///
/// `encode!(NVOS00_PARAMETERS { hRoot: client, hObjectOld: object })` is a `[u8; 16]`.
#[macro_export]
macro_rules! encode {
    ($name:ty { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut bytes = [0_u8; <$name>::SIZE];
        // A field lies within its struct, or the struct does not compile.
        $(let _ = <$name>::$field.set(&mut bytes, $value);)*
        bytes
    }};
}

#[cfg(test)]
mod tests;
